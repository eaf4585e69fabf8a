"""The live page for those who read it: words, dates, trust, and who may see it."""

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
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.sealed import SHARERS
from dpstream.pipeline.jobs.sealing_keys import make_key_pair
from dpstream.pipeline.serve.access import AccessSettings
from dpstream.pipeline.serve.passwords import HashedPassword
from tests.support.chromium import Watched
from tests.support.served_page import ServedPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Watch = Callable[..., Watched]

STUDENTS = """
name: oulad
protocol: value_stream
parameters: {epsilon: 1, changes: 2}
epochs: {count: 64, start: 2013-02-25, length: P1W, timezone: Europe/London}
title: Students enrolled
unit: students
description: In at least one course.
"""
CLINIC = """
name: clinic
protocol: hadamard_values
parameters: {epsilon: 4, changes: 2, domain: [chir, kard, uro]}
epochs: {count: 64, start: 2024-03-25, length: P1D, timezone: Europe/Berlin}
title: Departments visited
unit: patients
labels: {chir: Chirurgie, kard: "Kardiologie, Angiologie und Intensivmedizin"}
"""
WRITTEN = """window.written = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.written.push(text);
  return draw.call(this, text, ...rest);
};"""
"""What is written onto a canvas can be read nowhere else."""


def estimate(value: float, half: float) -> Estimate:
    return Estimate.around(value, half / 1.96, half, 20_000, 20_000)


def test_a_reader_is_told_in_words_and_dates(
    served: ServedPage, watch: Watch, artefacts: Path, tmp_path: Path
) -> None:
    job = served.deploy(STUDENTS)
    served.publish(job, 1, [estimate(5_000.0 + 120 * epoch, 900.0) for epoch in range(1, 20)])
    served.publish(job, 20, [None])
    # Wherever the reader lives.
    seen = watch(served.address, timezone_id="America/New_York")
    seen.page.add_init_script(WRITTEN)
    seen.open()
    seen.wait_for_epoch(20)
    page = seen.page
    expect(page.get_by_role("button", name="Log out")).to_be_hidden()
    expect(page.locator("h1")).to_contain_text("Students enrolled")
    expect(page.locator(".sentence")).to_have_text(
        "About 7,280 students enrolled in the week of 1 July 2013 (36\N{NO-BREAK SPACE}%), between "
        "6,380 and 8,180. Nothing can be said about the week of 8 July 2013: too few devices took "
        "part, so nothing was released."
    )
    expect(page.locator(".overview")).not_to_contain_text("value_stream")
    expect(page.locator(".legend .at")).to_have_text("Week of 8 Jul 2013")
    page.wait_for_function("() => window.written.some((text) => text === '3 Jun')")
    written = set(page.evaluate("window.written"))
    assert {"4 Mar 2013", "20 May", "3 Jun", "students", "week (Europe/London)", "0"} <= written
    assert page.evaluate("Bokeh.documents[0].get_model_by_name('values').start") == 0
    page.get_by_label("Axis from zero").uncheck()
    assert page.evaluate("Bokeh.documents[0].get_model_by_name('values').start") > 3_000

    # Who is trusted is drawn, and said to those who do not see it.
    drawn = page.locator(".trust").get_by_role("img")
    expect(drawn).to_have_attribute("aria-label", re.compile("shuffle stage .*: need not be trust"))
    expect(page.locator(".trust .boundary:visible")).to_have_count(1)
    expect(page.locator(".trust")).to_contain_text("and nobody else")

    # What is seen, as a file.
    page.get_by_role("button", name="Last 20").click()
    page.wait_for_url("**range=latest-20**")
    with page.expect_download() as download:
        page.get_by_text("Save as CSV").click()
    download.value.save_as(tmp_path / "seen.csv")
    header, *rows = csv.reader((tmp_path / "seen.csv").read_text().splitlines())
    assert header[:4] == ["job", "epoch", "begins", "series"]
    assert [int(row[1]) for row in rows] == list(range(1, 21))
    # Summer has begun with the sixth week; wherever the reader lives, it is a Monday.
    assert [rows[4][2], rows[5][2]] == ["2013-03-25", "2013-04-01"]
    assert float(rows[0][4]) == 5_120
    assert rows[19][4:8] == ["", "", "", "too small"]
    page.screenshot(path=artefacts / "words.png", full_page=True)

    # The same curve alone, for a frame.
    embedded = watch(served.address)
    embedded.page.goto(f"{served.address}/?embed=1")
    embedded.wait_for_epoch(20)
    expect(embedded.page.locator(".chart")).to_be_visible()
    expect(embedded.page.locator(".sentence")).to_be_visible()
    for hidden in (".top", "footer", ".tabs", ".tiles", ".privacy", ".card-foot"):
        expect(embedded.page.locator(hidden).first).to_be_hidden()
    assert embedded.page.locator(".whole").get_attribute("href") == "/"
    embedded.page.screenshot(path=artefacts / "embedded.png", full_page=True)
    seen.assert_well_behaved()
    embedded.assert_well_behaved()


