"""Measure processor time and memory, and take medians of several runs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Speed of one operation.

    Attributes:
        megabytes: Size of the encoded records per run, in units of 10^6 bytes.
        clock: "processor" (unaffected by other processes) or "wall".
    """

    name: str
    reports: int
    megabytes: float
    seconds: tuple[float, ...]
    clock: str = "processor"

    @property
    def reports_per_second(self) -> float:
        return self.reports / median(self.seconds)

    @property
    def megabytes_per_second(self) -> float:
        return self.megabytes / median(self.seconds)

    def to_json(self) -> dict[str, Any]:
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
    """Time `work` on `size` bytes of records: once to warm up, then `runs` times."""
    work()
    seconds = []
    for _ in range(runs):
        before = time.process_time()
        work()
        seconds.append(time.process_time() - before)
    return Rate(name, reports, size / MEGABYTE, tuple(seconds))


def available_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def on_cores(count: int) -> Iterator[int]:
    """Limit this process and its children to `count` cores if possible; yield the core count."""
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
    """Return the processor time of a process, the sum of user and system mode."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def busy_seconds() -> float:
    """Return the processor time used by the whole machine since an arbitrary moment."""
    times = psutil.cpu_times()._asdict()
    # Guest time is included in user and nice.
    idle = ("idle", "iowait", "steal", "guest", "guest_nice")
    return float(sum(seconds for kind, seconds in times.items() if kind not in idle))


def peak_megabytes(pid: int) -> float:
    """Return the peak resident memory of a process, or the current memory if unknown."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MEGABYTE
    return float(psutil.Process(pid).memory_info().rss / MEGABYTE)


def resident_megabytes() -> float:
    return float(psutil.Process().memory_info().rss / MEGABYTE)


def forget_peak() -> None:
    """Reset `peak_megabytes` of this process where the system supports it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def machine() -> Mapping[str, Any]:
    """Return the conditions of the measurement, including the load of the last minute."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "cores_available": len(available_cores()),
        "memory_gigabytes": round(psutil.virtual_memory().total / 1e9, 1),
        "load_average": round(psutil.getloadavg()[0], 2),
    }


def table_of(title: str, rows: Sequence[Mapping[str, object]], caption: str | None = None) -> Table:
    """Return a table of rows with the same keys, which are its headings; lists are left out."""
    table = Table(title=title, caption=caption)
    headings = [name for name, value in rows[0].items() if not isinstance(value, list | tuple)]
    for heading in headings:
        text = isinstance(rows[0][heading], str)
        table.add_column(heading.replace("_", " "), justify="left" if text else "right")
    for row in rows:
        table.add_row(*(_shown(row[heading]) for heading in headings))
    return table


def _shown(value: object) -> str:
    if isinstance(value, float) and (abs(value) < 100 and value % 1):
        return f"{value:.4g}"
    return (
        "" if value is None else f"{value:,.0f}" if isinstance(value, int | float) else f"{value}"
    )
