"""Settable clocks for single processes: a preload library that shifts CLOCK_REALTIME.

Only the time of day is shifted. Waits in Python and Java use other clocks and stay correct.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_preload.c")
VARIABLE = "DPSTREAM_TEST_CLOCK"
YEAR = 365.25 * 86_400.0
HOUR = 3_600.0
_NANOSECONDS = 1_000_000_000


def compile_preload(folder: Path) -> Path:
    """Compile the preload into a shared library, which requires a C compiler."""
    library = folder / "clock_preload.so"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
    try:
        subprocess.run([*command, str(SOURCE), "-o", str(library), "-ldl"], check=True)
    except FileNotFoundError:
        raise RuntimeError("no C compiler: apt install gcc libc6-dev, as in .ci/run") from None
    return library


class Clock:
    """Clock of processes started with `environment`, initially correct."""

    def __init__(self, library: Path, path: Path) -> None:
        self._library = library
        self._path = path
        self.seconds = 0.0
        path.write_bytes(bytes(8))

    def set(self, seconds: float) -> None:
        """Set the clock `seconds` ahead, or behind if negative."""
        offset = round(seconds * _NANOSECONDS)
        with self._path.open("r+b", buffering=0) as file:
            file.write(offset.to_bytes(8, "little", signed=True))
        self.seconds = seconds

    @property
    def environment(self) -> Mapping[str, str]:
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._path)}

    @contextmanager
    def for_children(self) -> Iterator[None]:
        """Set the clock for processes started within the context."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
