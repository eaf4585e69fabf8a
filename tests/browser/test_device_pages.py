"""Device in a real browser: reloaded pages, two tabs, a network outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from dpstream.randomizers.client import ServerResponse
from dpstream.topics.envelopes import decode_body
from tests.support import chromium
from tests.support.chromium import Watched
from tests.support.small_collector import SIGNER, START, SmallCollector, deployed
from tests.support.small_server import served

pytestmark = pytest.mark.browser

browser, watch = chromium.browser, chromium.watch
Watch = Callable[..., Watched]

SOURCES = Path(__file__).parents[2] / "randomizers" / "javascript" / "src"
OPEN = """([signer, now]) => import("/src/client/index.js").then(({ Device }) => {
  const seconds = () => (window.second = (window.second ?? 0) + 5000);
  window.device = new Device({
    url: location.origin, job: "logins", signers: signer, limit: { epsilon: 1 },
    now: () => now, monotonic: seconds,
  });
  return device.join().then(() => undefined);
})"""
REPORT = "(value) => device.report(value)"
ACCOUNT = "() => device.account().then(({ text }) => text)"


@pytest.fixture
def collector() -> SmallCollector:
    return SmallCollector(deployed())


@pytest.fixture
def address(collector: SmallCollector) -> Iterator[str]:
    """Address of a server of the package's modules, and of a collector."""

    def respond(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ServerResponse:
        kind, status = "application/json", 200
        if path.startswith("/v1/"):
            answer = collector.request(method, path, body, headers)
            status, data = answer.status, answer.body
        elif path.startswith("/src/"):
            kind, data = "text/javascript", (SOURCES / path[5:]).read_bytes()
        else:
            kind, data = "text/html", b"<!doctype html><link rel=icon href=data:,>"
        return ServerResponse(status, data, {"Content-Type": kind})

    with served(respond) as url:
        yield url


def open_device(page: Page, address: str) -> None:
    page.goto(address)
    page.evaluate(OPEN, [SIGNER, START])


def test_reloaded_page_and_second_tab_act_as_the_same_device(
    watch: Watch, address: str, collector: SmallCollector
) -> None:
    watched = watch(address)
    page, other = watched.page, watched.page.context.new_page()
    for each in (page, other):
        open_device(each, address)
    reports: list[Any] = [each.evaluate(REPORT, True) for each in (page, other, page)]
    open_device(page, address)
    reports.append(page.evaluate(REPORT, False))
    assert [report["drawn"] for report in reports] == [True, False, False, False]
    assert [len(bodies) for bodies in collector.drawn.values()] == [1]
    (body,) = collector.taken.values()
    slots, counts, good = collector.job.content_format.unpack(decode_body(body).contents)
    assert good.all()
    assert counts[0] <= slots.shape[1]
    assert page.evaluate(ACCOUNT) == (
        "population logins: epsilon 1 spent, epsilon 1 allowed\n"
        "  job logins, deployment 00000000: epsilon 1"
    )
    assert watched.complaints == []


def test_concurrent_tabs_of_a_browser_send_one_report(
    watch: Watch, address: str, collector: SmallCollector
) -> None:
    watched = watch(address)
    open_device(watched.page, address)
    reports = watched.page.evaluate(
        """([signer, now]) => import("/src/client/index.js").then(({ Device }) => {
          const options = { url: location.origin, job: "logins", signers: signer,
                            limit: { epsilon: 1 }, now: () => now };
          const tabs = Array.from({ length: 8 }, () => new Device(options));
          return Promise.all(tabs.map((tab, index) => tab.report(index % 2 === 0)));
        })""",
        [SIGNER, START],
    )
    assert sum(report["drawn"] for report in reports) == 1
    assert [len(bodies) for bodies in collector.drawn.values()] == [1]


def test_device_page_recovers_from_a_network_outage(
    watch: Watch, address: str, collector: SmallCollector
) -> None:
    watched = watch(address)
    page = watched.page
    open_device(page, address)
    watched.cable_cut = True
    page.context.set_offline(True)
    report = page.evaluate(REPORT, True)
    assert (report["drawn"], report["sending"]["waiting"]) == (True, 1)
    assert collector.drawn == {}
    page.context.set_offline(False)
    open_device(page, address)
    assert page.evaluate("() => device.send()")["waiting"] == 0
    assert len(collector.taken) == 1
    # Requests contain nothing beyond the client's own headers.
    posts = [headers for method, _, headers, _ in collector.requests if method == "POST"]
    assert all("Cookie" not in headers and "Referer" not in headers for headers in posts)


def test_example_for_app_developers_runs(
    watch: Watch, address: str, collector: SmallCollector
) -> None:
    readme = (SOURCES.parents[1] / "client" / "README.md").read_text()
    body = readme[readme.index("<button>Take part") :]
    markup, _, rest = body.partition('<script type="module">')
    example = rest.partition("</script>")[0]
    for shown, actual in (
        ("dpstream-device/client", "/src/client/index.js"),
        ("http://127.0.0.1:8300", address),
        ("first-report", "logins"),
        ("PUBLIC KEY", SIGNER),
    ):
        assert shown in example
        example = example.replace(shown, actual)
    watched = watch(address)
    page = watched.page
    page.goto(address)
    page.evaluate("(markup) => { document.body.innerHTML = markup; }", markup)
    page.add_script_tag(content=example, type="module")
    page.get_by_text("Job logins").wait_for()
    assert not collector.taken
    page.get_by_role("button", name="Take part").click()
    page.get_by_text("population logins: epsilon 1 spent, epsilon 8 allowed").wait_for()
    assert len(collector.taken) == 1
