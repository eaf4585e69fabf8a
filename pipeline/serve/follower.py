"""Follow the topics with deployed jobs, the ledger and estimates, in a separate thread.

`Reader` decides what to read, and interprets records; `KafkaSource` reads the records. Requests to
an unreachable broker are repeated until the broker answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import CLIENT_ID, METADATA_PAUSE_MS, Cluster
from dpstream.pipeline.kafka.cluster_errors import AccessError, ClusterError, rejected_kind
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.serve.history import MOST_EPOCHS, Point, check_estimate
from dpstream.pipeline.serve.job_store import Jobs
from dpstream.pipeline.stages.estimate_records import FirstEstimates
from dpstream.pipeline.stages.published_epochs import published_before
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role

_LOG = logging.getLogger(__name__)
_POLL_MILLISECONDS = 200
_PROBE_SECONDS = 2.0
_PROBE_MILLISECONDS = 4_000
# Time after which a broker that accepts requests without answering is detected.
_REQUEST_MILLISECONDS = 6_000
_BACK_OFF_SECONDS = 0.5
_MOST_RECORDS = 500
# If a topic has more data than fits into one response, the next response waits until topics without
# new data time out. Responses are therefore large.
_FETCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class NewlyPublished:
    """Newly published epochs of a deployment, in the order of publication.

    `first_epoch` is the deployment's first epoch; None while only later epochs have been read.
    """

    job: str
    deployment: bytes
    points: Sequence[Point]
    first_epoch: int | None


@dataclass(frozen=True, slots=True)
class BrokerAvailability:
    answers: bool


@dataclass(frozen=True, slots=True)
class Rejected:
    message: str


News: TypeAlias = Jobs | NewlyPublished | BrokerAvailability | Rejected


class Reader:
    def __init__(self, only: Iterable[str] = ()) -> None:
        self._only = frozenset(only)
        self._spending = Spending()
        self._position = 0
        self._complete = False
        self._sent_accounts: tuple[tuple[Charge, ...], tuple[BudgetDeclaration, ...]] = ((), ())
        self._jobs: dict[str, _Estimates] = {}

    @property
    def positions(self) -> dict[str, int]:
        """Next offset to read, by topic; a negative number counts records back from the end."""
        return {
            JOBS_TOPIC: self._position,
            LEDGER_TOPIC: self._spending.chain.next,
            **{reader.topic: reader.position for reader in self._jobs.values()},
        }

    def take(
        self, topic: str, records: Sequence[LogRecord], *, behind: bool = False
    ) -> News | None:
        """Process records from a topic; return the news. `behind` is True if more records follow.

        The list of jobs is reported only at the end of the topic. Before the end, a deployed job
        could appear to be missing, or a replaced job could appear to be running.
        """
        if topic == JOBS_TOPIC:
            for record in records:
                self._spending.topic.apply(record.key, record.value)
                self._position = record.offset + 1
            self._complete = not behind
            return None if behind else self._jobs_now()
        if topic == LEDGER_TOPIC:
            for record in records:
                chain = self._spending.chain
                chain.apply(record.offset, record.value, record.timestamp, record.key)
            # Usually, dpstream.jobs has already contained the same charges.
            same = self._accounts() == self._sent_accounts
            return None if behind or same or not self._complete else self._jobs_now()
        for reader in self._jobs.values():
            if reader.topic == topic:
                job, points = reader.job, reader.take(records)
                if not points:
                    return None
                return NewlyPublished(job.name, job.deployment, points, reader.first_epoch)
        return None

    def _jobs_now(self) -> Jobs:
        jobs = {
            name: job
            for name, job in self._spending.topic.jobs.items()
            if not self._only or name in self._only
        }
        for name, job in jobs.items():
            reader = self._jobs.get(name)
            if reader is None or reader.job.deployment != job.deployment:
                self._jobs[name] = _Estimates(job)
            # Computed here, not in the event loop: some guarantees take seconds.
            _ = job.guarantee
        self._jobs = {name: self._jobs[name] for name in jobs}
        phases = {name: self._spending.topic.phase(name) for name in jobs}
        self._sent_accounts = self._accounts()
        return Jobs(jobs, phases, *self._sent_accounts)

    def _accounts(self) -> tuple[tuple[Charge, ...], tuple[BudgetDeclaration, ...]]:
        return tuple(self._spending.charges), tuple(self._spending.declared)


class _Estimates:
    def __init__(self, job: DeployedJob) -> None:
        self.job = job
        self.topic = job.topic(Role.ESTIMATES)
        self.position = -MOST_EPOCHS
        self.first_epoch: int | None = None
        self._first: FirstEstimates | None = None

    def take(self, records: Sequence[LogRecord]) -> list[Point]:
        points: list[Point] = []
        if not records:
            return points
        first = self._first
        if first is None:
            first = self._first = FirstEstimates(self.job, published_before(self.job, records))
        for record in records:
            self.position = record.offset + 1
            estimate = first.apply(record.value)
            if estimate is None:
                continue
            if record.offset == self.job.start_offset(Role.ESTIMATES):
                self.first_epoch = estimate.epoch
            try:
                check_estimate(self.job.domain, estimate.estimate)
                points.append(Point.of(estimate, self.job.domain))
            except Exception:
                # Other jobs stay visible.
                _LOG.exception("job %s: displaying epoch %d failed", self.job.name, estimate.epoch)
        return points


@dataclass(frozen=True, slots=True)
class Polled:
    records: Mapping[str, Sequence[LogRecord]]
    behind: frozenset[str] = frozenset()


class Source(Protocol):
    def poll(self, positions: Mapping[str, int]) -> Polled:
        """Wait briefly for records at `Reader.positions`; raise `KafkaError` if reading fails."""

    def close(self) -> None:
        pass


class KafkaSource:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._consumer: Any = None
        self._assigned: frozenset[str] = frozenset()
        self._probed = 0.0
        self._missing: frozenset[str] = frozenset()

    def poll(self, positions: Mapping[str, int]) -> Polled:
        try:
            return self._poll(positions)
        except KafkaError:
            self.close()
            raise

    def _poll(self, positions: Mapping[str, int]) -> Polled:
        if self._consumer is None:
            self._consumer = KafkaConsumer(
                client_id=CLIENT_ID,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=_POLL_MILLISECONDS,
                max_poll_records=_MOST_RECORDS,
                max_partition_fetch_bytes=_FETCH_BYTES,
                retry_backoff_ms=METADATA_PAUSE_MS,
                bootstrap_timeout_ms=_PROBE_MILLISECONDS,
                request_timeout_ms=_REQUEST_MILLISECONDS,
                **self._connection.kafka_python(),
            )
            self._assigned, self._probed = frozenset(), 0.0
        if set(positions) != self._assigned or time.monotonic() - self._probed > _PROBE_SECONDS:
            self._assign(positions)
        if not self._assigned:
            return Polled({})
        try:
            polled = self._consumer.poll(_POLL_MILLISECONDS)
        except KafkaError as error:
            if rejected_kind(error) is not None:
                topics = ", ".join(sorted(self._assigned))
                raise AccessError(self._connection.principal, "read", "topic", topics) from error
            raise
        records = {
            partition.topic: [
                LogRecord(record.offset, record.value or b"", record.timestamp, record.key)
                for record in records
            ]
            for partition, records in polled.items()
        }
        return Polled(records, frozenset(filter(self._is_behind, self._assigned)))

    def _is_behind(self, topic: str) -> bool:
        partition = TopicPartition(topic, 0)
        end = self._consumer.highwater(partition)
        # The end is known only after a fetch, and there is no position while the client seeks the
        # next record that still exists.
        return (
            end is None
            or (position := self._consumer.position(partition)) is None
            or position < end
        )

    def _assign(self, positions: Mapping[str, int]) -> None:
        there = self._assigned
        if set(positions) != there:
            there = frozenset(positions) & frozenset(self._consumer.topics())
            self._look_for(frozenset(positions) - there)
        partitions = {topic: TopicPartition(topic, 0) for topic in there}
        if partitions:
            self._ends([next(iter(partitions.values()))])
        if there != self._assigned:
            self._consumer.assign(list(partitions.values()))
            ends = self._ends([each for topic, each in partitions.items() if positions[topic] < 0])
            for topic, partition in partitions.items():
                start = positions[topic] + ends.get(partition, 0)
                self._consumer.seek(partition, max(0, start))
            self._assigned = there
        self._probed = time.monotonic()

    def _ends(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        if not partitions:
            return {}
        ends: Mapping[TopicPartition, int] = self._consumer.end_offsets(
            partitions, timeout_ms=_PROBE_MILLISECONDS
        )
        return ends

    def _look_for(self, missing: frozenset[str]) -> None:
        """Check once whether topics that seem to be missing are only hidden from this login.

        A hidden topic of one job does not affect other jobs; topics that all jobs share are
        required.
        """
        self._missing &= missing
        if missing == self._missing:
            return
        with Cluster(self._connection) as cluster:
            for topic in sorted(missing - self._missing):
                if topic not in (JOBS_TOPIC, LEDGER_TOPIC):
                    self._missing |= {topic}
                cluster.exists(topic)
                self._missing |= {topic}

    def close(self) -> None:
        if self._consumer is not None:
            with suppress(KafkaError):
                self._consumer.close(timeout_ms=500)
            self._consumer = None
            self._assigned = frozenset()


class JobFollower(threading.Thread):
    def __init__(self, source: Source, reader: Reader, tell: Callable[[News], None]) -> None:
        super().__init__(name="follower", daemon=True)
        self._source = source
        self._reader = reader
        self._tell = tell
        self._ended = threading.Event()

    def run(self) -> None:
        answers = False
        behind = frozenset[str]()
        rejections: set[str] = set()
        while not self._ended.is_set():
            polled = Polled({}, behind)
            before = answers
            try:
                polled, answers = self._source.poll(self._reader.positions), True
            except (KafkaError, ClusterError, OSError) as error:
                answers = False
                if isinstance(error, AccessError) and str(error) not in rejections:
                    rejections.add(str(error))
                    self._tell(Rejected(error.asking_for("page")))
                self._ended.wait(_BACK_OFF_SECONDS)
            # Catching up is itself news, even if the last records contained none.
            for topic in (*polled.records, *(behind - polled.behind - polled.records.keys())):
                records = polled.records.get(topic, ())
                news = self._reader.take(topic, records, behind=topic in polled.behind)
                if news is not None:
                    self._tell(news)
            behind = polled.behind
            if answers != before:
                self._tell(BrokerAvailability(answers))
        self._source.close()

    def end(self) -> None:
        self._ended.set()
