"""Test the processes of a supervisor, with scripts in place of workers."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import psutil
import pytest

from dpstream.pipeline.operations.processes import end_all, start_process
from dpstream.pipeline.operations.supervisor import children as children_module
from dpstream.pipeline.operations.supervisor.children import Worker

TIMEOUT = 60.0


class Heard:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._news = threading.Condition()

    def __call__(self, job: str, line: str) -> None:
        with self._news:
            self.lines.append((job, line))
            self._news.notify_all()

    def wait_for(self, job: str, line: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: (job, line) in self.lines, TIMEOUT), self.lines


SCRIPT = """
import signal, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
if sys.argv[1] == "failing":
    from dpstream.pipeline.parent_watch import send_reason
    print("error: the reason", file=sys.stderr)
    send_reason("the reason")
    sys.exit(2)
time.sleep(1000)
"""


@pytest.fixture
def heard() -> Heard:
    return Heard()


class Workers:
    """Run scripts in place of workers; a job's name selects its script."""

    def __init__(self, heard: Heard) -> None:
        self.workers: list[Worker] = []
        self._heard = heard

    def start(self, job: str, listening: socket.socket | None = None) -> Worker:
        worker = Worker(job, listening)
        worker.start([job], partial(self._heard, job), start_process)
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        end_all((each.process for each in self.workers if each.process), timeout=0.0)
        for worker in self.workers:
            worker.close()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, heard: Heard) -> Iterator[Workers]:
    monkeypatch.setattr(
        children_module,
        "dpstream_command",
        lambda *command: [sys.executable, "-c", SCRIPT, *command],
    )
    with closing(Workers(heard)) as workers:
        yield workers


def wait_for_the_end(worker: Worker) -> None:
    """Wait for the exit of a worker without reaping it."""
    assert worker.process is not None
    os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)


def test_worker_is_terminated_and_then_killed(workers: Workers, heard: Heard) -> None:
    mild, stubborn = (workers.start(job) for job in ("mild", "stubborn"))
    for worker in (mild, stubborn):
        heard.wait_for(worker.job, "ready")
        assert worker.process is not None
        worker.process.terminate()
    wait_for_the_end(mild)
    assert mild.ended() == (-signal.SIGTERM, "")
    assert stubborn.ended() is None
    assert stubborn.process is not None
    stubborn.process.kill()
    wait_for_the_end(stubborn)
    assert stubborn.ended() == (-signal.SIGKILL, "")


def test_exit_reason_comes_from_the_worker(workers: Workers, heard: Heard) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    worker = workers.start("failing", listening)
    heard.wait_for("failing", "error: the reason")
    wait_for_the_end(worker)
    assert worker.port == listening.getsockname()[1]
    assert worker.ended() == (2, "the reason")
    assert worker.ended() is None, "the exit is reported once"
    assert worker.port is None


def test_workers_are_session_leaders(workers: Workers, heard: Heard) -> None:
    pids = [each.process.pid for each in map(workers.start, "ab") if each.process]
    assert [os.getsid(pid) for pid in pids] == pids


def test_no_worker_is_left_after_close(workers: Workers, heard: Heard) -> None:
    worker = workers.start("stubborn")
    heard.wait_for("stubborn", "ready")
    assert worker.process is not None
    workers.close()
    assert not psutil.pid_exists(worker.process.pid)
