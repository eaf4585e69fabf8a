"""The live page of a run: ``dpstream serve`` in a process of its own."""

from __future__ import annotations

import os
import socket
import webbrowser
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.processes import dpstream_command
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.state import state_home

PORT = 8765
"""Where the page is, unless something else is there."""


class Page:
    """The page of some jobs, beside the truth, until the processes are ended.

    Args:
        connection: the cluster.
        truths: the input of each job, by the job's name; None: it says nothing about
            what is published.
        pages: starts the process.
    """

    def __init__(
        self, connection: Connection, truths: Mapping[str, Path | None], pages: RestartedProcesses
    ) -> None:
        self._port = _free_port()
        self.address = address_of(self._port, truths)
        self._answered = False
        known = ((name, path) for name, path in truths.items() if path is not None)
        truth = [text for name, path in known for text in ("--truth", f"{name}={path}")]
        pages.start(
            "serve",
            dpstream_command(
                *("serve", *truths, "--port", str(self._port), *truth), *connection.arguments()
            ),
            state_home() / "up" / "serve.log",
        )

    def just_ready(self) -> bool:
        """Whether it answers and did not before; true once."""
        if self._answered:
            return False
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=0.2):
                self._answered = True
        except OSError:
            pass
        return self._answered

    def open_browser(self) -> None:
        """Show the page to whoever sits before this machine."""
        webbrowser.open(self.address)


def address_of(port: int, jobs: Iterable[str]) -> str:
    """Where jobs are looked at, all of them together.

    >>> address_of(8765, ["students", "students-again", "teachers"])
    'http://127.0.0.1:8765/?job=students&with=students-again,teachers'
    """
    first, *others = jobs
    shown = urlencode({"job": first} | ({"with": ",".join(others)} if others else {}), safe=",")
    return f"http://127.0.0.1:{port}/?{shown}"


def has_browser(environment: Container[str] = os.environ) -> bool:
    """Whether this machine has a screen with a browser on it."""
    displayed = os.name == "nt" or os.uname().sysname == "Darwin"
    if not displayed and not ("DISPLAY" in environment or "WAYLAND_DISPLAY" in environment):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _free_port() -> int:
    for port in (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise AssertionError("port 0 is any free port")
