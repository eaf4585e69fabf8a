"""Test the exit reason that a process sends to its parent."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dpstream.pipeline.errors import WRONG_INPUT
from dpstream.pipeline.operations.processes import Process, dpstream_command, end_all
from dpstream.pipeline.parent_watch import received_reason

TIMEOUT = 60.0
TELLING = """
import os, sys
from dpstream.pipeline.parent_watch import VARIABLE, send_reason
for reason in sys.argv[1:]:
    send_reason(reason)
print(os.environ.get(VARIABLE), flush=True)
"""


@contextmanager
def ended(*command: str) -> Iterator[tuple[Process, list[str]]]:
    printed: list[str] = []
    process = Process(command, on_line=printed.append)
    process.wait(TIMEOUT)
    try:
        yield process, printed
    finally:
        process.let_go()


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        ([], ""),
        (["no noise key"], "no noise key"),
        (["one", "two\nsee dpstream --help"], "two\nsee dpstream --help"),
        (["x" * 10**5], "x" * 4096),
    ],
)
def test_parent_receives_only_the_last_exit_reason(reasons: list[str], reason: str) -> None:
    with ended(sys.executable, "-c", TELLING, *reasons) as (process, printed):
        assert process.reason() == reason
    started = [line for line in printed if line != "None"]
    assert bool(reasons) is not bool(started), "children must not inherit the parent-death watch"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b'"no noise', ""),
        (b'"no noise key"\n"the br', "no noise key"),
        # A line that is longer than one read arrives in two pieces.
        (b'"' + b"x" * 40_000 + b'"\n"' + b"y" * 40_000 + b'"\n', "y" * 40_000),
    ],
)
def test_incomplete_exit_reason_is_ignored(sent: bytes, reason: str) -> None:
    starter, process = socket.socketpair()
    with starter, process:
        process.sendall(sent)
        assert received_reason(starter) == reason


def test_killed_process_sends_no_exit_reason() -> None:
    process = Process([sys.executable, "-c", "import time; time.sleep(1000)"])
    process.kill()
    assert process.wait(TIMEOUT) == -signal.SIGKILL
    assert process.reason() == ""
    end_all([process], timeout=0.0)


def test_command_sends_its_exit_reason() -> None:
    with ended(*dpstream_command("run", "sideways")) as (process, printed):
        assert process.returncode == WRONG_INPUT
        reason = process.reason()
    assert "'sideways' is not one of" in reason
    assert f"error: {reason}".splitlines() == printed
