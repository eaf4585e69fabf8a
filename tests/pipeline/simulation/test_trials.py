"""Test processes that run trials."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

pytestmark = pytest.mark.slow

KILLED_WHILE_THEY_WAIT = """
import os, signal
from dpstream.pipeline.simulation.trials import trial_processes
pool = trial_processes(1)
print(pool.submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_trial_processes_end_when_their_parent_is_killed() -> None:
    parent = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_THEY_WAIT], stdout=subprocess.PIPE, text=True
    )
    assert parent.returncode == -signal.SIGKILL
    # A PID that no longer exists also counts as ended.
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(parent.stdout)).wait(timeout=60)