def test_moments_and_values_are_written_as_they_are_known(served: ServedPage, watch: Watch) -> None:
    seen = watch(served.address, timezone_id="Asia/Tokyo")
    seen.open()
    written = """async () => {
      const { stamp } = await import("/static/dates.js");
      const { error, fitted, told, valueOf, within } = await import("/static/format.js");
      const at = (zone, days) => stamp({ calendar: zone && { zone, days } }, 1_700_000_000_000);
      const value = fitted("value", valueOf("value"), 50, 55);
      return [at("America/New_York", false), at("Asia/Kolkata", false), at("Asia/Tokyo", true),
        at(null, true), value(52.1234), error(value, 52.1234, 50, 55), valueOf("value")(52.1234),
        fitted("value", valueOf("value"), 1e-3, 2e-3)(0.00123456),
        told("value", valueOf("value"), 1234.56, 1000, 1400), fitted("users", String, 0, 9)(1.25),
        within("users", valueOf("users"), -30, 140.2), within("users", valueOf("users"), -30, -2),
        told("users", valueOf("users"), -1700, -3300, -100),
        told("users", valueOf("users"), 9, -3300, 320)];
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
        "fewer than 320",
    ]
    seen.assert_well_behaved()


def test_items_that_cannot_be_told_apart_share_their_places(
    served: ServedPage, watch: Watch, artefacts: Path
) -> None:
    job = served.deploy(CLINIC)
    values = ItemEstimates(np.array([5_000.0, 5_200.0, -50.0]), 90.0, 176.4, 20_000, 20_000)
    served.publish(job, 1, [values] * 9)
    for width in (1280, 390):
        seen = watch(served.address, viewport={"width": width, "height": 844})
        seen.open()
        seen.wait_for_epoch(9)
        page = seen.page
        expect(page.locator(".sentence strong")).to_have_text(
            "Kardiologie, Angiologie und Intensivmedizin or Chirurgie"
        )
        expect(page.locator(".sentence")).to_contain_text("they cannot be told apart")
        rows = page.locator(".topitems tbody tr")
        expect(rows.locator("td:first-child")).to_have_text(["1 to 2", "1 to 2", "3"])
        # Nobody is counted below zero, and no name is cut.
        expect(rows.nth(2)).to_contain_text("fewer than 127")
        expect(rows.nth(2)).not_to_contain_text("\N{MINUS SIGN}")
        cut = "(cells) => cells.some((cell) => cell.scrollWidth > cell.clientWidth)"
        assert not rows.locator("td").evaluate_all(cut)
        assert not page.locator(".row:not([hidden]) .label").evaluate_all(cut)
        # Each name has room in its own row.
        assert page.locator(".row:not([hidden])").evaluate_all(
            "(rows) => rows.every((row) => row.querySelector('.label').scrollHeight"
            " <= row.clientHeight)"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=artefacts / f"alike-{width}.png", full_page=True)
        seen.assert_well_behaved()


TWO_PARTIES = """
name: fruit
protocol: fragments
parameters: {{epsilon: 1, delta: 1e-4, domain: [fig, kiwi]}}
epochs: {{count: 9, start: 2024-01-25, length: P1M}}
shuffle: {{minimum: 2000}}
unit: children
sealed: {{shares: [{folder}/aggregate-a.pub, {folder}/aggregate-b.pub]}}
"""


def test_of_two_parties_either_is_drawn_as_the_one_to_be_trusted(
    served: ServedPage, watch: Watch, artefacts: Path, tmp_path: Path
) -> None:
    for party in SHARERS:
        make_key_pair(tmp_path / f"{party}.key", tmp_path / f"{party}.pub")
    job = served.deploy(TWO_PARTIES.format(folder=tmp_path))
    found = ItemEstimates(np.array([500.0, 300.0]), 20.0, 39.2, 2_500, 2_500)
    served.publish(job, 1, [found] * 8)
    for width, drawing in ((1280, ".sidewise"), (390, ".downwards")):
        seen = watch(served.address, viewport={"width": width, "height": 844})
        seen.page.add_init_script(WRITTEN)
        seen.open()
        seen.wait_for_epoch(8)
        page = seen.page
        trust = page.locator(".trust")
        expect(trust.get_by_role("img")).to_have_attribute(
            "aria-label", re.compile("party b .*: one of them has to be trusted; readers")
        )
        assert trust.locator(f"{drawing} .said").all_text_contents() == [
            "has to be trusted",
            "one of them has to be trusted",
        ]
        expect(trust.locator("figcaption")).to_contain_text("one of the two parties, whichever")
        boxes = [
            trust.locator(f"{drawing} .party", has_text=f"party {name}").bounding_box()
            for name in "ab"
        ]
        # Beside each other, as seen along the way of a report, and inside one boundary.
        first, second = boxes
        assert first is not None
        assert second is not None
        away = first["x"] - second["x"] if width > 700 else first["y"] - second["y"]
        assert away == pytest.approx(0, abs=1)
        expect(trust.locator(f"{drawing} .boundary")).to_have_count(2)
        # Months that begin with a 25th have ticks without a time of day.
        page.wait_for_function("() => window.written.includes('Jul')")
        assert not [text for text in page.evaluate("window.written") if "00:00" in text]
        page.screenshot(path=artefacts / f"two-parties-{width}.png", full_page=True)
        seen.assert_well_behaved()


def test_a_page_with_a_password_is_opened_by_it_where_a_link_leads(
    served: ServedPage, watch: Watch, artefacts: Path
) -> None:
    secret = "correct horse battery"
    served.publish(served.deploy(STUDENTS), 1, [estimate(5_000.0, 900.0)] * 3)
    access = AccessSettings(HashedPassword.of(secret, cost=1 << 10))
    served.settings = replace(served.settings, access=access)
    served.stop()
    served.start()
    seen = watch(served.address)
    page = seen.page
    page.goto(f"{served.address}/?job=oulad&range=latest-20")
    expect(page.get_by_label("Password of this page")).to_be_focused()
    page.keyboard.type("wrong password")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the password.")
    page.screenshot(path=artefacts / "login.png")
    page.get_by_label("Password of this page").fill(secret)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".sentence strong")).to_have_text("5,000")
    assert page.url.endswith("/?job=oulad&range=latest-20")
    assert page.evaluate("document.cookie") == ""
    # Whoever leaves is asked again, where they were.
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password of this page")).to_be_visible()
    page.get_by_label("Password of this page").fill(secret)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".sentence strong")).to_have_text("5,000")
    assert page.url.endswith("/?job=oulad&range=latest-20")
    # The server begins anew, and its sessions with it.
    seen.cable_cut = True
    served.stop()
    served.start()
    expect(page.get_by_label("Password of this page")).to_be_visible()
    assert "next=" in page.url
