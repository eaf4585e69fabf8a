"""Texts of the live page: wording, dates, trust, and access."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.results.known_digits import known_count
from dpstream.pipeline.serve.access import AccessSettings
from dpstream.pipeline.serve.passwords import HashedPassword
from tests.support.chromium import Watched
from tests.support.served_page import ServedPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Watch = Callable[..., Watched]

STUDENTS = """
name: oulad
protocol: value_stream
parameters: {epsilon: 1, max_changes: 2}
epochs: {count: 64, start: 2013-02-25, length: P1W, timezone: Europe/London}
title: Students enrolled
unit: students
description: In at least one course.
"""
WRITTEN = """window.written = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.written.push(text);
  return draw.call(this, text, ...rest);
};"""
"""Records text drawn onto canvases, which is not readable otherwise."""


def estimate(value: float, half: float) -> Estimate:
    return Estimate.around(value, half / 1.96, half, 20_000, 20_000)


def test_estimates_are_capped_at_the_population(
    served: ServedPage, watch: Watch, artifacts: Path
) -> None:
    """Sentence, legend, table and curve agree on an estimate above the number of users."""
    job = served.deploy(STUDENTS)
    served.publish(job, 1, [estimate(19_000.0, 900.0), estimate(21_000.0, 2_345.6)])
    served.publish(job, 3, [estimate(-500.0, 1_234.5)])
    for width in (390, 1440):
        seen = watch(served.address, viewport={"width": width, "height": 900})
        seen.open("?range=1-2")
        seen.wait_for_epoch(2)
        page = seen.page
        expect(page.locator(".legend .value")).to_have_text("20,000 (18,600 to 20,000)")
        assert seen.source("band-0")["y"] == [19_900.0, 20_000.0, 18_654.4, 18_100.0]
        page.get_by_text("The same numbers as a table").click()
        cells = page.locator(".curves tbody tr").first.locator("td")
        expect(cells.nth(5)).to_have_text("20,000")
        expect(cells.nth(6)).to_have_text("18,600 to 20,000")
        page.screenshot(path=artifacts / f"cut-{width}.png", full_page=True)
        seen.open()
        seen.wait_for_epoch(3)
        expect(page.locator(".sentence")).to_contain_text("Fewer than 800 students enrolled")
        expect(page.locator(".legend .value")).to_have_text("fewer than 800")
        seen.assert_well_behaved()


def test_page_describes_estimates_in_words_and_dates(
    served: ServedPage, watch: Watch, artifacts: Path, tmp_path: Path
) -> None:
    job = served.deploy(STUDENTS)
    served.publish(job, 1, [estimate(5_000.0 + 120 * epoch, 900.0) for epoch in range(1, 20)])
    served.publish(job, 20, [None])
    # The viewer's time zone makes no difference.
    seen = watch(served.address, timezone_id="America/New_York")
    seen.page.add_init_script(WRITTEN)
    seen.open()
    seen.wait_for_epoch(20)
    page = seen.page
    expect(page.get_by_role("button", name="Log out")).to_be_hidden()
    expect(page.locator("h1")).to_contain_text("Students enrolled")
    expect(page.locator(".sentence")).to_have_text(
        "About 7,280 students enrolled in the week of July 1, 2013 (36\N{NO-BREAK SPACE}%; "
        "95\N{NO-BREAK SPACE}% CI 6,380 to 8,180). No estimate for the week of July 8, 2013: fewer "
        "than 100 devices reported."
    )
    expect(page.locator(".overview")).not_to_contain_text("value_stream")
    expect(page.locator(".legend .at")).to_have_text("Week of Jul 8, 2013")
    page.wait_for_function("() => window.written.some((text) => text === 'Jun 3')")
    written = set(page.evaluate("window.written"))
    assert {"Mar 4, 2013", "May 20", "Jun 3", "students", "week (Europe/London)", "0"} <= written
    assert page.evaluate("Bokeh.documents[0].get_model_by_name('values').start") == 0
    page.get_by_label("Start axis at zero").uncheck()
    assert page.evaluate("Bokeh.documents[0].get_model_by_name('values').start") > 3_000

    # The trusted parties are drawn, with text for screen readers.
    drawn = page.locator(".trust").get_by_role("img")
    expect(drawn).to_have_attribute("aria-label", re.compile("shuffler .*: not trusted"))
    expect(page.locator(".trust .boundary:visible")).to_have_count(1)
    expect(page.locator(".trust")).to_contain_text("own device and its producer: none")

    # The view is saved as a file.
    page.get_by_role("button", name="Last 20").click()
    page.wait_for_url("**range=latest-20**")
    with page.expect_download() as download:
        page.get_by_text("Save as CSV").click()
    download.value.save_as(tmp_path / "seen.csv")
    header, *rows = csv.reader((tmp_path / "seen.csv").read_text().splitlines())
    assert header[:4] == ["job", "epoch", "start", "series"]
    assert [int(row[1]) for row in rows] == list(range(1, 21))
    # Daylight saving time starts with the sixth week; in every time zone of the viewer it is a
    # Monday.
    assert [rows[4][2], rows[5][2]] == ["2013-03-25", "2013-04-01"]
    assert float(rows[0][4]) == 5_120
    assert rows[19][4:8] == ["", "", "", "suppressed"]
    page.screenshot(path=artifacts / "words.png", full_page=True)

    # The embedded view shows only the curve.
    embedded = watch(served.address)
    embedded.page.goto(f"{served.address}/?embed=1")
    embedded.wait_for_epoch(20)
    expect(embedded.page.locator(".chart")).to_be_visible()
    expect(embedded.page.locator(".sentence")).to_be_visible()
    for hidden in (".top", "footer", ".tabs", ".tiles", ".privacy", ".card-foot"):
        expect(embedded.page.locator(hidden).first).to_be_hidden()
    assert embedded.page.locator(".whole").get_attribute("href") == "/"
    embedded.page.screenshot(path=artifacts / "embedded.png", full_page=True)
    seen.assert_well_behaved()
    embedded.assert_well_behaved()


def test_times_have_zones_and_values_significant_digits(served: ServedPage, watch: Watch) -> None:
    seen = watch(served.address, timezone_id="Asia/Tokyo")
    seen.open()
    written = """async () => {
      const { stamp } = await import("/static/dates.js");
      const { error, fitted, said, valueText, valueOf } = await import("/static/format.js");
      const at = (zone, days) => stamp({ calendar: zone && { zone, days } }, 1_700_000_000_000);
      const value = fitted("value", valueOf("value"), 50, 55);
      return [at("America/New_York", false), at("Asia/Kolkata", false), at("Asia/Tokyo", true),
        at(null, true), value(52.1234), error(value, 52.1234, 50, 55), valueOf("value")(52.1234),
        fitted("value", valueOf("value"), 1e-3, 2e-3)(0.00123456),
        valueText("value", valueOf("value"), 1234.56, 1000, 1400),
        fitted("users", String, 0, 9)(1.25),
        said("users", valueOf("users"), 60, -30, 140.2).interval,
        said("users", valueOf("users"), -16, -30, -2).interval,
        valueText("users", valueOf("users"), -1700, -3300, -100),
        valueText("users", valueOf("users"), 9, -3300, 320),
        valueText("users", valueOf("users"), 330, 198, 462, 202),
        valueText("users", valueOf("users"), 90, -310, 490, 202),
        valueText("change", valueOf("users"), -90, -310, 130)];
    }"""
    assert [
        str(each).replace("\N{NO-BREAK SPACE}", " ") for each in seen.page.evaluate(written)
    ] == [
        "2023-11-14T17:13:20-05:00",
        "2023-11-15T03:43:20+05:30",
        "2023-11-15",
        "",
        "52.1",
        "(50 to 55)",
        "52.12",
        "0.00123",
        "1,235 (1,000 to 1,400)",
        "1.25",
        "0 to 141",
        "0 to 1",
        "fewer than 100",
        "fewer than 400",
        "202 (190 to 202)",
        "at most 202",
        "\N{MINUS SIGN}90 ± 220",
    ]
    random = np.random.default_rng(7)
    counts = [
        [
            round(float(value), 3),
            round(float(value - half), 3),
            round(float(value + half), 3),
            people,
        ]
        for value, half, people in zip(
            random.normal(0, 10 ** random.uniform(0, 6, 500)),
            10 ** random.uniform(0, 5, 500),
            random.integers(1, 1_000_000, 500).tolist(),
            strict=True,
        )
    ]
    shown = """async (counts) => {
      const { knownCount } = await import("/static/format.js");
      const known = counts.map((each) => knownCount(...each));
      return known.map(({ value, low, high }) => [value, low, high]);
    }"""
    known = [known_count(*each) for each in counts]
    assert seen.page.evaluate(shown, counts) == [
        [each.value, each.low, each.high] for each in known
    ]
    seen.assert_well_behaved()


def test_login_opens_the_linked_view(served: ServedPage, watch: Watch, artifacts: Path) -> None:
    secret = "correct horse battery"
    served.publish(served.deploy(STUDENTS), 1, [estimate(5_000.0, 900.0)] * 3)
    access = AccessSettings(HashedPassword.of(secret, cost=1 << 10))
    served.settings = replace(served.settings, access=access)
    served.stop()
    served.start()
    seen = watch(served.address)
    page = seen.page
    page.goto(f"{served.address}/?job=oulad&range=latest-20")
    expect(page.get_by_label("Password")).to_be_focused()
    page.keyboard.type("wrong password")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Wrong password.")
    page.screenshot(path=artifacts / "login.png")
    page.get_by_label("Password").fill(secret)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".sentence strong")).to_have_text("5,000")
    assert page.url.endswith("/?job=oulad&range=latest-20")
    assert page.evaluate("document.cookie") == ""
    # After logout the same page asks for the password.
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    page.get_by_label("Password").fill(secret)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".sentence strong")).to_have_text("5,000")
    assert page.url.endswith("/?job=oulad&range=latest-20")
    # The server restarts and loses its sessions.
    seen.cable_cut = True
    served.stop()
    served.start()
    expect(page.get_by_label("Password")).to_be_visible()
    assert "next=" in page.url
