"""Live page in a real browser, from a server in this process."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, expect

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.routes import Route
from dpstream.pipeline.results.expected_errors import widening
from dpstream.topics.names import FURTHER_REPORTS, HOPS, Role
from tests.support import shown_jobs
from tests.support.chromium import Watched
from tests.support.served_page import ServedPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Watch = Callable[..., Watched]

COUNT = """
name: enrollment
protocol: future_rand
parameters: {epsilon: 4, max_changes: 4}
epochs: {count: 64}
population: students
budget: {epsilon: 8}
"""


def item_job(labels: list[str], epochs: int = 64) -> str:
    return (
        "name: transport\nprotocol: hadamard_values\n"
        f"parameters: {{epsilon: 4, max_changes: 2, domain: {json.dumps(labels)}}}\n"
        f"epochs: {{count: {epochs}}}\n"
    )


def estimate(value: float, half: float = 200.0) -> Estimate:
    return Estimate(value, half / 1.96, value - half, value + half, 20_000, 20_000)


def items(values: list[float] | NDArray[np.float64]) -> ItemEstimates:
    return ItemEstimates(np.asarray(values, np.float64), 90.0, 176.4, 20_000, 20_000)


def wavy(epoch: int) -> Estimate:
    return estimate(6_000 + 3_000 * float(np.sin(epoch / 6)))


def pixels(place: Locator) -> NDArray[np.float64]:
    """Return the displayed pixels, shape (height, width, 3), from 0 to 1."""
    found: NDArray[np.float64] = imread(io.BytesIO(place.screenshot()))[..., :3]
    return found


BLUE = np.array([0, 0x72, 0xB2]) / 255
"""Color of the first curve, in the light theme."""


def band_columns(place: Locator) -> NDArray[np.intp]:
    """Return the columns where the first curve or its band is visible."""
    seen = pixels(place)
    blue = seen[..., 2] - seen[..., 0] > 0.1
    return np.flatnonzero(blue.any(axis=0))


def line_columns(place: Locator) -> NDArray[np.intp]:
    """Return the columns where the line of the first curve is visible."""
    blue = np.abs(pixels(place) - BLUE).max(axis=2) < 0.15
    return np.flatnonzero(blue.any(axis=0))


def stages(epoch: int, *, up: bool = True) -> dict[str, Any]:
    def stage(name: str, lag: int) -> dict[str, Any]:
        worker = {
            "name": f"{name}-1",
            "up": up or name != "shuffle",
            "age": 0.4 if up else 31.0,
            "partitions": [0, 1],
            "records_per_second": 12.0,
            "reports_per_second": 48_000.0,
        }
        waiting = 0.7 if lag else None
        return {
            "stage": name,
            "reads": Route().stages[name],
            "workers": [worker],
            "lag": lag,
            "waiting": waiting,
            "epoch": epoch,
            "up": worker["up"],
        }

    window = {"epoch": epoch + 1, "reports": 14_032, "waits_for": ["north"], "grace_left": 41.0}
    return {
        "at": 1_700_000_000_000 + epoch,
        "workers_needed": True,
        "stages": [stage("shuffle", 3), stage("aggregate", 0), stage("publish", 0)],
        "windows": [window],
        "open_windows": 1,
        "dead_letters": {"fingerprint": 2},
        "issues": [] if up else ["no shuffle worker is up"],
        "notes": [],
    }


def test_curve_and_confidence_band_grow_and_show_gaps(
    served: ServedPage, watch: Watch, artifacts: Path
) -> None:
    job = served.deploy(COUNT)
    constant = [estimate(5_000)] * 4
    served.publish(job, 1, [*constant, None, None, estimate(5_000)])
    seen = watch(served.address)
    seen.open()
    chart = seen.page.locator(".chart")
    seen.wait_for_epoch(7)
    assert seen.source("estimate-0")["y"] == [5_000.0] * 4 + [None, None, 5_000.0]
    # One polygon around four epochs; the seventh epoch, between gaps, is a line between both ends.
    band = seen.source("band-0")
    assert band["x"] == [1, 2, 3, 4, 4, 3, 2, 1]
    assert band["y"] == [5_200.0] * 4 + [4_800.0] * 4
    assert seen.source("alone-0") == {"x": [7], "low": [4_800.0], "high": [5_200.0]}
    seen.wait_for_paint()
    before = band_columns(chart)

    served.publish(job, 8, [estimate(5_000)] * 5)
    seen.wait_for_epoch(12)
    band = seen.source("band-0")
    assert band["x"][8] is None
    assert band["x"][9:15] == [7, 8, 9, 10, 11, 12]
    expect(seen.page.locator(".sentence strong")).to_have_text("5,000")
    expect(seen.page.locator(".legend .value")).to_have_text("5,000 (4,800 to 5,200)")
    expect(seen.page.locator(".tile").nth(1)).to_contain_text("12 of 64")
    seen.wait_for_paint()
    after = band_columns(chart)
    assert after[-1] > before[-1]
    # The gap, three of eleven epochs wide, stays empty.
    widest = np.diff(after).max() / (after[-1] - after[0])
    assert 0.2 < widest < 3 / 11
    # The line has grown too: it is visible along the last four of eleven epochs.
    line = line_columns(chart)
    grown = after[-1] - (after[-1] - after[0]) * 4 // 11
    assert (line > grown).sum() > 0.95 * (after[-1] - grown)
    chart.screenshot(path=artifacts / "curve-with-gap.png")

    # The band for all epochs at once is drawn on request, with its coverage.
    assert seen.source("wide-0") == {"x": [], "y": []}
    seen.page.get_by_label("Simultaneous band").check()
    expect(seen.page.locator(".key")).to_contain_text("for all 64 epochs of a horizon at once")
    wide = 200 * widening(64)
    outer = seen.source("wide-0")
    assert outer["x"] == band["x"]
    ends = [round(y) for y in outer["y"] if y is not None]
    assert set(ends) == {round(5_000 - wide), round(5_000 + wide)}
    served.publish(job, 13, [None, estimate(5_000)])
    seen.wait_for_epoch(14)
    assert seen.source("far-0")["x"] == seen.source("alone-0")["x"] == [14]
    assert seen.source("far-0")["high"] == [pytest.approx(5_000 + wide)]
    seen.wait_for_paint()
    seen.page.screenshot(path=artifacts / "all-epochs-at-once.png", full_page=True)
    seen.page.get_by_label("Simultaneous band").uncheck()
    expect(seen.page.locator(".key")).not_to_contain_text("horizon")
    assert seen.source("wide-0") == {"x": [], "y": []}
    seen.assert_well_behaved()


def test_items_are_chosen_by_keyboard_and_stored_in_the_url(
    served: ServedPage, watch: Watch
) -> None:
    labels = ["walk", "bus", "bicycle", "<img src=x onerror=alert(1)>", *map(str, range(40))]
    job = served.deploy(item_job(labels))
    values = [1_000.0 - 20 * place for place in range(len(labels))]
    served.publish(job, 1, [items(values)] * 9)
    seen = watch(served.address)
    seen.open()
    page = seen.page
    page.wait_for_function(
        "() => Bokeh.documents[0]?.get_model_by_name('estimate-4')?.data.x.length"
    )

    # The first Tab stop is the link that skips the header.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    search = page.get_by_label("Search items")
    search.focus()
    page.keyboard.type("bi")
    rows = page.locator(".row:visible")
    expect(rows).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expect(page.locator(".legend .label")).to_have_count(4)
    expect(page.locator(".legend")).not_to_contain_text("bicycle")
    assert "series=1,2,4,5" in page.url
    page.keyboard.press("Space")
    expect(page.locator(".legend .label").last).to_have_text("bicycle")
    page.go_back()
    expect(page.locator(".legend .label")).to_have_count(4)

    # Names are escaped, not interpreted as markup.
    search.fill("")
    expect(page.get_by_role("option", name="<img")).to_be_visible()
    listbox = page.get_by_role("listbox")
    listbox.focus()
    page.keyboard.press("End")
    last = page.locator(".row.active")
    expect(last).to_have_attribute("aria-posinset", str(len(labels)))
    assert listbox.get_attribute("aria-activedescendant") == last.get_attribute("id")
    page.keyboard.press("Space")
    expect(page.locator(".legend .label").last).to_have_text("39")

    # The address alone restores the same view.
    again = watch(served.address)
    again.open(page.url.removeprefix(served.address).lstrip("/"))
    expect(again.page.locator(".legend .label")).to_have_count(5)
    expect(again.page.locator(".legend .label").last).to_have_text("39")
    seen.assert_well_behaved()
    again.assert_well_behaved()


def test_pipeline_view_shows_a_worker_that_dies_and_returns(
    served: ServedPage, watch: Watch
) -> None:
    job = served.deploy(COUNT)
    served.publish(job, 1, [wavy(1)])
    served.show_pipeline(job, stages(1))
    seen = watch(served.address)
    seen.open("?tab=operators")
    drawing = seen.page.locator(".drawing svg.across")
    expect(drawing).to_contain_text("3 waiting")
    expect(drawing.locator(".up")).to_have_count(3)
    served.show_pipeline(job, stages(2, up=False))
    expect(drawing.locator(".gone")).to_have_count(1)
    expect(drawing.locator(".stage.bad")).to_contain_text("0 of 1 worker up")
    expect(seen.page.locator(".overview .issues li")).to_have_text("no shuffle worker is up")
    served.show_pipeline(job, stages(3))
    expect(drawing.locator(".up")).to_have_count(3)
    expect(drawing.locator(".gone")).to_have_count(0)
    seen.assert_well_behaved()


def test_page_recovers_after_outage_and_restart(served: ServedPage, watch: Watch) -> None:
    job = served.deploy(COUNT)
    served.publish(job, 1, list(map(wavy, range(1, 11))))
    seen = watch(served.address)
    seen.open()
    seen.wait_for_epoch(10)
    page = seen.page
    page.evaluate("window.before = true")

    seen.cable_cut = True
    served.cut()
    expect(page.locator("#warning")).to_contain_text("Connection lost")
    assert page.evaluate("getComputedStyle(document.querySelector('.tile .statistic')).filter") == (
        "grayscale(1)"
    )
    served.publish(job, 11, list(map(wavy, range(11, 21))))
    assert seen.source("estimate-0")["x"][-1] == 10
    served.mend()
    seen.wait_for_epoch(20)
    assert seen.source("estimate-0")["x"] == list(range(1, 21))
    expect(page.locator("#warning")).to_be_hidden()
    expect(page.locator("body.stale")).to_have_count(0)
    # The page caught up without reloading.
    assert page.evaluate("window.before")

    served.stop()
    expect(page.locator("#warning")).to_contain_text("Connection lost")
    served.publish(job, 21, list(map(wavy, range(21, 26))))
    served.start()
    page.wait_for_function("() => !window.before")
    seen.wait_for_epoch(25)
    assert seen.source("estimate-0")["x"] == list(range(1, 26))
    expect(page.locator("#connection")).to_have_text("live")
    seen.assert_well_behaved()


def test_quantiles_and_detected_items_are_shown(served: ServedPage, watch: Watch) -> None:
    hours = served.deploy(shown_jobs.HOURS)
    seen = watch(served.address)
    seen.open()
    page = seen.page
    # The items are unknown before the first estimate.
    words = served.deploy(shown_jobs.WORDS)
    other = watch(served.address)
    other.open("?job=words")
    expect(other.page.locator(".sentence")).to_contain_text("No estimate yet")
    served.publish(words, 1, [shown_jobs.found(i17=40.0, i99=35.0)])
    expect(other.page.locator(".legend .label")).to_have_count(2)
    expect(other.page.locator(".topitems tbody tr")).to_have_count(2)
    expect(other.page.locator(".topitems")).to_contain_text("Detection threshold: about 30 users")
    served.publish(words, 2, [shown_jobs.found(i17=41.0, i99=36.0)])
    other.wait_for_epoch(2)

    served.publish(hours, 1, [shown_jobs.numbers(1, 5, 30, 20, 9, 3, 2, 1)] * 3)
    seen.wait_for_epoch(3)
    expect(page.locator(".sentence")).to_contain_text("Half of the users have values below")
    expect(page.locator(".quantiles tbody tr")).to_have_count(3)
    expect(page.locator(".topitems tbody tr")).to_have_count(8)
    # Quantiles come first in the list: the median with its band, others on request.
    expect(page.locator(".row").first).to_have_attribute("title", "first quartile")
    expect(page.locator(".legend .label")).to_have_text(["median"])
    page.get_by_role("option", name="third quartile").click()
    expect(page.locator(".legend .label")).to_have_text(["median", "third quartile"])
    # Users and values of the domain do not share an axis.
    page.get_by_role("option", name="20 to 30").click()
    expect(page.locator(".legend .label")).to_have_text(["20 to 30"])
    expect(page.locator(".legend .value")).to_contain_text("30 (20 to 40)")
    seen.assert_well_behaved()
    other.assert_well_behaved()


def test_means_over_windows_are_chosen_on_the_page(served: ServedPage, watch: Watch) -> None:
    job = served.deploy(
        "name: by-hour\nprotocol: sampled_response\nparameters: {epsilon: 4, reports: 1}\n"
        "epochs: {count: 64}\nroll_up: [4, 8]\n"
    )
    served.publish(job, 1, [estimate(1_000.0 * epoch) for epoch in range(1, 9)])
    seen = watch(served.address)
    seen.open()
    seen.wait_for_epoch(8)
    choice = seen.page.get_by_label("Epochs or means over longer periods")
    expect(choice.locator("option")).to_have_text(
        ["Each epoch", "Mean over 4 epochs", "Mean over 8 epochs"]
    )
    choice.select_option("4")
    expect(seen.page.locator("#curves-title")).to_contain_text("mean over 4 epochs")
    assert "interval=4" in seen.page.url
    seen.page.wait_for_function(
        "() => Bokeh.documents[0]?.get_model_by_name('estimate-0')?.data.x.length === 2"
    )
    found = seen.source("estimate-0")
    assert (found["x"], found["y"]) == ([4, 8], [2_500.0, 6_500.0])
    # The interval shrinks with the square root of the window.
    expect(seen.page.locator(".legend .value")).to_have_text("6,500 (6,400 to 6,600)")
    with seen.page.expect_download() as download:
        seen.page.get_by_text("Save as CSV").click()
    header, *rows = csv.reader(download.value.path().read_text().splitlines())
    assert header[1:3] == ["first_epoch", "last_epoch"]
    assert [row[1:3] for row in rows] == [["1", "4"], ["5", "8"]]
    # A new window is requested when its last epoch closes.
    served.publish(job, 9, [estimate(9_000.0)] * 4)
    seen.page.wait_for_function(
        "() => Bokeh.documents[0]?.get_model_by_name('estimate-0')?.data.x.length === 3"
    )
    seen.page.go_back()
    expect(seen.page.locator("#curves-title")).to_contain_text("epoch by epoch")
    seen.assert_well_behaved()


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
            "parameters: {epsilon: 4, max_changes: 4}",
            f"epochs: {epochs}",
            *lines,
        )
    )


_ALL = Route((Role.REPORTS, *FURTHER_REPORTS), HOPS, shared=True)
_READS = _ALL.stages | {"aggregate": Role.SHUFFLED}


def at_rest(*stages: str, issues: tuple[str, ...] = (), needed: bool = False) -> dict[str, Any]:
    silent = {
        "name": "shuffle-1",
        "up": False,
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
                "up": False,
            }
            for stage in stages
        ],
        "windows": [],
        "open_windows": 0,
        "dead_letters": {},
        "issues": list(issues),
        "notes": [],
    }


_BOXES = """(name) => {
  const drawing = document.querySelector("svg." + name);
  const parts = drawing.querySelectorAll(".stage rect, .topic path:not(.rim)");
  return [drawing, ...parts].map((part) => {
    const { left, top, right, bottom } = part.getBoundingClientRect();
    return [left, top, right, bottom];
  });
}"""
"""Boxes of the pipeline drawing, and of every stage and topic in it."""


def assert_nothing_overlaps(page: Page, drawing: str) -> None:
    """Check that stages and topics do not overlap and lie inside the drawing."""
    # In a single evaluation, because the page may still move.
    view, *boxes = page.evaluate(_BOXES, drawing)
    for index, (left, top, right, bottom) in enumerate(boxes):
        assert view[0] <= left <= right <= view[2]
        assert view[1] <= top <= bottom <= view[3]
        for other in boxes[:index]:
            across = right <= other[0] or other[2] <= left
            assert across or bottom <= other[1] or other[3] <= top


def collected(*collectors: dict[str, Any], needed: bool = True) -> dict[str, Any]:
    windows = [
        {"epoch": 8, "reports": None, "devices": 9_950, "grace_left": 12.0,
         "waits_for": ["collector 1a2b3c4d"]},
        {"epoch": 9, "reports": None, "devices": 40, "grace_left": None,
         "waits_for": ["collector 1a2b3c4d"]},
    ]  # fmt: skip
    facts: dict[str, Any] = {
        "producers": None,
        "missing_producers": [],
        "late_reports": 0,
        "unusable_reports": 6,
    }
    notes = ["something is good to know"]
    return at_rest("shuffle", "aggregate", "publish", needed=needed) | facts | {
        "collectors": list(collectors), "windows": windows, "open_windows": 2, "notes": notes,
    }  # fmt: skip


COLLECTOR: dict[str, Any] = {
    "name": "1a2b3c4d",
    "up": True,
    "age": 0.5,
    "stored": 409_990,
    "stored_per_second": 710.0,
    "waiting": 3,
    "rejected": {"late": 12, "malformed": 4},
}
SILENT: dict[str, Any] = COLLECTOR | {
    "name": "5e6f7081",
    "up": False,
    "age": 95.0,
    "stored": 10,
    "stored_per_second": None,
    "waiting": None,
    "rejected": {"late": 1},
}


def test_device_job_page_has_collectors(served: ServedPage, watch: Watch, artifacts: Path) -> None:
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
            expect(box).to_contain_text("1 of 2 up")
            expect(box).to_contain_text("710 stored/s")
            expect(box.locator(".up")).to_have_count(1)
            expect(box.locator(".gone")).to_have_count(1)
            assert "collectors: 1 of 2 up" in (drawing.get_attribute("aria-label") or "")
        assert_nothing_overlaps(page, "folded" if name == "phone" else "across")
        windows = page.locator(".windows li")
        expect(windows).to_have_text(
            [
                "Epoch 8 is open with 9,950 devices; it waits for collector 1a2b3c4d, "
                "for at most 12 s.",
                "Epoch 9 is open with 40 devices; it waits for the end of the epoch.",
                "Collectors stored 410,000 reports; 3 requests are waiting for Kafka; "
                "rejected requests: 13 late, 4 malformed.",
                "Collector 5e6f7081: no heartbeat for 95 s.",
                "No records were rejected.",
            ]
        )
        expect(page.locator(".windows .warn")).to_have_text(
            ["Collector 5e6f7081: no heartbeat for 95 s."]
        )
        page.locator(".pipeline").screenshot(path=artifacts / f"collectors-{name}.png")
        operators = page.locator(".operators")
        expect(operators).to_contain_text("Collectors1 up")
        expect(operators).to_contain_text("Invalid reports6")
        expect(operators).not_to_contain_text("roducers")
        expect(operators.locator(".note").first).to_have_text("something is good to know")
        expect(operators).not_to_contain_text("[object")
        rows = operators.get_by_role("table", name="Collectors").locator("tbody tr")
        expect(rows.nth(0)).to_contain_text("12 late, 4 malformed")
        expect(rows.nth(1).locator(".bad")).to_have_text("no heartbeat for 95 s")
        width = page.viewport_size["width"] if page.viewport_size else 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=artifacts / f"collectors-operators-{name}.png", full_page=True)
        served.show_pipeline(job, collected())
        expect(across.locator(".stage").nth(1)).to_have_class("stage bad")
        expect(across.locator(".stage").nth(1)).to_contain_text("none")
        served.show_pipeline(job, collected(SILENT, needed=False))
        expect(across.locator(".stage").nth(1)).to_have_class("stage idle")
        expect(page.locator(".windows .warn")).to_have_count(0)
        seen.assert_well_behaved()
