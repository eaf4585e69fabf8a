"""Headless Chromium, and pages that record their own errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    WebSocket,
    expect,
    sync_playwright,
)

CHROMIUM = Path(os.environ.get("DPSTREAM_CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT = 30_000.0
"""Timeout in milliseconds, far longer than any expected wait."""

expect.set_options(timeout=TIMEOUT)

# Violations of the content security policy are reported to the page.
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
"""


@dataclass
class Watched:
    page: Page
    address: str
    requested: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    cable_cut: bool = False

    def open(self, query: str = "") -> None:
        self.page.goto(f"{self.address}/{query}")
        self.page.get_by_text("live", exact=True).wait_for()

    def source(self, name: str) -> dict[str, list[float | None]]:
        """Return a data source's columns in the first chart, with None instead of nan."""
        found: dict[str, list[float | None]] = self.page.evaluate(
            """(name) => {
              const source = Bokeh.documents[0]?.get_model_by_name(name);
              const plain = (value) => (Number.isNaN(value) ? null : value);
              return Object.fromEntries(Object.entries(source?.data ?? {})
                .map(([key, values]) => [key, Array.from(values, plain)]));
            }""",
            name,
        )
        return found

    def wait_for_epoch(self, epoch: int, name: str = "estimate-0") -> None:
        self.page.wait_for_function(
            """([name, epoch]) => {
              const x = Bokeh.documents[0]?.get_model_by_name(name)?.data.x ?? [];
              return x[x.length - 1] >= epoch;
            }""",
            arg=[name, epoch],
        )

    def wait_for_paint(self) -> None:
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def assert_well_behaved(self) -> None:
        """Assert that the page sent no external request, logged no error and violated no policy."""
        own = (self.address, self.address.replace("http", "ws", 1), "blob:", "data:")
        assert [url for url in self.requested if not url.startswith(own)] == []
        assert self.complaints == []
        assert self.page.evaluate("window.violations") == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not session-scoped: Playwright's event loop runs in this thread for the lifetime of the
    # fixture, and no test could run its own.
    if not CHROMIUM.exists():
        pytest.fail(f"no Chromium at {CHROMIUM}: apt install chromium, or set DPSTREAM_CHROMIUM")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS)) as launched,
    ):
        yield launched


@pytest.fixture
def watch(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Return a function that opens pages: `watch(address, **options)`, with Playwright options."""
    contexts = []

    def open_page(address: str, **options: Any) -> Watched:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT)
        context.add_init_script(_WATCH)
        watched = Watched(context.new_page(), address)
        _listen(watched)
        return watched

    yield open_page
    for context in contexts:
        context.close()


def _listen(watched: Watched) -> None:
    page = watched.page

    def request(requested: Request) -> None:
        watched.requested.append(requested.url)

    def socket(opened: WebSocket) -> None:
        watched.requested.append(opened.url)

    def complain(words: str) -> None:
        # The browser itself logs failed connections.
        if not (watched.cable_cut and "ERR_" in words):
            watched.complaints.append(words)

    def console(said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            complain(f"{said.text} {said.location.get('url', '')}")

    page.on("request", request)
    page.on("websocket", socket)
    page.on("pageerror", lambda error: complain(error.message))
    page.on("console", console)


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("DPSTREAM_TEST_ARTIFACTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
