"""The pulse of a worker: a file whose time changes as long as its event loop goes round.

A worker that hangs ends itself, unless what hangs is the interpreter itself, or the process was
stopped. Whoever has started it sees it by this.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PULSE_SECONDS = 5.0
_FILE = "pulse"


class FilePulse:
    """Touches a file in a worker's folder now and then; without room for it nothing happens."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._last = float("-inf")

    def beat(self, now: float) -> None:
        """The event loop goes round; `now` in seconds that never go back."""
        if now >= self._last + PULSE_SECONDS:
            self._last = now
            with suppress(OSError):
                self._file.touch(mode=0o600)
                os.utime(self._file)


def pulse_of(folder: Path) -> int | None:
    """What changes with every beat; None before the first."""
    try:
        return (folder / _FILE).stat().st_mtime_ns
    except OSError:
        return None
