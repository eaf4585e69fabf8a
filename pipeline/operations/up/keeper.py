"""The local broker for as long as it is needed, in the care of a process of its own.

A broker outlives whoever starts it. So that it is stopped even when ``dpstream up`` is killed, a
keeper starts it and waits for the end of its lifeline (`lifeline`) or for SIGTERM. A
broker that ran before is left running, unless another keeper had started it: the last of them stops
it (`BrokerUsers`). One that breaks down meanwhile is started again.

``python -m dpstream.pipeline.operations.up.keeper`` prints a `Message` a line, in JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn, TypedDict

from dpstream.pipeline.kafka.local_kafka import LocalKafka, LocalKafkaError
from dpstream.pipeline.lifeline import follow
from dpstream.pipeline.operations.processes import python_module
from dpstream.pipeline.operations.restarted_processes import ProcessError, RestartedProcesses
from dpstream.pipeline.state import FolderInUse, kafka_folder, private_folder

_STOP_GRACE = 5.0
_PATIENCE = 2 * _STOP_GRACE
_CHECK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0
_RESTARTS = 3
# The shell that becomes the broker has written down its pid by then.
_PID_SECONDS = 0.5
# Two that leave at once may stand in each other's way for a moment.
_LEAVING_SECONDS = 0.5


class BrokerUsers:
    """A user of a broker, from now on until `leave` or the end of the process.

    Each holds a shared lock on a file, which the operating system drops with its process; whoever
    leaves and can lock it alone is the last one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = BrokerUsers(Path(folder)), BrokerUsers(Path(folder))
    ...     first.leave(), second.leave()
    (False, True)

    Args:
        folder: of the broker; made if missing.

    Attributes:
        mark: the file with the process id of a broker that the last user is to stop.
    """

    def __init__(self, folder: Path) -> None:
        private_folder(folder)
        self.mark = folder / "started-by-up"
        self._descriptor = os.open(folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def is_marked(self, pid: int | None) -> bool:
        """Whether the broker that runs as this process is to be stopped by the last user."""
        return self.mark.exists() and self.mark.read_text() == str(pid)

    def leave(self) -> bool:
        """Use it no more; whether nobody else does."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        deadline = time.monotonic() + _LEAVING_SECONDS
        try:
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.02)
                else:
                    return True
            return False
        finally:
            os.close(self._descriptor)


class Message(TypedDict):
    """What a keeper has to say.

    ``mine``: the broker was not running, so it is stopped at the end. ``ready``: ``text`` is its
    address. ``progress``: a sentence. ``failed``: why there is no broker.
    """

    kind: Literal["mine", "ready", "progress", "failed"]
    text: str


class KeptBroker(RestartedProcesses):
    """The local broker, kept until this is closed.

    Args:
        post: is given what the keeper says, in another thread.
        hurry: says whether to stop it by force.
    """

    def __init__(
        self, post: Callable[[Message], None], *, hurry: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(lambda sentence: None, patience=_PATIENCE, hurry=hurry)
        self._post = post
        self._heard: set[str] = set()
        self._keeper = self.start(
            "the keeper of the local Kafka",
            python_module("dpstream.pipeline.operations.up.keeper"),
            kafka_folder() / "keeper.log",
            on_line=self._hear,
        )

    def check(self) -> None:
        """See that the keeper is there.

        Raises:
            ProcessError: it is not, and has not said why.
        """
        if self._keeper.process.poll() is None:
            return
        # Its last words may still be on their way.
        self._keeper.process.reason(_LAST_WORDS_SECONDS)
        if "failed" not in self._heard:
            raise ProcessError(f"{self._keeper.name} has ended:{self._keeper.log_end()}")

    def close(self) -> None:
        """Stop the broker, unless it ran before."""
        super().close()
        # A keeper that was killed could not do so.
        undone = self._keeper.process.returncode != 0 and "mine" in self._heard
        if undone and BrokerUsers(kafka_folder()).leave():
            LocalKafka(kafka_folder()).stop(grace=0.0)

    def _hear(self, line: str) -> None:
        message: Message = json.loads(line)
        self._heard.add(message["kind"])
        self._post(message)


def main() -> int:
    """Be a keeper."""
    signal.signal(signal.SIGTERM, _leave)
    follow(patience=_PATIENCE)
    broker, users = LocalKafka(kafka_folder()), BrokerUsers(kafka_folder())
    status, ready = broker.status(), False
    mine = not status.running
    to_be_stopped = mine or users.is_marked(status.pid)
    try:
        if mine:
            _say("mine", "")
        for _ in range(1 + _RESTARTS):
            started = broker.start(on_progress=lambda text: _say("progress", text), brief=True)
            if to_be_stopped:
                users.mark.write_text(str(started.pid))
            ready = True
            _say("ready", str(started.bootstrap_servers))
            while broker.status().running:
                time.sleep(_CHECK_SECONDS)
            _say("progress", f"the local Kafka has broken down, its log is {broker.log_path}")
        _say("failed", f"the local Kafka breaks down again and again: see {broker.log_path}")
        return 1
    except (LocalKafkaError, FolderInUse) as error:
        _say("failed", str(error))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if mine and not ready:
            time.sleep(_PID_SECONDS)
            broker.stop(grace=_STOP_GRACE)
        else:
            # What is started by hand meanwhile is another's.
            to_be_stopped = users.is_marked(broker.status().pid)
            if users.leave() and to_be_stopped:
                broker.stop(grace=_STOP_GRACE)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # Once is enough: the second could interrupt what the first has set going.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def _say(kind: Literal["mine", "ready", "progress", "failed"], text: str) -> None:
    print(json.dumps(Message(kind=kind, text=text)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
