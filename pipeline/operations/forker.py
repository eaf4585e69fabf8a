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


@dataclass(frozen=True, slots=True)
class Request:
    """A process that is wanted. With it come descriptors.

    The first takes the number of the process, and is closed once it is the child of whoever asked;
    then come the end of the lifeline that the process holds, what takes what it prints, and those
    that `variables` name.

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

    def send(self, channel: socket.socket, descriptors: Sequence[int]) -> None:
        """Send it to the forker."""
        socket.send_fds(channel, [json.dumps(asdict(self)).encode()], list(descriptors))


def _serve(channel: socket.socket) -> Request | None:
    """Return what is to be run, in a process that was forked; None when nobody asks any more."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 3 + MORE_DESCRIPTORS)
        if not text:
            return None
        answer, *handed_down = descriptors
        if _fork_for_another(answer):
            channel.close()
            request = Request(**json.loads(text))
            held, log, *more = handed_down
            _become(request.name, held, log, dict(zip(request.variables, more, strict=True)))
            return request
        for descriptor in handed_down:
            os.close(descriptor)


def _fork_for_another(answer: int) -> bool:
    """Fork a process whose parent ends at once, for whoever adopts it; whether this is it."""
    parent = -1
    # Whoever asked learns of a failure by the end of the answer.
    with suppress(OSError):
        parent = os.fork()
        if parent == 0:
            number = os.fork()
            if number == 0:
                os.close(answer)
                return True
            os.write(answer, str(number).encode())
    if parent == 0:
        os._exit(0)
    if parent > 0:
        # It fails, after all, where SIGCHLD is ignored.
        with suppress(ChildProcessError):
            os.waitpid(parent, 0)
    os.close(answer)
    return False


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
        Path("/proc/self/comm").write_text(name)


def main() -> None:
    """Be the forker, or what it has forked."""
    # It ends with its channel. What is forked has lifelines of its own.
    os.close(int(os.environ.pop(lifeline.VARIABLE)))
    channel = socket.socket(fileno=int(os.environ.pop(CHANNEL_VARIABLE)))
    for module in sys.argv[1:]:
        import_module(module)
    # Who asks where a frame is from, as Faust does, has the paths of all modules looked up once.
    inspect.getmodule(sys._getframe())
    # Memory that no collection touches stays shared with all that is forked.
    gc.collect()
    gc.freeze()
    channel.send(IMPORTED)
    request = _serve(channel)
    if request is not None:
        sys.argv = [request.module, *request.arguments]
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
