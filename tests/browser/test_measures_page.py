"""Page of a job with measures: sentence, groups, drill-down, differences and cohorts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Route, expect

from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.panel_estimates import SMALL_GROUP
from dpstream.pipeline.results.measure_rows import rows_of
from tests.support.chromium import Watched
from tests.support.served_page import ServedPage
from tests.support.shown_jobs import MEASURED, panels

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Watch = Callable[..., Watched]

COHORTS = """
name: retention
epochs: {count: 6, start: 2026-01-01, length: P1M}
trust: shuffle
parameters: {epsilon: 1, delta: 1.0e-6}
shuffle: {minimum: 10000}
measures: {used: {type: active}}
attributes: {cohort: {first_seen: P1M}}
by: [cohort]
"""


def publish(served: ServedPage) -> None:
    """Publish epochs in which ios grows, android is constant, and web is too small."""
    job = served.deploy(MEASURED)
    estimates = []
    for epoch in range(1, 11):
        ios = 200.0 + 15 * epoch + 5 * math.sin(epoch)
        values = {
            "wau": ios + 100.0,
            "mau": 1.5 * ios + 150,
            "minutes": 14.5,
            "wau: platform=ios": ios,
            "wau: platform=android": 60.0,
            "wau: platform=other": 40.0,
            "wau: platform=web": math.nan,
            "wau: platform=ios, plan=pro": 0.25 * ios,
            "wau: platform=ios, plan=free": 0.75 * ios,
        }
        estimates.append(panels(job, values, SMALL_GROUP))
    served.publish(job, 1, estimates)


def top(place: Locator) -> float:
    box = place.bounding_box()
    assert box is not None
    return box["y"]


@pytest.mark.parametrize("width", [390, 1440])
def test_groups_have_one_axis_and_lead_to_the_next_breakdown(
    width: int, served: ServedPage, watch: Watch, artifacts: Path
) -> None:
    publish(served)
    seen = watch(served.address, viewport={"width": width, "height": 900})
    seen.open()
    seen.wait_for_epoch(10)
    page = seen.page
    expect(page.locator(".sentence")).to_contain_text("users were active in the week of August 3")
    expect(page.locator(".sentence")).to_contain_text("of ios users), ")
    expect(page.locator(".sentence")).to_contain_text("no number for platform web")
    expect(page.locator("#curves-title")).to_have_text("Users who were active, week by week")
    groups = page.locator(".breakdowns .group")
    expect(groups).to_have_count(4)
    expect(groups.first).to_contain_text("ios")
    expect(groups.last).to_contain_text("too few devices")
    # On one axis, the constant line of android is far below that of ios.
    lines, charts = page.locator(".group .estimate"), page.locator(".group .small-curve")
    ios, android = (top(lines.nth(place)) - top(charts.nth(place)) for place in range(2))
    assert ios + 20 < android
    page.screenshot(path=artifacts / f"measures-{width}.png", full_page=True)
    page.get_by_role("button", name="ios by plan").click()
    page.wait_for_url(re.compile("by=plan&where=platform=ios"))
    expect(groups).to_have_count(3)
    expect(page.locator(".where")).to_contain_text("Only platform ios")
    expect(page.locator(".breakdowns tbody tr").first).to_contain_text("free")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=artifacts / f"measures-drill-{width}.png", full_page=True)
    page.go_back()
    expect(groups).to_have_count(4)
    seen.assert_well_behaved()


@pytest.mark.parametrize("width", [390, 1440])
def test_table_shows_the_groups_of_any_week(
    width: int, served: ServedPage, watch: Watch, artifacts: Path
) -> None:
    publish(served)
    seen = watch(served.address, viewport={"width": width, "height": 900})
    seen.open("?epoch=4")
    seen.wait_for_epoch(10)
    page = seen.page
    picker, table = page.get_by_role("group", name="Week of the table"), page.locator(".rows")
    heading, charts = picker.locator("h3"), page.locator(".breakdowns .groups")
    expect(heading).to_have_text("Week of Jun 22, 2026")
    # 200 + 15 epoch + 5 sin(epoch), of 500 devices.
    expect(table.locator("tbody tr").first).to_contain_text("256")
    expect(table.locator("tbody tr").first).to_contain_text("51.2 %")
    expect(page.locator(".curves .legend .value")).to_contain_text("356")
    latest = charts.inner_text()
    assert "347" in latest
    picker.get_by_role("button", name="Next week").focus()
    for epoch in range(5, 10):
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(f"epoch={epoch}$"))
    expect(heading).to_have_text("Week of Jul 27, 2026")
    page.screenshot(path=artifacts / f"week-{width}.png", full_page=True)
    page.keyboard.press("Enter")
    expect(heading).to_have_text("Week of Aug 3, 2026")
    assert "epoch" not in page.url
    expect(table.locator("tbody tr").first).to_contain_text("347")
    # The latest week has no next one: the focus moves on.
    expect(picker.get_by_role("button", name="Previous week")).to_be_focused()
    expect(picker.get_by_role("button", name="Next week")).to_be_disabled()
    assert charts.inner_text() == latest
    page.go_back()
    expect(heading).to_have_text("Week of Jul 27, 2026")
    page.locator(".curves .chart").click()
    page.wait_for_url(re.compile("epoch=[3-8]$"))
    page.locator(".curves .chart").press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("epoch=1$"))
    expect(heading).to_have_text("Week of Jun 1, 2026")
    expect(picker.get_by_role("button", name="Previous week")).to_be_disabled()
    picker.get_by_role("button", name="Latest week").click()
    expect(heading).to_have_text("Week of Aug 3, 2026")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    seen.assert_well_behaved()


def test_groups_have_a_ground_truth_in_demonstrations(served: ServedPage, watch: Watch) -> None:
    publish(served)
    seen = watch(served.address)

    def with_ground_truth(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        for row in body["rows"]:
            row["ground_truth"] = {"2": 333.0}
        route.fulfill(response=response, json=body)

    seen.page.route("**/table?*", with_ground_truth)
    seen.open()
    seen.wait_for_epoch(10)
    table = seen.page.locator(".rows")
    expect(table.locator("th").last).to_have_text("ground truth, not private")
    expect(table.locator("tbody tr").first.locator("td").last).to_have_text("333")
    expect(table.locator("tbody tr").nth(1).locator("td").last).to_have_text("\N{EN DASH}")


def test_measure_and_difference_are_in_the_address(
    served: ServedPage, watch: Watch, artifacts: Path
) -> None:
    publish(served)
    seen = watch(served.address)
    seen.open("?measure=minutes")
    seen.wait_for_epoch(10)
    page = seen.page
    expect(page.locator("#curves-title")).to_contain_text("Mean total duration per user")
    page.get_by_label("Measure").select_option("wau")
    expect(page.locator("#curves-title")).to_contain_text("Users who were active")
    expect(page.locator(".curves .legend .value")).to_have_text("447 (427 to 467)")
    page.get_by_role("tab", name="Difference").click()
    page.get_by_label("First group").select_option(label="platform android")
    page.get_by_label("Second group").select_option(label="platform ios")
    page.wait_for_url(re.compile("pair=3,2"))
    expect(page.locator(".breakdown")).to_contain_text("points more of")
    expect(page.locator(".difference .zero")).to_have_count(1)
    page.screenshot(path=artifacts / "difference.png", full_page=True)
    page.get_by_role("tab", name="Ratios").click()
    page.wait_for_url(re.compile("show=ratios"))
    expect(page.locator(".breakdown")).to_contain_text("stickiness: wau / mau")
    expect(page.locator(".breakdown")).to_contain_text("The ratio is 0.667, between")
    expect(page.locator(".difference .band")).to_have_count(1)
    page.screenshot(path=artifacts / "ratios.png", full_page=True)
    seen.assert_well_behaved()


def test_cohorts_form_a_triangle(served: ServedPage, watch: Watch, artifacts: Path) -> None:
    """Retention falls month by month in each cohort of 12,000 users."""
    job = served.deploy(COHORTS)
    cells = [each for each in rows_of(job) if "cohort" in each.attributes]
    estimates = []
    for epoch in range(1, 5):
        values = []
        for row in cells:
            year, _, month = row.attributes["cohort"].partition("-")
            first = int(month) if year == "2026" else 99
            users = 12_000.0 if first <= epoch else 0.0
            share = 0.8 - 0.2 * (epoch - first)
            values.append(users * (1 - share if row.value == "no" else share))
        estimates.append(ItemEstimates(np.array(values), 90.0, 176.4, 20_000, 20_000))
    served.publish(job, 1, estimates)
    seen = watch(served.address)
    seen.open("?show=cohorts")
    seen.wait_for_epoch(4)
    rows = seen.page.locator(".cohorts tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.first.locator("td")).to_have_text(
        ["2026-01", "12,000", "80.0", "60.0", "40.0", "20.0"]
    )
    expect(rows.last.locator("td").nth(2)).to_have_text("80.0")
    seen.page.screenshot(path=artifacts / "cohorts.png", full_page=True)
    seen.assert_well_behaved()
