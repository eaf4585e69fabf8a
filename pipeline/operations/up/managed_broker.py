"""Run the local broker for as long as it is needed, from a manager process.

* A broker outlives the process that starts it. A manager process starts it, waits for its
  parent-death watch (`parent_watch`) or SIGTERM, and stops it, even if ``dpstream up`` is killed.
* A broker that was already running stays running, unless another manager started it. In that case,
  the last manager to leave stops it (`BrokerUsers`).
* A broker that crashes while it is needed is restarted.

``python -m dpstream.pipeline.operations.up.managed_broker`` prints one `Message` per line, in JSON.
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
from dpstream.pipeline.operations.processes import python_module
from dpstream.pipeline.operations.restarted_processes import ProcessError, RestartedProcesses
from dpstream.pipeline.parent_watch import follow
from dpstream.pipeline.state import FolderInUse, kafka_folder, private_folder

_STOP_GRACE = 5.0
_STOP_SECONDS = 2 * _STOP_GRACE
_CHECK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0
_RESTARTS = 3
# By then, the shell that becomes the broker has written its process ID.
_PID_SECONDS = 0.5
# Two users that leave at the same time can briefly block each other.
_LEAVING_SECONDS = 0.5


class BrokerUsers:
    """A user of a broker, from now until `leave` or the end of the process.

    Each user holds a shared lock on a file, which the operating system releases with the process. A
    leaving user that can lock the file exclusively is the last user. The file `mark` holds the
    process ID of a broker that the last user must stop.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = BrokerUsers(Path(folder)), BrokerUsers(Path(folder))
    ...     first.leave(), second.leave()
    (False, True)
    """

    def __init__(self, folder: Path) -> None:
        private_folder(folder)
        self.mark = folder / "started-by-up"
        self._descriptor = os.open(folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def is_marked(self, pid: int | None) -> bool:
        return self.mark.exists() and self.mark.read_text() == str(pid)

    def leave(self) -> bool:
        """Stop using the broker, and return whether this was the last user."""
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
    """A message from the manager process, by ``kind``.

    ``mine``: the broker was not running, so it is stopped at the end. ``ready``: ``text`` is the
    broker's address. ``progress``: ``text`` is a sentence. ``failed``: ``text`` is the reason.
    """

    kind: Literal["mine", "ready", "progress", "failed"]
    text: str


class ManagedBroker(RestartedProcesses):
    """The local broker, kept running until `close`, which kills it if `hurry` returns True.

    `post` is called with the manager's messages, in another thread.
    """

    def __init__(
        self, post: Callable[[Message], None], *, hurry: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(lambda sentence: None, timeout=_STOP_SECONDS, hurry=hurry)
        self._post = post
        self._seen: set[str] = set()
        self._manager = self.start(
            "the manager of the local Kafka",
            python_module("dpstream.pipeline.operations.up.managed_broker"),
            kafka_folder() / "broker-manager.log",
            on_line=self._hear,
        )

    def check(self) -> None:
        """Raise ProcessError if the manager process has exited without reporting a reason."""
        if self._manager.process.poll() is None:
            return
        # The last messages of the manager might still be in transit.
        self._manager.process.reason(_LAST_WORDS_SECONDS)
        if "failed" not in self._seen:
            raise ProcessError(f"{self._manager.name} exited:{self._manager.log_end()}")

    def close(self) -> None:
        """Stop the manager, and the broker unless it was already running before."""
        super().close()
        # A manager that was killed has not stopped the broker.
        undone = self._manager.process.returncode != 0 and "mine" in self._seen
        if undone and BrokerUsers(kafka_folder()).leave():
            LocalKafka(kafka_folder()).stop(grace=0.0)

    def _hear(self, line: str) -> None:
        message: Message = json.loads(line)
        self._seen.add(message["kind"])
        self._post(message)


def main() -> int:
    signal.signal(signal.SIGTERM, _leave)
    follow(timeout=_STOP_SECONDS)
    broker, users = LocalKafka(kafka_folder(), brief=True), BrokerUsers(kafka_folder())
    status, ready = broker.status(), False
    mine = not status.running
    to_be_stopped = mine or users.is_marked(status.pid)
    try:
        if mine:
            _print_message("mine", "")
        for _ in range(1 + _RESTARTS):
            started = broker.start(on_progress=lambda text: _print_message("progress", text))
            if to_be_stopped:
                users.mark.write_text(str(started.pid))
            ready = True
            _print_message("ready", str(started.bootstrap_servers))
            while broker.status().running:
                time.sleep(_CHECK_SECONDS)
            _print_message("progress", f"the local Kafka crashed; its log is {broker.log_path}")
        _print_message(
            "failed", f"the local Kafka crashes repeatedly; its log is {broker.log_path}"
        )
        return 1
    except (LocalKafkaError, FolderInUse) as error:
        _print_message("failed", str(error))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if mine and not ready:
            time.sleep(_PID_SECONDS)
            broker.stop(grace=_STOP_GRACE)
        else:
            # Do not stop a broker that a user has started manually meanwhile.
            to_be_stopped = users.is_marked(broker.status().pid)
            if users.leave() and to_be_stopped:
                broker.stop(grace=_STOP_GRACE)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # Ignore further signals: one could interrupt the cleanup that the first started.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def _print_message(kind: Literal["mine", "ready", "progress", "failed"], text: str) -> None:
    print(json.dumps(Message(kind=kind, text=text)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
