"""Test the processes of `dpstream up`: failed processes restart, and all end with it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from queue import Queue

import psutil
import pytest

from dpstream.pipeline.operations import restarted_processes
from dpstream.pipeline.operations.processes import dpstream_command
from dpstream.pipeline.operations.restarted_processes import (
    RESTARTS,
    Child,
    ProcessError,
    RestartedProcesses,
)
from dpstream.pipeline.operations.signals import STOPPING, SignaledError, Signals
from tests.support.ended import still_running

ROOT = Path(__file__).parents[3]
TIMEOUT = 60.0
"""Upper bound in seconds, far above any duration; reaching it is a failure."""


def script(text: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", text, *map(str, arguments)]


def start_and_wait(processes: RestartedProcesses, log: Path, text: str) -> Child:
    lines: Queue[str] = Queue()
    child = processes.start("child", script(text), log, on_line=lines.put)
    assert lines.get(timeout=TIMEOUT) == "ready"
    return child


def check_until_ended(processes: RestartedProcesses, child: Child) -> None:
    child.process.wait(TIMEOUT)
    processes.check()


SLEEP = "import time; print('ready', flush=True); time.sleep(1000)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); time.sleep(1000)"
)


@pytest.mark.parametrize(("timeout", "hurry"), [(0.0, False), (TIMEOUT, True)])
def test_process_that_ignores_sigterm_is_killed(
    tmp_path: Path, timeout: float, hurry: bool
) -> None:
    with RestartedProcesses(print, timeout=timeout, hurry=lambda: hurry) as processes:
        child = start_and_wait(processes, tmp_path / "log", STUBBORN)
    assert child.process.returncode == -signal.SIGKILL


def test_error_in_the_parent_leaves_no_child_process(tmp_path: Path) -> None:
    children: list[Child] = []

    def fail() -> None:
        with RestartedProcesses(print) as processes:
            children.append(start_and_wait(processes, tmp_path / "log", SLEEP))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert children[0].process.returncode is not None


def test_processes_exit_when_their_parent_is_killed(tmp_path: Path) -> None:
    following = (
        "import signal, sys, time\n"
        "from dpstream.pipeline.parent_watch import follow\n"
        "if sys.argv[1] == 'stubborn': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "follow(timeout=0.1)\n"
        "time.sleep(1000)\n"
    )
    starting = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from dpstream.pipeline.operations.restarted_processes import RestartedProcesses\n"
        "processes = RestartedProcesses(print)\n"
        "for name in 'mild', 'stubborn':\n"
        "    command = [sys.executable, '-c', sys.argv[1], name]\n"
        "    child = processes.start(name, command, Path(sys.argv[2]) / name)\n"
        "    print(child.process.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    starter = subprocess.Popen(
        script(starting, following, tmp_path), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    with starter, starter.stdout as lines:
        children = [psutil.Process(int(lines.readline())) for _ in range(2)]
        starter.kill()
    assert not still_running(children, TIMEOUT)


def test_failed_process_is_restarted_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarted_processes, "BACK_OFF_FIRST", 0.0)
    messages: list[str] = []
    log = tmp_path / "log"
    with RestartedProcesses(messages.append) as processes:
        child = processes.start(
            "shuffle", script("import sys; print('the reason'); sys.exit(1)"), log
        )
        for _ in range(RESTARTS):
            check_until_ended(processes, child)
            assert child.state == "restarting"
            processes.check()
            assert child.restart_at is None
        child.process.wait(TIMEOUT)
        with pytest.raises(ProcessError, match="shuffle exited with code 1") as caught:
            processes.check()
    assert str(log) in str(caught.value)
    assert str(caught.value).count("the reason") == RESTARTS + 1
    assert len(messages) == RESTARTS
    assert "exited with code 1" in messages[0]


def test_permanent_failure_is_not_restarted(tmp_path: Path) -> None:
    with RestartedProcesses(print) as processes:
        child = processes.start("produce", script("import sys; sys.exit(2)"), tmp_path / "log")
        child.process.wait(TIMEOUT)
        with pytest.raises(ProcessError, match="exited with code 2"):
            processes.check()


def test_only_endless_processes_restart_after_exit_code_0(tmp_path: Path) -> None:
    messages: list[str] = []
    with RestartedProcesses(messages.append) as processes:
        finite = processes.start("produce", script(""), tmp_path / "finite", endless=False)
        check_until_ended(processes, finite)
        assert (finite.state, messages) == ("finished", [])
        endless = processes.start("shuffle", script(""), tmp_path / "endless")
        check_until_ended(processes, endless)
        assert endless.state == "restarting"
    assert messages == ["shuffle exited with code 0; restarting in 0.5 s"]


def test_command_runs_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dpstream").mkdir()
    (tmp_path / "dpstream" / "__init__.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"

    def run(*command: str) -> Sequence[str]:
        with RestartedProcesses(print) as processes:
            child = processes.start("help", dpstream_command(*command), log, endless=False)
            assert child.process.wait(TIMEOUT) == 0, log.read_text()
        return log.read_text().splitlines()

    assert any(re.search(r"Usage: dpstream run", line) for line in run("run", "--help"))


def test_signals_are_recorded_without_interrupting_the_code(request: pytest.FixtureRequest) -> None:
    # SIGINT is ignored if the tests run in the background of a shell script.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, interrupt))
    before = [signal.getsignal(number) for number in STOPPING]
    with Signals() as signals:
        signals.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert not signals.hurry()
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.hurry()
        with pytest.raises(SignaledError, match="stopped by SIGTERM"):
            signals.check()
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.check()
    finally:
        signal.signal(signal.SIGHUP, before)
