"""Processes that are started, started again when they fail, and ended together.

Each is the leader of a session of its own, so that Ctrl-C and the end of the terminal reach it only
through its `Supervisor`, and holds on to a lifeline (`pipeline.lifeline`), so that it ends even
if the supervisor is killed. What it prints goes to a file.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pipeline.state import private_folder
from pipeline.subprocesses import how_it_ended, python_environment

# Seconds to wait before each restart; after the last one we give up.
BACK_OFF = (0.5, 1.0, 2.0, 4.0)
# A process that ran for so many seconds has recovered from the failure before.
_RECOVERED_AFTER = 60.0
# The command line, the job file or the input is wrong: another attempt would say so again.
_WRONG_INPUT = 2
_POLL_SECONDS = 0.02
_LOG_LINES = 8


class ProcessError(Exception):
    """A process has ended and is not started again; the message holds the end of its log."""


@dataclass(eq=False, slots=True)
class Child:
    """One process, through all its restarts.

    Attributes:
        name: for messages.
        command: the command line.
        log: the file that takes what it prints.
        endless: whether it has failed even if it ends with exit code 0.
        on_line: is given what it prints on standard output, line by line, in another thread.
        process: the present one, or the one that has ended.
        relay: the thread that calls `on_line`; it ends with the process.
        started_at: when the process was started, on the monotonic clock.
        failures: one after the other, since it last recovered.
        restart_at: when it is to be started again.
    """

    name: str
    command: Sequence[str]
    log: Path
    endless: bool
    on_line: Callable[[str], None] | None
    process: subprocess.Popen[str] = field(init=False)
    relay: threading.Thread | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)
    failures: int = 0
    restart_at: float | None = None

    @property
    def state(self) -> str:
        """One of running, restarting and finished."""
        if self.restart_at is not None:
            return "restarting"
        return "running" if self.process.poll() is None else "finished"

    def log_end(self) -> str:
        """The last lines of the log, indented."""
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            return "".join(f"\n  {line.rstrip()}" for line in deque(lines, maxlen=_LOG_LINES))


class Supervisor:
    """Starts processes, and ends them when it is closed.

    Args:
        notify: is told of processes that failed and are started again.
        patience: seconds between asking the processes to end and ending them by force.
        hurry: says whether to be done with patience.
        environment: variables of the processes, beside our own.
    """

    def __init__(
        self,
        notify: Callable[[str], None],
        *,
        patience: float = 5.0,
        hurry: Callable[[], bool] = lambda: False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.children: list[Child] = []
        self._notify = notify
        self._patience = patience
        self._hurry = hurry
        self._environment = {**python_environment(), **(environment or {})}
        self.lifeline, self._writing_end = os.pipe()
        """The descriptor on which the processes can learn of our end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        endless: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> Child:
        """Start a process; see `Child` for the arguments. The log begins anew."""
        private_folder(log.parent)
        log.write_bytes(b"")
        child = Child(name, command, log, endless, on_line)
        self._launch(child)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Start what failed again, when its time has come.

        Raises:
            ProcessError: a process failed too often, or in a way that another start cannot cure.
        """
        for child in self.children:
            now = time.monotonic()
            if child.restart_at is None:
                self._see_whether_it_failed(child, now)
            elif now >= child.restart_at:
                child.restart_at = None
                self._launch(child)

    def close(self) -> None:
        """End every process; returns when none is left."""
        # A closed pipe asks whoever cannot be reached by a signal yet.
        for descriptor in {self._writing_end, self.lifeline} - {-1}:
            os.close(descriptor)
        self._writing_end = self.lifeline = -1
        processes = [child.process for child in self.children]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + self._patience
        while _running(processes) and time.monotonic() < deadline and not self._hurry():
            time.sleep(_POLL_SECONDS)
        for process in _running(processes):
            process.kill()
        for process in processes:
            process.wait()

    def _see_whether_it_failed(self, child: Child, now: float) -> None:
        code = child.process.poll()
        if code is None or (code == 0 and not child.endless):
            return
        if now - child.started_at > _RECOVERED_AFTER:
            child.failures = 0
        if code == _WRONG_INPUT or child.failures == len(BACK_OFF):
            raise ProcessError(
                f"{child.name} has ended {how_it_ended(code)}; its log is {child.log}, and ends:"
                f"{child.log_end()}"
            )
        wait = BACK_OFF[child.failures]
        child.failures += 1
        child.restart_at = now + wait
        self._notify(
            f"{child.name} has ended {how_it_ended(code)}, starting it again in {wait:g} s"
        )

    def _launch(self, child: Child) -> None:
        with child.log.open("ab") as output:
            child.process = subprocess.Popen(
                child.command,
                stdin=subprocess.DEVNULL,
                stdout=output if child.on_line is None else subprocess.PIPE,
                stderr=output,
                env=self._environment,
                pass_fds=(self.lifeline,),
                start_new_session=True,
                text=True,
            )
        child.started_at = time.monotonic()
        if child.on_line is not None and child.process.stdout is not None:
            child.relay = threading.Thread(
                target=_relay, args=(child.process.stdout, child.on_line), daemon=True
            )
            child.relay.start()


def _relay(lines: IO[str], on_line: Callable[[str], None]) -> None:
    with lines:
        for line in lines:
            on_line(line)


def _running(processes: Iterable[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    return [process for process in processes if process.poll() is None]
