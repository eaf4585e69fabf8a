"""Clocks of running processes can be set without effect on waits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.clocks import HOUR, YEAR, Clock, compile_preload

# Prints the time on request, and the duration of waits by a clock that is not set.
_CHILD = """
import asyncio, sys, threading, time
for line in sys.stdin:
    began = time.monotonic()
    time.sleep(0.05)
    threading.Event().wait(0.05)
    asyncio.run(asyncio.sleep(0.05))
    print(time.time(), time.monotonic() - began, flush=True)
"""


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_preload(tmp_path_factory.mktemp("preload"))


def test_clock_jump_of_a_running_process_leaves_waits_unchanged(
    preload: Path, tmp_path: Path
) -> None:
    clock = Clock(preload, tmp_path / "clock")
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child, child.stdin, child.stdout:
        for off in (0.0, -53 * YEAR, 2 * HOUR, 0.0):
            clock.set(off)
            before = time.time()
            child.stdin.write("\n")
            child.stdin.flush()
            told, waited = map(float, child.stdout.readline().split())
            assert before <= told - off <= time.time()
            assert waited >= 0.15
