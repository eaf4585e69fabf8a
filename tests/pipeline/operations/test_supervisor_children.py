"""The processes of a supervisor, with scripts in the place of workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from dpstream.pipeline.operations.supervisor import children as children_module
from dpstream.pipeline.operations.supervisor.children import Children, Ended

PATIENCE = 60.0


class Heard:
    """What children printed, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._news = threading.Condition()

    def __call__(self, job: str, line: str) -> None:
        with self._news:
            self.lines.append((job, line))
            self._news.notify_all()

    def wait_for(self, job: str, line: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: (job, line) in self.lines, PATIENCE), self.lines


SCRIPT = """
import signal, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
if sys.argv[1] == "failing":
    from dpstream.pipeline.lifeline import tell
    print("error: the reason", file=sys.stderr)
    tell("the reason")
    sys.exit(2)
time.sleep(1000)
"""


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, heard: Heard) -> Iterator[Children]:
    """Scripts in the place of workers; a job's name is what its script does."""
    monkeypatch.setattr(
        children_module,
        "dpstream_command",
        lambda *command: [sys.executable, "-c", SCRIPT, *command],
    )
    with Children(lambda job: [job], heard, monitored=True) as children:
        yield children


def wait_for_the_end(pid: int) -> None:
    """Leaves it to others to learn how."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_worker_is_asked_to_end_and_then_made_to(children: Children, heard: Heard) -> None:
    pids = {job: children.start(job) for job in ("mild", "stubborn")}
    for job in pids:
        heard.wait_for(job, "ready")
        children.terminate(job)
    wait_for_the_end(pids["mild"])
    assert children.ended() == [Ended("mild", -signal.SIGTERM, "")]
    assert psutil.pid_exists(pids["stubborn"])
    children.kill("stubborn")


def test_why_a_worker_has_ended_is_what_it_has_told(children: Children, heard: Heard) -> None:
    pid = children.start("failing")
    heard.wait_for("failing", "error: the reason")
    wait_for_the_end(pid)
    assert children.ended() == [Ended("failing", 2, "the reason")]
    assert not children.ended(), "it is told once"
    assert children.port("failing") is None


def test_workers_are_leaders_of_sessions_with_a_socket_each(
    children: Children, heard: Heard
) -> None:
    pids = [children.start(job) for job in ("a", "b")]
    assert all(os.getsid(pid) == pid for pid in pids)
    ports = [children.port(job) for job in ("a", "b")]
    assert None not in ports
    assert len(set(ports)) == 2


def test_no_worker_is_left(monkeypatch: pytest.MonkeyPatch, heard: Heard) -> None:
    monkeypatch.setattr(
        children_module,
        "dpstream_command",
        lambda *command: [sys.executable, "-c", SCRIPT, *command],
    )
    with Children(lambda job: [job], heard, monitored=False) as children:
        pid = children.start("stubborn")
        heard.wait_for("stubborn", "ready")
        assert children.port("stubborn") is None
    assert not psutil.pid_exists(pid)
