"""Follow ``dpstream.jobs`` as it grows, in a thread, for processes that serve all jobs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from kafka.errors import KafkaError

from dpstream.pipeline.jobs.listed_jobs import ListedJobs
from dpstream.pipeline.kafka.cluster import AccessError, Cluster, ClusterError, NoTopicError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.topics.names import JOBS_TOPIC

_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 2.0
# Seconds until a request lost with a dead broker is repeated.
_ANSWER_SECONDS = 5.0


class JobsReader:
    def __init__(self, cluster: Cluster) -> None:
        self.topic = ListedJobs()
        self.cluster = cluster
        self._position = 0

    def read(self) -> bool:
        """Read to the current end of the topic, and return whether there were new records.

        Raises NoTopicError if the topic no longer exists; known jobs remain valid. Raises
        KafkaError if the broker does not answer; reading can be repeated.
        """
        end = self.cluster.end_offsets(JOBS_TOPIC)[0]
        if end < self._position:
            # The topic was recreated.
            self.topic, self._position = ListedJobs(), 0
        before = self._position
        for record in self.cluster.read(JOBS_TOPIC, start=before, stop=end):
            try:
                self.topic.apply(record.key, record.value)
            except Exception:
                # Treat an invalid record like a job of an incompatible version.
                self.topic.unreadable.add((record.key or b"").decode(errors="replace"))
        self._position = end
        return end > before


@dataclass(frozen=True, slots=True)
class Away:
    reason: str
    rejected: bool = False


Selection = TypeVar("Selection")


class Follower(Generic[Selection]):
    """Read the topic continuously until the follower is closed.

    `meaning` computes a result from the state of the topic. `post` is called with the result at the
    topic's end and after each change, with `Away` when the broker stops answering, with None when
    it answers again, and with an unexpected error, which ends the thread. Each poll calls `look`,
    which returns the seconds to the next one.
    """

    def __init__(
        self,
        connection: Connection,
        meaning: Callable[[ListedJobs], Selection],
        post: Callable[[Selection | Away | Exception | None], None],
        look: Callable[[Cluster], float] = lambda cluster: _POLL_SECONDS,
    ) -> None:
        self._connection = connection
        self._meaning = meaning
        self._post = post
        self._look = look
        self._away = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading, without waiting for a thread that is blocked by a broker."""
        self._over.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        try:
            # kafka-python leaks a thread and sockets with every failed attempt.
            servers = self._connection.bootstrap_servers
            while not _answers(servers) and not self._over.is_set():
                self._post_availability(Away(f"no broker listens at {', '.join(servers)}"))
                self._over.wait(_POLL_SECONDS)
            self._post_availability(None)
            with Cluster(self._connection, _ANSWER_SECONDS) as cluster:
                self._follow(JobsReader(cluster))
        except Exception as error:
            self._post(error)

    def _follow(self, reader: JobsReader) -> None:
        posted, pause = False, _POLL_SECONDS
        while not self._over.is_set():
            try:
                with suppress(NoTopicError):
                    posted &= not reader.read()
                if not posted:
                    self._post(self._meaning(reader.topic))
                    posted = True
                pause = self._look(reader.cluster)
                self._post_availability(None)
            except (KafkaError, ClusterError, OSError) as error:
                reason = str(error) or type(error).__name__
                self._post_availability(Away(reason, rejected=isinstance(error, AccessError)))
            self._over.wait(pause)

    def _post_availability(self, away: Away | None) -> None:
        if self._away != (away is not None):
            self._away = away is not None
            self._post(away)


def _answers(servers: tuple[str, ...]) -> bool:
    for server in servers:
        host, _, port = server.rpartition(":")
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            return True
    return False
