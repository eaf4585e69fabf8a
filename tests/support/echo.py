"""Job on a real broker whose workers copy records, each exactly once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from dpstream.pipeline.kafka.connection import Connection
from dpstream.topics.names import LOG_APPEND_TIME, TIMESTAMP_TYPE, Role, topic_name
from tests.support.warm import WarmPopen

PARTITIONS = 3
TIMEOUT = 60.0
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Worker:
    """Worker process in a separate session, and its output so far."""

    process: subprocess.Popen[bytes]
    output: Path
    may_end: bool = False

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def said(self, words: str) -> int:
        return sum(words in line for line in self.lines)

    def signal(self, number: signal.Signals) -> None:
        self.may_end = number in (signal.SIGKILL, signal.SIGTERM)
        os.kill(self.process.pid, number)

    def exit_code(self) -> int:
        self.may_end = True
        return self.process.wait(TIMEOUT)


@dataclass
class Echo:
    """Job whose workers copy records."""

    name: str
    servers: str
    folder: Path
    workers: list[Worker] = field(default_factory=list)
    topic_ids: dict[Role, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection = Connection((self.servers,))
        admin = KafkaAdminClient(**self.connection.kafka_python())
        admin.create_topics(
            [
                NewTopic(
                    topic_name(self.name, role),
                    count,
                    1,
                    topic_configs={TIMESTAMP_TYPE: LOG_APPEND_TIME},
                )
                for role, count in (
                    (Role.REPORTS, PARTITIONS),
                    (Role.SHUFFLED, PARTITIONS),
                    (Role.STATUS, 1),
                )
            ]
        )
        admin.close()

    @property
    def admin(self) -> KafkaAdminClient:
        """New admin client; the caller must close it."""
        return KafkaAdminClient(**self.connection.kafka_python())

    def start(self, worker: str, *, work: float = 0.0, script: str = "echo_worker.py") -> Worker:
        output = self.folder / f"{worker}-{len(self.workers)}.log"
        arguments = [self.name, worker, self.servers, str(self.folder / worker), str(work)]
        arguments.append(json.dumps(self.topic_ids))
        with output.open("wb") as file:
            process = WarmPopen(
                [
                    sys.executable,
                    str(REPOSITORY / "tests" / "kafka" / script),
                    *arguments,
                ],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # Job control of the test's own session would wake stopped processes.
                start_new_session=True,
            )
        started = Worker(process, output)
        self.workers.append(started)
        return started

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition that running workers bring about."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, f"{what}: timeout after {TIMEOUT} s"
            for worker in self.workers:
                assert worker.may_end or worker.process.poll() is None, f"{what}: worker exited"
            time.sleep(0.05)

    def produce(self, count: int, *, size: int = 1024) -> None:
        """Write `count` records to each partition."""
        producer = KafkaProducer(**self.connection.kafka_python(), linger_ms=5)
        for _ in range(count):
            for partition in range(PARTITIONS):
                producer.send(self.topic(Role.REPORTS), bytes(size), partition=partition)
        producer.flush()
        producer.close()

    def topic(self, role: Role) -> str:
        return topic_name(self.name, role)

    def read(self, role: Role, partition: int) -> list[bytes]:
        where = TopicPartition(self.topic(role), partition)
        consumer = KafkaConsumer(
            **self.connection.kafka_python(), enable_auto_commit=False, auto_offset_reset="earliest"
        )
        try:
            consumer.assign([where])
            end = consumer.end_offsets([where])[where]
            values: list[bytes] = []
            while consumer.position(where) < end:
                values += [r.value for r in consumer.poll(500).get(where, ())]
            return values
        finally:
            consumer.close()

    def copies(self, partition: int) -> list[tuple[int, str, int, float]]:
        """Return the offset, worker, assignment number and start time of every copy."""
        return [tuple(json.loads(value)) for value in self.read(Role.SHUFFLED, partition)]

    def copied(self) -> int:
        return sum(len(self.copies(partition)) for partition in range(PARTITIONS))

    def expect_each_once(self, count: int) -> None:
        for partition in range(PARTITIONS):
            offsets = [offset for offset, *_ in self.copies(partition)]
            assert offsets == list(range(count))

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            print(worker.output.name, worker.output.read_text(), sep="\n")
