"""Live page in a real browser: the list of jobs, idle jobs, two side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.jobs.routes import Route
from dpstream.topics.names import FURTHER_REPORTS, HOPS, Role
from tests.support.chromium import Watched
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
            "parameters: {epsilon: 4, max_changes: 4}",
            f"epochs: {epochs}",
            *lines,
        )
    )


def estimate(value: float, half: float = 200.0) -> Estimate:
    return Estimate(value, half / 1.96, value - half, value + half, 20_000, 20_000)


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
