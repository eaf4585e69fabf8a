"""Waiting for processes that are not our children."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def still_running(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended after so many seconds; returns as soon as all have.

    A zombie has ended: it only waits for whoever adopted it.
    """
    deadline = time.monotonic() + seconds
    while running := [process for process in processes if not has_ended(process)]:
        if time.monotonic() > deadline:
            break
        psutil.wait_procs(running, timeout=0.1)
    return running


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
