"""Start modules of this package as processes with parent-death watches, and end such processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from dpstream.pipeline import parent_watch

RECOVERED_AFTER = 60.0
"""Seconds of running after which a process's earlier failures no longer count."""

_POLL_SECONDS = 0.02


def python_module(module: str, *arguments: str) -> list[str]:
    """Return a command line that runs a module of this package in any working directory."""
    # -P, because the working directory might contain another module of the same name.
    return [sys.executable, "-P", "-m", module, *arguments]


def module_and_arguments(command: Sequence[str]) -> Sequence[str]:
    """Return the arguments of the call to `python_module` that created a command line.

    >>> module_and_arguments(python_module("dpstream.pipeline.cli", "list", "--json"))
    ['dpstream.pipeline.cli', 'list', '--json']
    """
    start = python_module("")[:-1]
    if command[: len(start)] != start:
        raise ValueError(f"'{' '.join(command)}' does not start with '{' '.join(start)}'")
    return command[len(start) :]


def dpstream_command(*arguments: str) -> list[str]:
    return python_module("dpstream.pipeline.cli", *arguments)


def how_it_ended(code: int) -> str:
    """Describe how a process ended, given its return code.

    >>> how_it_ended(2), how_it_ended(-9)
    ('exited with code 2', 'was killed by signal 9')
    """
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


class Running(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """Latest result of `poll`."""

    def poll(self) -> int | None:
        """Return None while the process runs, then its exit code or the negative signal number."""

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def reason(self, seconds: float = 1.0) -> str:
        """Return the process's own reason for its exit; wait up to `seconds` for its output."""

    def let_go(self) -> None:
        """Close the parent-death watch, so that the process ends if it still runs."""


class WatchingParent:
    def __init__(self, parent_end: socket.socket) -> None:
        self._parent_end = parent_end
        self._relay: threading.Thread | None = None

    def reason(self, seconds: float = 1.0) -> str:
        if self._relay is not None:
            self._relay.join(seconds)
        return parent_watch.received_reason(self._parent_end)

    def let_go(self) -> None:
        self._parent_end.close()

    def relay(self, printed: IO[str], on_line: Callable[[str], None]) -> None:
        def pass_on() -> None:
            with printed:
                for line in printed:
                    if text := line.rstrip():
                        on_line(text)

        self._relay = threading.Thread(target=pass_on, daemon=True)
        self._relay.start()


class Process(WatchingParent, subprocess.Popen[str]):
    """A process with a parent-death watch, see `dpstream.pipeline.parent_watch`.

    The process leads its own session. Ctrl-C and the end of the terminal session therefore reach it
    only through the process that started it. Its output is appended to `log`; in another thread,
    `on_line` is called with each line, if there is a log, only of standard output. `descriptors`
    are passed on, by the environment variable that contains each.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        descriptors: Mapping[str, int] | None = None,
    ) -> None:
        parent_end, handed_down = socket.socketpair()
        WatchingParent.__init__(self, parent_end)
        named = {parent_watch.VARIABLE: handed_down.fileno(), **(descriptors or {})}
        try:
            with handed_down, nullcontext() if log is None else log.open("ab") as output:
                subprocess.Popen.__init__(
                    self,
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output if on_line is None else subprocess.PIPE,
                    stderr=subprocess.STDOUT if output is None else output,
                    env=_environment() | {name: str(number) for name, number in named.items()},
                    pass_fds=tuple(named.values()),
                    start_new_session=True,
                    text=True,
                    errors="replace",
                )
        except OSError:
            self.let_go()
            raise
        if on_line is not None:
            assert self.stdout is not None
            self.relay(self.stdout, on_line)


class Starter(Protocol):
    """Function that starts a process, given its displayed `name` and the arguments of `Process`."""

    def __call__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        descriptors: Mapping[str, int] | None = None,
    ) -> Running: ...


def start_process(name: str, command: Sequence[str], **more: Any) -> Running:
    return Process(command, **more)


def end_all(
    processes: Iterable[Running], timeout: float, hurry: Callable[[], bool] = lambda: False
) -> None:
    """End processes, by force after `timeout` seconds or when `hurry` returns True."""
    left = list(processes)
    for process in left:
        # The parent-death watch reaches processes that do not handle signals yet.
        process.let_go()
        process.terminate()
    deadline = time.monotonic() + timeout
    while any(process.poll() is None for process in left):
        if time.monotonic() >= deadline or hurry():
            for process in left:
                process.kill()
            break
        time.sleep(_POLL_SECONDS)
    for process in left:
        process.wait()


@dataclass(slots=True)
class BackOff:
    first: float
    longest: float
    failures: int = 0

    def failed(self, lasted: float) -> float:
        """Record a failure after `lasted` seconds of running, and return the seconds to wait.

        >>> back_off = BackOff(1.0, 60.0)
        >>> [back_off.failed(lasted) for lasted in (5.0, 5.0, 5.0, 100.0)]
        [1.0, 2.0, 4.0, 1.0]
        """
        if lasted >= RECOVERED_AFTER:
            self.failures = 0
        # Bound the exponent, so that it cannot overflow after years of failures.
        wait = min(self.first * 2.0 ** min(self.failures, 16), self.longest)
        self.failures += 1
        return wait


def _environment() -> dict[str, str]:
    # Start with the folder of the package `dpstream`, because the package need not be installed.
    places = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "PYTHONUNBUFFERED": "1",
    }
