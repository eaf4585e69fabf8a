"""Test the processes of `dpstream up`: failed processes restart, and all end with it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import psutil
import pytest

from dpstream.pipeline.operations import forks as tested
from dpstream.pipeline.operations import restarted_processes
from dpstream.pipeline.operations.forks import Forks
from dpstream.pipeline.operations.processes import (
    Process,
    Starter,
    dpstream_command,
    how_it_ended,
    python_module,
    start_process,
)
from dpstream.pipeline.operations.restarted_processes import (
    RESTARTS,
    Child,
    ProcessError,
    RestartedProcesses,
)
from dpstream.pipeline.operations.signals import Signals
from tests.support.ended import still_running
from tests.support.thinned import thinned

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


def test_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.check()
    finally:
        signal.signal(signal.SIGHUP, before)


MODULE = "tests.support.forked"
WAYS = ("forked", "started")
DRAWN = ("from an inherited generator", "from a new generator")
"""Random numbers that a process prints."""


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks([MODULE], tmp_path_factory.mktemp("forks") / "log") as forks:
        forks.wait()
        yield forks


@pytest.fixture(params=WAYS)
def start(request: pytest.FixtureRequest, forks: Forks) -> Starter:
    return forks.start if request.param == "forked" else start_process


def command(what: str, *more: str) -> list[str]:
    return python_module(MODULE, what, *more)


def run(processes: RestartedProcesses, folder: Path, what: str, *more: str) -> Child:
    return processes.start(what, command(what, *more), folder / what, endless=False)


def log_lines(child: Child) -> list[str]:
    lines = child.log.read_text().splitlines()
    return [line for line in lines if "RuntimeWarning" not in line]


def described(child: Child) -> dict[str, Any]:
    assert child.process.wait(TIMEOUT) == 0, child.log_end()
    seen: dict[str, Any] = json.loads(log_lines(child)[0])
    return seen


def wait_until_ready(child: Child) -> None:
    while "ready" not in child.log.read_text():
        assert child.process.poll() is None, child.log_end()


def test_forked_process_behaves_like_a_newly_started_process(forks: Forks, tmp_path: Path) -> None:
    seen = []
    for start in (forks.start, start_process):
        with RestartedProcesses(print, start=start) as processes:
            # The next process must not inherit the sockets of this one.
            wait_until_ready(run(processes, tmp_path, "sleep"))
            child = run(processes, tmp_path, "describe", "--name", "a b")
            seen.append(described(child) | {"number": child.process.pid})
    forked, started = seen
    for each in seen:
        assert each.pop("pid") == each.pop("session") == each.pop("number")
    assert (forked.pop("imported by the forker"), started.pop("imported by the forker")) == (
        True,
        False,
    )
    assert len({each.pop(which) for each in seen for which in DRAWN}) == 4
    assert forked == started
    assert forked["arguments"] == ["describe", "--name", "a b"]
    assert forked["ends with its parent"]


def test_forked_processes_generate_different_random_numbers(forks: Forks, tmp_path: Path) -> None:
    with RestartedProcesses(print, start=forks.start) as processes:
        children = [run(processes, tmp_path / str(number), "describe") for number in range(3)]
        seen = [described(child) for child in children]
    assert len({each[which] for each in seen for which in DRAWN}) == 6


def test_exit_codes_reasons_and_logs_are_reported(start: Starter, tmp_path: Path) -> None:
    with RestartedProcesses(print, start=start) as processes:
        telling, failing = (run(processes, tmp_path, what) for what in ("tell", "fail"))
        assert (telling.process.wait(TIMEOUT), telling.process.reason()) == (3, "no noise key")
        assert log_lines(telling)[1:] == ["a complaint"]
        assert (failing.process.wait(TIMEOUT), failing.process.reason()) == (1, "")
        assert log_lines(failing)[-1] == "ZeroDivisionError: of what?"
        assert failing.process.poll() == failing.process.returncode == 1


@pytest.mark.parametrize(
    ("what", "timeout", "number"),
    thinned([("stubborn", 0.0, signal.SIGKILL), ("sleep", TIMEOUT, signal.SIGTERM)], 2),
)
def test_closing_the_supervisor_leaves_no_forked_process(
    start: Starter, tmp_path: Path, what: str, timeout: float, number: int
) -> None:
    with RestartedProcesses(print, start=start, timeout=timeout) as processes:
        child = run(processes, tmp_path, what)
        wait_until_ready(child)
        with pytest.raises(subprocess.TimeoutExpired):
            child.process.wait(0.0)
    assert child.process.returncode == -number
    assert not psutil.pid_exists(child.process.pid)
    # It has ended, and its PID might have been reused.
    child.process.terminate()
    child.process.kill()


def test_process_exits_when_its_link_to_the_parent_closes(start: Starter, tmp_path: Path) -> None:
    with RestartedProcesses(print, start=start) as processes:
        child = run(processes, tmp_path, "sleep")
        wait_until_ready(child)
        child.process.let_go()
        assert child.process.wait(TIMEOUT) == -signal.SIGTERM


def test_killed_process_is_forked_again(forks: Forks, tmp_path: Path) -> None:
    messages: list[str] = []
    with RestartedProcesses(messages.append, start=forks.start) as processes:
        child = run(processes, tmp_path, "sleep")
        wait_until_ready(child)
        psutil.Process(child.process.pid).kill()
        assert how_it_ended(child.process.wait(TIMEOUT)) == "was killed by signal 9"
        processes.check()
        child.restart_at = 0.0
        processes.check()
        assert not isinstance(child.process, Process)
        assert child.state == "running"
    assert len(messages) == 1


def test_if_the_forker_is_killed_its_children_survive_and_new_ones_can_start(
    tmp_path: Path,
) -> None:
    with (
        Forks([MODULE], tmp_path / "forker") as forks,
        RestartedProcesses(print, start=forks.start, timeout=0.0) as processes,
    ):
        children = [run(processes, tmp_path / name, "stubborn") for name in ("first", "second")]
        for child in children:
            wait_until_ready(child)
        forks._forker.kill()  # type: ignore[union-attr]
        forks._forker.wait(TIMEOUT)  # type: ignore[union-attr]
        assert [child.state for child in children] == ["running"] * 2
        again = run(processes, tmp_path, "describe")
        assert isinstance(again.process, Process)
        described(again)
    assert [child.process.returncode for child in children] == [-signal.SIGKILL] * 2


def test_exits_are_detected_when_sigchld_is_ignored(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Programs started with SIGCHLD ignored pass that on to their children."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGCHLD, before))
    with (
        Forks([MODULE], tmp_path / "forker") as forks,
        RestartedProcesses(print, start=forks.start, timeout=TIMEOUT) as processes,
    ):
        for name in ("first", "second"):
            described(run(processes, tmp_path / name, "describe"))
        sleeping = run(processes, tmp_path, "sleep")
        wait_until_ready(sleeping)
        assert not isinstance(sleeping.process, Process)
    assert not psutil.pid_exists(sleeping.process.pid)


def test_forking_is_disabled_when_unsafe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "POSSIBLE", False)
    with Forks([MODULE], tmp_path / "forker") as forks:
        forks.wait()
        with RestartedProcesses(print, start=forks.start) as processes:
            child = run(processes, tmp_path, "describe")
            assert isinstance(child.process, Process)
            described(child)


@pytest.mark.parametrize("way", WAYS)
def test_lines_printed_by_a_child_process_are_forwarded(forks: Forks, way: str) -> None:
    printed: list[str] = []
    start: Starter = forks.start if way == "forked" else start_process
    process = start("tell", command("tell"), on_line=printed.append)
    assert isinstance(process, Process) == (way == "started")
    assert (process.wait(TIMEOUT), process.reason(TIMEOUT)) == (3, "no noise key")
    process.let_go()
    assert "a complaint" in printed


def test_command_outside_the_package_is_rejected(forks: Forks, tmp_path: Path) -> None:
    with (
        RestartedProcesses(print, start=forks.start) as processes,
        pytest.raises(ValueError, match="does not start with"),
    ):
        processes.start("other", ["/bin/true"], tmp_path / "log")


def test_all_processes_exit_when_their_parent_is_killed(tmp_path: Path) -> None:
    starting = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from dpstream.pipeline.operations.forks import Forks\n"
        "from dpstream.pipeline.operations.processes import python_module\n"
        "from dpstream.pipeline.operations.restarted_processes import RestartedProcesses\n"
        "module, folder = sys.argv[1], Path(sys.argv[2])\n"
        "forks = Forks([module], folder / 'forker')\n"
        "processes = RestartedProcesses(print, start=forks.start)\n"
        "print(forks._forker.pid, flush=True)\n"
        "for what in 'sleep', 'stubborn':\n"
        "    child = processes.start(what, python_module(module, what), folder / what)\n"
        "    while 'ready' not in child.log.read_text(): time.sleep(0.01)\n"
        "    print(child.process.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", starting, MODULE, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert starter.stdout is not None
    with starter, starter.stdout as lines:
        ours = [psutil.Process(int(lines.readline())) for _ in range(3)]
        os.kill(starter.pid, signal.SIGKILL)
    assert not still_running(ours, TIMEOUT)
