"""Wait for processes that are not children of this one."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def still_running(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return the processes still running after at most `seconds`. Zombies count as ended."""
    deadline = time.monotonic() + seconds
    while running := [process for process in processes if not has_ended(process)]:
        if time.monotonic() > deadline:
            break
        psutil.wait_procs(running, timeout=0.1)
    return running


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended; a zombie only waits for its parent to reap it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
