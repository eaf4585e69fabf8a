"""The live page in a real browser: the list of jobs, jobs at rest, two side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.phases import Phase
from dpstream.pipeline.jobs.sealed import stage_roles
from dpstream.topics.names import FURTHER_REPORTS, HOPS, Role
from tests.support.chromium import PATIENCE, Watched
from tests.support.served_page import ServedPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Watch = Callable[..., Watched]

VIEWS = (
    ("light", {"color_scheme": "light"}),
    ("dark", {"color_scheme": "dark"}),
    ("phone", {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}),
)


def count_job(name: str, *lines: str, epochs: str = "{count: 64}") -> str:
    return "\n".join(
        (
            f"name: {name}",
            "protocol: future_rand",
            "parameters: {epsilon: 4, changes: 4}",
            f"epochs: {epochs}",
            *lines,
        )
    )


def item_job(name: str, labels: str) -> str:
    return (
        f"name: {name}\nprotocol: hadamard_values\n"
        f"parameters: {{epsilon: 4, changes: 2, domain: [{labels}]}}\n"
        "epochs: {count: 32}\n"
    )


def estimate(value: float, half: float = 200.0) -> Estimate:
    return Estimate(value, half / 1.96, value - half, value + half, 20_000, 20_000)


def items(*values: float) -> ItemEstimates:
    return ItemEstimates(np.array(values, np.float64), 90.0, 176.4, 20_000, 20_000)


_READS = stage_roles(HOPS, FURTHER_REPORTS, shared=True) | {"aggregate": Role.SHUFFLED}


def at_rest(*stages: str, problems: tuple[str, ...] = (), needed: bool = False) -> dict[str, Any]:
    """What is said of stages whose workers are gone."""
    silent = {
        "name": "shuffle-1",
        "alive": False,
        "age": 900.0,
        "partitions": [],
        "records_per_second": None,
        "reports_per_second": None,
    }
    return {
        "at": 1_700_000_000_000,
        "workers_needed": needed,
        "stages": [
            {
                "stage": stage,
                "reads": _READS[stage],
                "workers": [silent] if stage == "shuffle" else [],
                "lag": 0,
                "waiting": None,
                "epoch": 9,
                "alive": False,
            }
            for stage in stages
        ],
        "windows": [],
        "open_windows": 0,
        "dead_letters": {},
        "problems": list(problems),
        "notes": [],
    }


def test_every_job_of_the_list_has_a_small_curve_and_jobs_alike_can_be_compared(
    served: ServedPage, watch: Watch, artefacts: Path
) -> None:
    first = served.deploy(count_job("enrolment", "population: students"))
    second = served.deploy(count_job("attendance", "population: students", epochs="{count: 32}"))
    transport = served.deploy(item_job("transport", "walk, bus"))
    waiting = count_job("waiting", epochs="{count: 128}")
    served.deploy(waiting)
    wave = [estimate(5_000 + 1_500 * float(np.sin(epoch / 7))) for epoch in range(1, 41)]
    served.publish(first, 1, [*wave[:20], None, None, wave[22], None, *wave[24:]])
    served.publish(second, 1, wave[:30])
    served.publish(transport, 1, [items(-400 + 9 * epoch, 900 - epoch) for epoch in range(30)])
    seen = watch(served.address)
    seen.open()
    page = seen.page
    card = page.locator(".job", has=page.get_by_role("link", name="enrolment"))
    drawing = card.locator(".small-curve")
    expect(drawing).to_have_attribute("aria-label", "users, epochs 1 to 40: 3,500 to 6,500, 3 gaps")
    line = drawing.locator(".estimate")
    # A gap ends the line; what is alone between two of them is a dot, and a line over its interval.
    runs = (line.get_attribute("d") or "").split("M")[1:]
    assert [run.count("L") for run in runs] == [19, 0, 15]
    assert runs[1].endswith("h0")
    band = (drawing.locator(".band").get_attribute("d") or "").split("M")[1:]
    assert [run.count("L") for run in band] == [39, 31]
    assert (drawing.locator(".alone").get_attribute("d") or "").count("M") == 1
    expect(page.locator(".small-curve")).to_have_count(3)
    walked = page.locator(".job", has_text="transport").locator(".small-curve")
    expect(walked).to_have_attribute("aria-label", "bus, epochs 1 to 30: 871 to 900")
    served.publish(first, 41, [estimate(5_000)])
    expect(drawing).to_have_attribute("aria-label", "users, epochs 1 to 41: 3,500 to 6,500, 3 gaps")

    for name, options in VIEWS:
        other = watch(served.address, **options)
        other.open()
        expect(other.page.locator(".small-curve")).to_have_count(3)
        width = other.page.viewport_size["width"] if other.page.viewport_size else 0
        assert other.page.evaluate("document.documentElement.scrollWidth") <= width
        other.wait_for_paint()
        other.page.screenshot(path=artefacts / f"jobs-{name}.png", full_page=True)
        other.assert_well_behaved()

    # The same people; another domain or another number of epochs is another thing.
    expect(page.locator(".pairs a")).to_have_text(["compare attendance with enrolment"])
    page.locator(".pairs a").click()
    page.wait_for_url("**/?job=attendance&with=enrolment")
    expect(page.locator(".tile")).to_have_count(6)
    page.go_back()
    served.deploy(waiting.replace("name: waiting", "name: same-epochs"))
    expect(page.locator(".pairs a")).to_have_text(
        ["compare attendance with enrolment", "compare same-epochs with waiting"]
    )
    seen.assert_well_behaved()


def test_only_answers_of_one_kind_are_compared(
    served: ServedPage, watch: Watch, artefacts: Path
) -> None:
    first = served.deploy(count_job("enrolment", "population: students"))
    second = served.deploy(count_job("attendance", "population: students"))
    third = served.deploy(item_job("transport", "walk, bus") + "population: students\n")
    served.publish(first, 1, [estimate(5_000)])
    served.publish(second, 1, [estimate(5_000)])
    served.publish(third, 1, [items(300, 900)])
    served.publish(served.deploy(count_job("silent", epochs="{count: 16}")), 1, [None])
    seen = watch(served.address)
    seen.open()
    page = seen.page
    expect(page.locator(".pairs a")).to_have_text(["compare attendance with enrolment"])
    # What a job costs by itself; and below, what all of them cost the same people.
    card = page.locator(".job", has=page.get_by_role("link", name="attendance"))
    expect(card.locator("dd", has_text="\N{GREEK SMALL LETTER EPSILON} 4")).to_be_visible()
    expect(card.locator(".facts .note")).to_contain_text("charged in all, no limit was set")
    expect(page.locator(".job")).to_have_count(4)
    expect(page.locator(".small-curve")).to_have_count(3)
    page.screenshot(path=artefacts / "cards.png", full_page=True)
    seen.open("?job=attendance")
    offered = page.get_by_label("Compare with").locator("option")
    expect(offered).to_have_text(["compare with …", "enrolment", "silent"])
    seen.open("?job=transport")
    expect(page.get_by_label("Compare with")).to_have_count(0)
    seen.assert_well_behaved()


def test_a_curve_that_is_not_read_yet_is_not_said_to_be_unpublished(
    served: ServedPage, watch: Watch
) -> None:
    job = served.deploy(count_job("slow", epochs="{count: 8}"))
    served.publish(job, 1, [estimate(5_000)])
    seen = watch(served.address)
    held: list[Route] = []
    seen.page.route("**/figures.json*", lambda route: held.append(route))
    with seen.page.expect_request("**/figures.json*", timeout=PATIENCE):
        seen.open("?job=slow")
    served.publish(job, 2, [estimate(5_100)])
    expect(seen.page.get_by_text("2 of 8")).to_be_visible(timeout=PATIENCE)
    expect(seen.page.locator(".charts .empty")).to_be_hidden()
    for each in held:
        each.continue_()
    seen.wait_for_epoch(2)
    seen.assert_well_behaved()


def test_a_job_that_has_ended_says_so_and_no_chart_is_without_a_word(
    served: ServedPage, watch: Watch, artefacts: Path
) -> None:
    job = served.deploy(count_job("over", epochs="{count: 4}"))
    served.publish(job, 1, [estimate(5_000), None, None])
    for width in (390, 1440):
        seen = watch(served.address, viewport={"width": width, "height": 900})
        seen.open("?range=2-3")
        words = seen.page.locator(".charts .empty")
        expect(words).to_have_text(
            "No estimate was published of these epochs: see why in the table below.",
            timeout=PATIENCE,
        )
        seen.page.screenshot(path=artefacts / f"no-estimate-{width}.png")
        seen.open()
        seen.wait_for_epoch(1)
        expect(words).to_be_hidden()
        seen.assert_well_behaved()
    page = seen.page
    expect(page.locator(".overview .phase")).to_be_hidden()
    served.publish(job, 4, [estimate(5_000)])
    expect(page.locator(".overview .phase")).to_have_text("ended")
    page.get_by_role("tab", name="For operators").click()
    expect(page.locator(".operators .facts")).to_contain_text("Phaseended")
    written = """async () => {
      const { Curve } = await import("/static/curve.js");
      const one = { epochs: [1], value: [1], low: [0], high: [2] };
      const curve = (smoothed) => new Curve({ ...one, smoothed });
      const place = document.body.appendChild(document.createElement("div"));
      place.className = "chart";
      return [curve(null), curve([null]), curve([1])].map((each) => each.has("smoothed"))
        .concat(getComputedStyle(place, "::after").content);
    }"""
    assert page.evaluate(written) == [False, False, True, '"The curve is being read."']


def test_stages_that_need_no_workers_are_no_cause_for_alarm(
    served: ServedPage, watch: Watch, artefacts: Path
) -> None:
    job = served.deploy(count_job("enrolment"))
    served.publish(job, 1, [estimate(5_000)] * 9)
    stages = ("shuffle", "aggregate", "publish")
    served.show_pipeline(
        job, at_rest(*stages, problems=("no worker of stage publish is alive",), needed=True)
    )
    seen = watch(served.address)
    seen.open("?tab=operators")
    page = seen.page
    drawing = page.locator(".drawing svg.across")
    expect(drawing.locator(".stage.bad")).to_have_count(3)
    expect(drawing.locator(".stage.bad").nth(2)).to_contain_text("no worker")
    alarm = _colour(drawing.locator(".stage.bad rect").first)

    served.set_phase(job, Phase.PAUSED)
    served.show_pipeline(job, at_rest(*stages))
    idle = drawing.locator(".stage.idle .small")
    expect(idle).to_have_text(["paused"] * 3)
    expect(drawing.locator(".bad, .warn, .gone")).to_have_count(0)
    expect(drawing.locator(".ended")).to_have_count(1)
    expect(page.locator(".phase")).to_have_text("paused")
    assert _colour(drawing.locator(".stage.idle rect").first) != alarm
    expect(drawing).to_have_attribute("aria-label", "shuffle: paused, 0 records waiting; "
        "aggregate: paused, 0 records waiting; publish: paused, 0 records waiting")  # fmt: skip
    rows = page.locator(".operators tbody tr")
    expect(rows.nth(0)).to_contain_text("silent for")
    expect(rows.nth(1)).to_contain_text("paused")
    expect(page.locator(".operators .bad")).to_have_count(0)

    # The phase alone changes: it is over.
    served.set_phase(job, Phase.DRAINED)
    expect(idle).to_have_text(["no worker needed"] * 3)
    for name, options in VIEWS:
        other = watch(served.address, **options)
        other.open("?tab=operators")
        shown = other.page.locator(f".drawing svg.{'folded' if name == 'phone' else 'across'}")
        expect(shown).to_contain_text("no worker needed")
        # Every label of a topic lies within its drawing, with some room.
        for topic in shown.locator(".topic").all():
            pipe, rim = topic.locator("path").first.bounding_box(), topic.locator(".rim")
            label, edge = topic.locator(".name").bounding_box(), rim.bounding_box()
            assert pipe is not None
            assert label is not None
            assert edge is not None
            assert label["x"] > pipe["x"] + 2
            assert label["x"] + label["width"] < edge["x"] - 2
        other.wait_for_paint()
        other.page.locator(".pipeline").screenshot(path=artefacts / f"at-rest-{name}.png")
        other.assert_well_behaved()

    served.set_phase(job, Phase.RUNNING)
    served.show_pipeline(job, at_rest(*stages, needed=True))
    expect(drawing.locator(".stage.bad")).to_have_count(3)
    seen.assert_well_behaved()


def _colour(drawn: Any) -> str:
    found: str = drawn.evaluate("(element) => getComputedStyle(element).stroke")
    return found


_BOXES = """(name) => {
  const drawing = document.querySelector("svg." + name);
  const parts = drawing.querySelectorAll(".stage rect, .topic path:not(.rim)");
  return [drawing, ...parts].map((part) => {
    const { left, top, right, bottom } = part.getBoundingClientRect();
    return [left, top, right, bottom];
  });
}"""
"""Of the drawing of the pipeline, and of every stage and topic in it."""


def assert_nothing_overlaps(page: Page, drawing: str) -> None:
    """See that stages and topics lie beside each other in a drawing, and inside it."""
    # All at once: the page may still move.
    view, *boxes = page.evaluate(_BOXES, drawing)
    for index, (left, top, right, bottom) in enumerate(boxes):
        assert view[0] <= left <= right <= view[2]
        assert view[1] <= top <= bottom <= view[3]
        for other in boxes[:index]:
            across = right <= other[0] or other[2] <= left
            assert across or bottom <= other[1] or other[3] <= top


def collected(*collectors: dict[str, Any], needed: bool = True) -> dict[str, Any]:
    """What is said of a job whose devices report for themselves."""
    windows = [
        {"epoch": 8, "reports": None, "devices": 9_950, "grace_left": 12.0,
         "waits_for": ["collector 1a2b3c4d"]},
        {"epoch": 9, "reports": None, "devices": 40, "grace_left": None,
         "waits_for": ["collector 1a2b3c4d"]},
    ]  # fmt: skip
    facts: dict[str, Any] = {
        "producers": None,
        "silent": [],
        "late_reports": 0,
        "unusable_reports": 6,
    }
    notes = ["something is good to know"]
    return at_rest("shuffle", "aggregate", "publish", needed=needed) | facts | {
        "collectors": list(collectors), "windows": windows, "open_windows": 2, "notes": notes,
    }  # fmt: skip


COLLECTOR: dict[str, Any] = {
    "name": "1a2b3c4d",
    "alive": True,
    "age": 0.5,
    "stored": 409_990,
    "stored_per_second": 710.0,
    "waiting": 3,
    "refused": {"late": 12, "malformed": 4},
}
SILENT: dict[str, Any] = COLLECTOR | {
    "name": "5e6f7081",
    "alive": False,
    "age": 95.0,
    "stored": 10,
    "stored_per_second": None,
    "waiting": None,
    "refused": {"late": 1},
}


def test_devices_that_report_for_themselves_have_collectors(
    served: ServedPage, watch: Watch, artefacts: Path
) -> None:
    days = "{count: 64, start: 2024-01-01, length: P1D}"
    job = served.deploy(count_job("phones", "devices: {}", epochs=days))
    served.publish(job, 1, [estimate(5_000)] * 9)
    for name, options in (VIEWS[1], VIEWS[2]):
        served.show_pipeline(job, collected(COLLECTOR, SILENT))
        seen = watch(served.address, **options)
        seen.open("?tab=operators")
        page = seen.page
        across, folded = page.locator("svg.across"), page.locator("svg.folded")
        for drawing in (across, folded):
            names = ["devices", "collectors", "shuffle", "aggregate", "publish"]
            expect(drawing.locator(".stage .name")).to_have_text(names)
            box = drawing.locator(".stage").nth(1)
            expect(box).to_contain_text("1 of 2 alive")
            expect(box).to_contain_text("710 stored/s")
            expect(box.locator(".alive")).to_have_count(1)
            expect(box.locator(".gone")).to_have_count(1)
            assert "collectors: 1 of 2 alive" in (drawing.get_attribute("aria-label") or "")
        assert_nothing_overlaps(page, "folded" if name == "phone" else "across")
        said = page.locator(".windows li")
        expect(said).to_have_text(
            [
                "Epoch 8 is open with 9,950 devices; it waits for collector 1a2b3c4d, "
                "12 s at most.",
                "Epoch 9 is open with 40 devices; it waits for its end.",
                "Collectors have stored 410,000 reports; 3 requests wait for Kafka; "
                "requests refused: 13 late, 4 malformed.",
                "Collector 5e6f7081 has been silent for 95 s.",
                "No record was refused.",
            ]
        )
        expect(page.locator(".windows .warn")).to_have_text(
            ["Collector 5e6f7081 has been silent for 95 s."]
        )
        page.locator(".pipeline").screenshot(path=artefacts / f"collectors-{name}.png")
        operators = page.locator(".operators")
        expect(operators).to_contain_text("Collectors1 alive")
        expect(operators).to_contain_text("Reports of no use6")
        expect(operators).not_to_contain_text("roducers")
        expect(operators.locator(".note").first).to_have_text("something is good to know")
        expect(operators).not_to_contain_text("[object")
        rows = operators.get_by_role("table", name="Collectors").locator("tbody tr")
        expect(rows.nth(0)).to_contain_text("12 late, 4 malformed")
        expect(rows.nth(1).locator(".bad")).to_have_text("silent for 95 s")
        width = page.viewport_size["width"] if page.viewport_size else 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=artefacts / f"collectors-operators-{name}.png", full_page=True)
        served.show_pipeline(job, collected())
        expect(across.locator(".stage").nth(1)).to_have_class("stage bad")
        expect(across.locator(".stage").nth(1)).to_contain_text("none")
        served.show_pipeline(job, collected(SILENT, needed=False))
        expect(across.locator(".stage").nth(1)).to_have_class("stage idle")
        expect(page.locator(".windows .warn")).to_have_count(0)
        seen.assert_well_behaved()
