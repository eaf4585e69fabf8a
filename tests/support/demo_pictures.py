"""Generate the README's pictures of the demo; ``make pictures`` runs ``dpstream demo``."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.support.chromium import ARGUMENTS, CHROMIUM, TIMEOUT

DEMO = Path(__file__).parents[2] / "pipeline" / "demo"
WIDTH = 1280
HEIGHT = 1080
"""Window height that includes the curves."""

_ADDRESS = re.compile(r"The live page: (http://\S+)")
_OPEN = "It stays up until Ctrl-C."


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-pictures-") as folder:
        terminal, inside = pty.openpty()
        command = (
            "-m",
            "dpstream.pipeline.cli",
            "demo",
            "--no-browser",
            "--output",
            f"{folder}/demo",
        )
        # The page stays open only on a terminal.
        demo = subprocess.Popen(
            [sys.executable, *command],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            # A new broker, without previous charges.
            env={**os.environ, "DPSTREAM_HOME": f"{folder}/home"},
        )
        os.close(inside)
        try:
            take_page(_address(terminal), DEMO / "page.png")
            shutil.copyfile(Path(folder) / "demo" / "comparison.png", DEMO / "comparison.png")
        finally:
            # Background processes ignore SIGINT, so SIGTERM is sent.
            demo.terminate()
            # Drain the final output so that the process does not block on it.
            with suppress(OSError):
                while os.read(terminal, 1 << 16):
                    pass
            demo.wait()
            os.close(terminal)


def take_page(address: str, picture: Path) -> None:
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS)) as browser,
    ):
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(TIMEOUT)
        page.goto(address)
        page.locator(".chart canvas").first.wait_for()
        page.locator(".legend .value").last.wait_for()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=picture)


def _address(terminal: int) -> str:
    said = ""
    while _OPEN not in said:
        try:
            new = os.read(terminal, 1 << 16).decode(errors="replace")
        except OSError:
            new = ""
        if not new:
            sys.exit("the demonstration ended before its page was open; see above")
        sys.stdout.write(new)
        said = (said + new)[-10_000:]
    found = _ADDRESS.search(said)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    main()
