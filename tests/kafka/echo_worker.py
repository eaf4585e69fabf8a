"""Worker whose stage copies each record exactly once, to test its driver.

Script arguments: job, worker, servers, folder, seconds of work, topic ids.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from dpstream.pipeline.actions import Append, Commit, Flush, LogRecord, Steps, end_offset, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.workers.timings import Timings
from dpstream.pipeline.kafka.workers.worker import run_worker
from dpstream.topics.names import Role, topic_name

TIMINGS = Timings(
    session=3.0, heartbeat=0.5, rebalance=10.0, request=10.0, probe=1.0, topics=0.5, blocked=6.0
)
COMMIT_EVERY = 25
REREAD = 5


@dataclass(frozen=True)
class EchoJob:
    name: str
    topic_ids: Mapping[Role, str]
    deployment: bytes = bytes(16)

    @property
    def start_offsets(self) -> Mapping[Role, tuple[int, ...]]:
        return {Role.REPORTS: (0, 0, 0), Role.SHUFFLED: (0, 0, 0), Role.STATUS: (0,)}

    def topic(self, role: Role) -> str:
        return topic_name(self.name, role)


@dataclass(frozen=True)
class Copy:
    """Content of a copied record: original offset, worker, assignment, and time."""

    offset: int
    worker: str
    assignment: int
    began: float

    def to_bytes(self) -> bytes:
        return json.dumps([self.offset, self.worker, self.assignment, self.began]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Copy":
        return cls(*json.loads(data))


@dataclass
class EchoStage:
    """Copy partition p of reports to partition p of shuffled, in `work` seconds per record.

    Finished copies are read from the output: otherwise, records that were written but not committed
    would be copied twice. Like a stage that restores open windows, it also reads some records below
    the committed offset again.
    """

    worker: str
    work: float
    assignment: int = 0
    copied: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    role: Role = Role.REPORTS

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        self.assignment += 1
        self.copied[partition] = 0
        self.committed[partition] = committed or 0

        def visit(record: LogRecord) -> None:
            self.copied[partition] = Copy.from_bytes(record.value).offset + 1

        end = yield from end_offset(Role.SHUFFLED, partition)
        yield from scan(Role.SHUFFLED, partition, 0, end, visit)
        return max(0, (committed or 0) - REREAD)

    def revoke(self, partition: int) -> None:
        self.copied.pop(partition, None)
        self.committed.pop(partition, None)

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        if offset < self.copied[partition]:
            return
        copy = Copy(offset, self.worker, self.assignment, time.time())
        time.sleep(self.work)
        yield Append(Role.SHUFFLED, partition, copy.to_bytes())
        self.copied[partition] = offset + 1
        if offset + 1 - self.committed[partition] >= COMMIT_EVERY:
            yield from self._commit(partition)

    def tick(self, now: float) -> Steps[None]:
        for partition in list(self.copied):
            yield from self._commit(partition)

    def idle_seconds(self) -> float | None:
        return None

    def needs(self, partition: int, below: int) -> Steps[bool]:
        yield from ()
        return True

    def unfinished(self, partition: int) -> str:
        return f"epoch {partition} and later ones"

    def heartbeat(self) -> Mapping[str, object]:
        return {"copied": sum(self.copied.values())}

    def _commit(self, partition: int) -> Steps[None]:
        floor = self.copied[partition]
        if floor > self.committed[partition]:
            yield Flush()
            yield Commit(self.role, partition, floor)
            self.committed[partition] = floor


if __name__ == "__main__":
    job, worker, servers, folder, work, ids = sys.argv[1:]
    echo_job = EchoJob(job, {Role(role): named for role, named in json.loads(ids).items()})
    sys.exit(
        run_worker(
            EchoStage(worker, float(work)),
            # It has what a worker uses of a job.
            cast(DeployedJob, echo_job),
            Connection((servers,)),
            stage_name="echo",
            worker=worker,
            directory=Path(folder),
            timings=TIMINGS,
            used={Role.REPORTS, Role.SHUFFLED},
        )
    )
