"""Clocks of processes that can be set while these live: a preload that shifts CLOCK_REALTIME.

Only what a process takes for the time of day is off. Its waits are measured by other clocks and
stay right, in Python as in Java.
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
    """The preload as a shared library; needs a C compiler."""
    library = folder / "clock_preload.so"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
    try:
        subprocess.run([*command, str(SOURCE), "-o", str(library), "-ldl"], check=True)
    except FileNotFoundError:
        raise RuntimeError("no C compiler: apt install gcc libc6-dev, as .ci/run does") from None
    return library


class Clock:
    """The clock of a process that was started with its `environment`; at first it is right.

    Args:
        library: the preload.
        path: of the file that holds how much it is off.
    """

    def __init__(self, library: Path, path: Path) -> None:
        self._library = library
        self._path = path
        self.seconds = 0.0
        path.write_bytes(bytes(8))

    def set(self, seconds: float) -> None:
        """Have it go so many seconds fast, or slow if they are negative."""
        offset = round(seconds * _NANOSECONDS)
        with self._path.open("r+b", buffering=0) as file:
            file.write(offset.to_bytes(8, "little", signed=True))
        self.seconds = seconds

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process is started with to have this clock."""
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._path)}

    @contextmanager
    def for_children(self) -> Iterator[None]:
        """Whoever is started within it has this clock."""
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
