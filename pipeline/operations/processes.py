"""Starting our own modules as processes: each on a lifeline, none of them left in the end."""

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

from dpstream.pipeline import lifeline

RECOVERED_AFTER = 60.0
"""A process that ran for so many seconds has recovered from the failures before."""

_POLL_SECONDS = 0.02


def python_module(module: str, *arguments: str) -> list[str]:
    """The command line that runs one of our modules, wherever the user stands."""
    # -P: the working directory may hold something else of the same name.
    return [sys.executable, "-P", "-m", module, *arguments]


def module_and_arguments(command: Sequence[str]) -> Sequence[str]:
    """What `python_module` was given.

    Raises:
        ValueError: it has not made this command line.

    >>> module_and_arguments(python_module("dpstream.pipeline.cli", "list", "--json"))
    ['dpstream.pipeline.cli', 'list', '--json']
    """
    start = python_module("")[:-1]
    if command[: len(start)] != start:
        raise ValueError(f"{' '.join(command)} runs none of our modules")
    return command[len(start) :]


def dpstream_command(*arguments: str) -> list[str]:
    """The command line of ``dpstream ARGUMENTS...``, which then holds on to its lifeline."""
    return python_module("dpstream.pipeline.cli", *arguments)


def how_it_ended(code: int) -> str:
    """The end of a process in words, from its return code.

    >>> how_it_ended(2), how_it_ended(-9)
    ('with exit code 2', 'by signal 9')
    """
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"


class Running(Protocol):
    """A process that was started, as far as those who end it, or start it again, need to know."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def returncode(self) -> int | None:
        """What `poll` has returned last."""

    def poll(self) -> int | None:
        """Its exit code if it has ended, or the number of the signal it has ended by, negative."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it by force."""

    def reason(self, seconds: float = 1.0) -> str:
        """Why it has ended, as it has told; empty if it had no time to.

        Waits so long for the last of what it printed to be passed on.
        """

    def let_go(self) -> None:
        """Let its lifeline go: it is to end, or has ended."""


class OnLifeline:
    """A process on a lifeline, as far as what it says reaches whoever started it.

    Args:
        lifeline_end: the starter's own.
    """

    def __init__(self, lifeline_end: socket.socket) -> None:
        self._lifeline = lifeline_end
        self._relay: threading.Thread | None = None

    def reason(self, seconds: float = 1.0) -> str:
        """See `Running`."""
        if self._relay is not None:
            self._relay.join(seconds)
        return lifeline.told(self._lifeline)

    def let_go(self) -> None:
        """See `Running`."""
        self._lifeline.close()

    def relay(self, printed: IO[str], on_line: Callable[[str], None]) -> None:
        """Pass on what the process prints, line by line, in another thread."""

        def pass_on() -> None:
            with printed:
                for line in printed:
                    if text := line.rstrip():
                        on_line(text)

        self._relay = threading.Thread(target=pass_on, daemon=True)
        self._relay.start()


class Process(OnLifeline, subprocess.Popen[str]):
    """A process on a lifeline, see `dpstream.pipeline.lifeline`.

    It is the leader of a session of its own, so that Ctrl-C and the end of the terminal reach it
    only through whoever started it.

    Args:
        command: the command line.
        log: the file that takes what it prints, after what is there.
        on_line: is given what it prints, line by line, in another thread; with a log, what it
            prints on standard output.
        descriptors: that are handed down, by the variable of the environment that names each.

    Raises:
        OSError: the system has no room for it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        descriptors: Mapping[str, int] | None = None,
    ) -> None:
        lifeline_end, handed_down = socket.socketpair()
        OnLifeline.__init__(self, lifeline_end)
        named = {lifeline.VARIABLE: handed_down.fileno(), **(descriptors or {})}
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
    """Starts processes; arguments as of `Process`, and the name that the system may show."""

    def __call__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        descriptors: Mapping[str, int] | None = None,
    ) -> Running:
        """Start one."""


def start_process(name: str, command: Sequence[str], **more: Any) -> Running:
    """Start a `Process`: see `Starter`."""
    return Process(command, **more)


def end_all(
    processes: Iterable[Running], patience: float, hurry: Callable[[], bool] = lambda: False
) -> None:
    """End processes, by force if they do not within `patience` seconds; returns when none is left.

    Args:
        processes: any, also some that have ended.
        patience: seconds.
        hurry: says whether to be done with patience.
    """
    left = list(processes)
    for process in left:
        # The lifeline asks whoever cannot be reached by a signal yet.
        process.let_go()
        process.terminate()
    deadline = time.monotonic() + patience
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
    """How long a process that has failed is not started again: twice as long each time.

    Attributes:
        first: seconds after the first failure.
        longest: seconds.
        failures: one after the other, since the process last recovered.
    """

    first: float
    longest: float
    failures: int = 0

    def failed(self, lasted: float) -> float:
        """The process has failed after so many seconds; returns how many to wait.

        >>> back_off = BackOff(1.0, 60.0)
        >>> [back_off.failed(lasted) for lasted in (5.0, 5.0, 5.0, 100.0)]
        [1.0, 2.0, 4.0, 1.0]
        """
        if lasted >= RECOVERED_AFTER:
            self.failures = 0
        # The exponent is bounded, so that years of failures overflow nothing.
        wait = min(self.first * 2.0 ** min(self.failures, 16), self.longest)
        self.failures += 1
        return wait


def _environment() -> dict[str, str]:
    # Where `dpstream` lies: it need not be installed.
    places = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "PYTHONUNBUFFERED": "1",
    }
