"""The forker: the process from which `operations.forks` forks all other processes.

The forker has one thread, and neither a random number generator nor other process state, so a
forked process starts like any other. It imports the modules that its command line names, sends
`IMPORTED` on the socket in `CHANNEL_VARIABLE`, and then forks a process for every `Request` there.
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

from dpstream.pipeline import parent_watch

IMPORTED = b"imported"
"""First message from the forker, sent after the imports."""

CHANNEL_VARIABLE = "DPSTREAM_FORKER_CHANNEL"
"""Environment variable with the file descriptor of the forker's socket."""

REQUEST_BYTES = 1 << 17

MORE_DESCRIPTORS = 4
"""Maximum number of file descriptors passed on in environment variables."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request to fork a process, which the operating system shows as `name`.

    File descriptors are sent with the request, in this order:

    * the answer pipe, which receives the process ID and is closed once the requester has adopted it
    * the child's end of the parent-death watch
    * the file or pipe for the child's output
    * one descriptor for each environment variable in `variables`
    """

    name: str
    module: str
    arguments: Sequence[str]
    variables: Sequence[str] = ()

    def send(self, channel: socket.socket, descriptors: Sequence[int]) -> None:
        socket.send_fds(channel, [json.dumps(asdict(self)).encode()], list(descriptors))


def _serve(channel: socket.socket) -> Request | None:
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 3 + MORE_DESCRIPTORS)
        if not text:
            return None
        answer, *handed_down = descriptors
        if parent_watch.fork_for_another(answer):
            channel.close()
            request = Request(**json.loads(text))
            held, log, *more = handed_down
            _become(request.name, held, log, dict(zip(request.variables, more, strict=True)))
            return request
        for descriptor in handed_down:
            os.close(descriptor)


def _become(name: str, held: int, log: int, more: Mapping[str, int]) -> None:
    """Set up this forked process as `operations.processes.Process` would have started it."""
    os.setsid()
    for number, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(log, number)
        # The inherited stream object is for a seekable file, but `log` can be a pipe.
        raw = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115
        encoding = getattr(sys, stream).encoding
        setattr(sys, stream, io.TextIOWrapper(raw, encoding, write_through=True))
    os.close(log)
    os.environ[parent_watch.VARIABLE] = str(held)
    os.environ.update({variable: str(number) for variable, number in more.items()})
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def main() -> None:
    # The forker exits when its channel closes; forked processes have parent-death watches.
    os.close(int(os.environ.pop(parent_watch.VARIABLE)))
    channel = socket.socket(fileno=int(os.environ.pop(CHANNEL_VARIABLE)))
    for module in sys.argv[1:]:
        import_module(module)
    # Faust inspects frames, which looks up the paths of all modules once: do so before forking.
    inspect.getmodule(sys._getframe())
    # Memory that garbage collection never touches stays shared with forked processes.
    gc.collect()
    gc.freeze()
    channel.send(IMPORTED)
    request = _serve(channel)
    if request is not None:
        sys.argv = [request.module, *request.arguments]
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
