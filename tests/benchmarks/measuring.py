"""How things are measured: processor time, memory, and medians of several runs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.table import Table

MEGABYTE = 10**6


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast one thing is done.

    Attributes:
        name: of the thing.
        reports: handled in one run.
        megabytes: of encoded records in one run, 10^6 bytes each.
        seconds: of each run.
        clock: "processor", which other processes do not slow down, or "wall".
    """

    name: str
    reports: int
    megabytes: float
    seconds: tuple[float, ...]
    clock: str = "processor"

    @property
    def reports_per_second(self) -> float:
        """Of the median run."""
        return self.reports / median(self.seconds)

    @property
    def megabytes_per_second(self) -> float:
        """Of the median run."""
        return self.megabytes / median(self.seconds)

    def to_json(self) -> dict[str, Any]:
        """The figures."""
        return {
            "name": self.name,
            "reports_per_second": round(self.reports_per_second),
            "megabytes_per_second": round(self.megabytes_per_second, 1),
            "reports": self.reports,
            "megabytes": round(self.megabytes, 3),
            "clock": self.clock,
            "seconds": [round(seconds, 6) for seconds in self.seconds],
        }


def rate(name: str, reports: int, size: int, work: Callable[[], object], runs: int) -> Rate:
    """Time some work of this process: once to warm up, then `runs` times.

    Args:
        name: of the work.
        reports: handled in one run.
        size: bytes of the encoded records of one run.
        work: one run.
        runs: how many count.
    """
    work()
    seconds = []
    for _ in range(runs):
        before = time.process_time()
        work()
        seconds.append(time.process_time() - before)
    return Rate(name, reports, size / MEGABYTE, tuple(seconds))


def available_cores() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def on_cores(count: int) -> Iterator[int]:
    """Keep this process, and what it starts, on so many cores; yields how many it really are.

    Systems that have no such thing use all their cores.
    """
    before = available_cores()
    if not hasattr(os, "sched_setaffinity"):
        yield len(before)
        return
    os.sched_setaffinity(0, before[:count])
    try:
        yield len(before[:count])
    finally:
        os.sched_setaffinity(0, before)


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used, in user and system mode together."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def busy_seconds() -> float:
    """Processor time that the whole machine has used, since some moment in the past."""
    times = psutil.cpu_times()._asdict()
    # What guests use is part of user and nice.
    idle = ("idle", "iowait", "steal", "guest", "guest_nice")
    return float(sum(seconds for kind, seconds in times.items() if kind not in idle))


def peak_megabytes(pid: int) -> float:
    """The most memory that a process has had resident so far; where unknown, what it has now."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MEGABYTE
    return float(psutil.Process(pid).memory_info().rss / MEGABYTE)


def resident_megabytes() -> float:
    """The memory that this process has resident now."""
    return float(psutil.Process().memory_info().rss / MEGABYTE)


def forget_peak() -> None:
    """Let `peak_megabytes` of this process begin anew, where the system can do that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def machine() -> Mapping[str, Any]:
    """What the figures depend on; the load is that of all processes over the last minute."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "cores_available": len(available_cores()),
        "memory_gigabytes": round(psutil.virtual_memory().total / 1e9, 1),
        "load_average": round(psutil.getloadavg()[0], 2),
    }


def table_of(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str | None = None
) -> Table:
    """A table whose first column says what the others are figures of."""
    table = Table(title=title, caption=caption)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table
