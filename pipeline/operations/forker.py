"""The process that `operations.forks` has processes forked from.

It has one thread, no generator of randomness and nothing that belongs to one process, so that what
is forked begins as any other process would. It ends with whoever has started it.

``python -m dpstream.pipeline.operations.forker MODULE...`` imports the modules, says so on the
socket that `CHANNEL_VARIABLE` names, and forks a process for every request on it (`Request`).
"""

from __future__ import annotations

import gc
import inspect
import io
import json
import os
import runpy
import selectors
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from dpstream.pipeline import lifeline

IMPORTED = b"imported"
"""What the forker says first."""

CHANNEL_VARIABLE = "DPSTREAM_FORKER_CHANNEL"
"""The variable of the environment that names the descriptor of its socket."""

REQUEST_BYTES = 1 << 17
"""No request is longer."""

MORE_DESCRIPTORS = 4
"""No process is handed down more of them."""

_KERNEL_NAME = Path("/proc/self/comm")


@dataclass(frozen=True, slots=True)
class Request:
    """A process that is wanted. With it come three descriptors and more, see `send`.

    Attributes:
        name: that the system shows.
        module: that it runs.
        arguments: of the module.
        variables: of the environment, which name the further descriptors that it is handed down.
    """

    name: str
    module: str
    arguments: Sequence[str]
    variables: Sequence[str] = ()

    def send(
        self,
        channel: socket.socket,
        answers: socket.socket,
        held: socket.socket,
        log: int,
        more: Sequence[int] = (),
    ) -> None:
        """Send it.

        Args:
            channel: to the forker.
            answers: takes the number of the process, with a descriptor of it (pidfd), and in the
                end its exit code or the negative number of a signal.
            held: the end of the lifeline that the process holds.
            log: takes what the process prints.
            more: the further descriptors.
        """
        descriptors = [answers.fileno(), held.fileno(), log, *more]
        socket.send_fds(channel, [json.dumps(asdict(self)).encode()], descriptors)


@dataclass(frozen=True, slots=True)
class _Forked:
    pid: int
    answers: socket.socket


class _Forker:
    """Forks until there is nobody to ask for it; in what is forked, `serve` returns a request."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._children: dict[int, _Forked] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> Request | None:
        """Returns what is to be run, in a process that was forked; None when all is over."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._channel:
                    self._bury(key.fd)
                    continue
                text, descriptors, _, _ = socket.recv_fds(
                    self._channel, REQUEST_BYTES, 3 + MORE_DESCRIPTORS
                )
                if not text:
                    return None
                request = Request(**json.loads(text))
                answers, held, log, *more = descriptors
                if self._fork(answers, (held, log, *more)):
                    self._leave()
                    named = dict(zip(request.variables, more, strict=True))
                    _become(request.name, held, log, named)
                    return request

    def _fork(self, answers_number: int, handed_down: Sequence[int]) -> bool:
        answers = socket.socket(fileno=answers_number)
        try:
            pid = os.fork()
        except OSError:
            # Whoever asked learns of it by the end of the answers.
            answers.close()
            pid = -1
        if pid == 0:
            answers.close()
            return True
        for descriptor in handed_down:
            os.close(descriptor)
        if pid > 0:
            descriptor = os.pidfd_open(pid)
            self._children[descriptor] = _Forked(pid, answers)
            self._selector.register(descriptor, selectors.EVENT_READ)
            with suppress(OSError):
                socket.send_fds(answers, [str(pid).encode()], [descriptor])
        return False

    def _bury(self, descriptor: int) -> None:
        child = self._children.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        with child.answers, suppress(OSError):
            child.answers.send(str(code).encode())

    def _leave(self) -> None:
        """Let go, in a process that was forked, of what is the forker's."""
        self._selector.close()
        self._channel.close()
        for descriptor, child in self._children.items():
            os.close(descriptor)
            child.answers.close()


def _become(name: str, held: int, log: int, more: Mapping[str, int]) -> None:
    """Be what `operations.processes.Process` starts."""
    os.setsid()
    for number, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(log, number)
        # The forker's own knows of a file that can be sought, which a pipe cannot.
        raw = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115
        encoding = getattr(sys, stream).encoding
        setattr(sys, stream, io.TextIOWrapper(raw, encoding, write_through=True))
    os.close(log)
    os.environ[lifeline.VARIABLE] = str(held)
    os.environ.update({variable: str(number) for variable, number in more.items()})
    with suppress(OSError):
        _KERNEL_NAME.write_text(name)


def main() -> None:
    """Be the forker, or what it has forked."""
    # It ends with its channel. What is forked has lifelines of its own.
    os.close(int(os.environ.pop(lifeline.VARIABLE)))
    channel = socket.socket(fileno=int(os.environ.pop(CHANNEL_VARIABLE)))
    # Where the kernel has no such descriptors, this ends before anybody relies on it.
    os.close(os.pidfd_open(os.getpid()))
    for module in sys.argv[1:]:
        import_module(module)
    # Who asks where a frame is from, as Faust does, has the paths of all modules looked up once.
    inspect.getmodule(sys._getframe())
    # Memory that no collection touches stays shared with all that is forked.
    gc.collect()
    gc.freeze()
    channel.send(IMPORTED)
    request = _Forker(channel).serve()
    if request is not None:
        sys.argv = [request.module, *request.arguments]
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
