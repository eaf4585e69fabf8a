"""Run the local broker for as long as it is needed, from a manager process.

* A broker outlives the process that starts it. A manager process starts it, waits for its
  parent-death watch (`parent_watch`) or SIGTERM, and stops it, even if ``dpstream up`` is killed.
* A broker that was already running stays running, unless another manager started it. In that case,
  the last manager to leave stops it (`BrokerUsers`).
* A broker that crashes while it is needed is restarted.

``python -m dpstream.pipeline.operations.up.managed_broker`` prints one `Message` per line, in JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Literal, NoReturn, TypedDict

from dpstream.pipeline.kafka.local_kafka import LocalKafka, LocalKafkaError
from dpstream.pipeline.kafka.local_kafka.broker_users import STOP_GRACE, BrokerUsers
from dpstream.pipeline.operations.processes import python_module
from dpstream.pipeline.operations.restarted_processes import ProcessError, RestartedProcesses
from dpstream.pipeline.parent_watch import follow
from dpstream.pipeline.state import FolderInUse, kafka_folder

_STOP_SECONDS = 2 * STOP_GRACE
_CHECK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0
_RESTARTS = 3
# By then, the shell that becomes the broker has written its process ID.
_PID_SECONDS = 0.5


class Message(TypedDict):
    """A message from the manager process, by ``kind``.

    ``mine``: the broker was not running, so it is stopped at the end. ``ready``: ``text`` is the
    broker's address. ``progress``: ``text`` is a sentence. ``failed``: ``text`` is the reason.
    """

    kind: Literal["mine", "ready", "progress", "failed"]
    text: str


class ManagedBroker(RestartedProcesses):
    """The local broker until `close`; another thread passes the manager's messages to `post`."""

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
        if self._manager.process.poll() is None:
            return
        # The last messages of the manager might still be in transit.
        self._manager.process.reason(_LAST_WORDS_SECONDS)
        if "failed" not in self._seen:
            raise ProcessError(f"{self._manager.name} exited:{self._manager.log_end()}")

    def close(self) -> None:
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
            "failed", f"the local Kafka broker crashes repeatedly; its log is {broker.log_path}"
        )
        return 1
    except (LocalKafkaError, FolderInUse) as error:
        _print_message("failed", str(error))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if mine and not ready:
            time.sleep(_PID_SECONDS)
            broker.stop(grace=STOP_GRACE)
        else:
            # Do not stop a broker that a user has started manually meanwhile.
            to_be_stopped = users.is_marked(broker.status().pid)
            if users.leave() and to_be_stopped:
                broker.stop(grace=STOP_GRACE)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # Ignore further signals: one could interrupt the cleanup that the first started.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def _print_message(kind: Literal["mine", "ready", "progress", "failed"], text: str) -> None:
    print(json.dumps(Message(kind=kind, text=text)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
