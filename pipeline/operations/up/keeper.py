"""The local broker for as long as it is needed, in the care of a process of its own.

A broker outlives whoever starts it. So that it is stopped even when ``dpstream up`` is killed, a
keeper starts it and waits for the end of its lifeline (`lifeline`) or for SIGTERM. A
broker that ran before is left running, unless another keeper had started it: the last of them stops
it (`broker_users`). One that breaks down meanwhile is started again.

``python -m dpstream.pipeline.operations.up.keeper [keep] [brief]`` prints a `Message` a line, in
JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Literal, NoReturn, Self, TypedDict

from dpstream.pipeline.kafka.local_kafka import LocalKafka, LocalKafkaError
from dpstream.pipeline.lifeline import follow
from dpstream.pipeline.operations.processes import python_module
from dpstream.pipeline.operations.restarted_processes import ProcessError, RestartedProcesses
from dpstream.pipeline.operations.up.broker_users import BrokerUsers
from dpstream.pipeline.state import FolderInUse, kafka_folder

_STOP_GRACE = 5.0
_PATIENCE = 2 * _STOP_GRACE
_CHECK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0
_RESTARTS = 3
# The shell that becomes the broker has written down its pid by then.
_PID_SECONDS = 0.5


class Message(TypedDict):
    """What a keeper has to say.

    ``mine``: the broker was not running, so it is stopped at the end. ``ready``: ``text`` is its
    address. ``progress``: a sentence. ``failed``: why there is no broker.
    """

    kind: Literal["mine", "ready", "progress", "failed"]
    text: str


class KeptBroker:
    """The local broker, kept until this is closed.

    Args:
        post: is given what the keeper says, in another thread.
        keep: leave the broker running in any case.
        brief: whether one that is started is for minutes, see `LocalKafka.start`.
        hurry: says whether to stop it by force.
    """

    def __init__(
        self,
        post: Callable[[Message], None],
        *,
        keep: bool = False,
        brief: bool = False,
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        self._post = post
        self._keep = keep
        self._mine = False
        self._failed = False
        self._processes = RestartedProcesses(lambda sentence: None, patience=_PATIENCE, hurry=hurry)
        self._keeper = self._processes.start(
            "the keeper of the local Kafka",
            python_module(
                "dpstream.pipeline.operations.up.keeper", *["keep"] * keep, *["brief"] * brief
            ),
            kafka_folder() / "keeper.log",
            on_line=self._hear,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def check(self) -> None:
        """See that the keeper is there.

        Raises:
            ProcessError: it is not, and has not said why.
        """
        if self._keeper.process.poll() is None:
            return
        # Its last words may still be on their way.
        self._keeper.process.reason(_LAST_WORDS_SECONDS)
        if not self._failed:
            raise ProcessError(f"{self._keeper.name} has ended:{self._keeper.log_end()}")

    def close(self) -> None:
        """Stop the broker, unless it ran before or is to be kept."""
        self._processes.close()
        # One that was killed could not do so.
        undone = self._keeper.process.returncode != 0 and self._mine and not self._keep
        if undone and BrokerUsers(kafka_folder()).leave():
            LocalKafka(kafka_folder()).stop(grace=0.0)

    def _hear(self, line: str) -> None:
        message: Message = json.loads(line)
        self._mine |= message["kind"] == "mine"
        self._failed |= message["kind"] == "failed"
        self._post(message)


def main() -> int:
    """Be a keeper."""
    signal.signal(signal.SIGTERM, _leave)
    follow(patience=_PATIENCE)
    keep, brief = (option in sys.argv[1:] for option in ("keep", "brief"))
    broker = LocalKafka(kafka_folder())
    ready = False
    users = BrokerUsers(kafka_folder())
    status = broker.status()
    mine = not status.running
    brief_one = mine or users.is_marked(status.pid)
    try:
        if mine:
            _say("mine", "")
        for _ in range(1 + _RESTARTS):
            started = broker.start(on_progress=lambda text: _say("progress", text), brief=brief)
            if brief_one:
                users.mark(None if keep else started.pid)
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
