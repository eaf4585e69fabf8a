"""Producers and workers of a job as real processes with separate clocks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from kafka.errors import KafkaError

from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.topics.names import Role
from tests.support.audit import Drawn
from tests.support.clocks import Clock
from tests.support.seeded_devices import SeededDevices
from tests.support.warm import WarmPopen

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "kafka" / "chaos_process.py"
LEAD = 8
"""Maximum number of epochs that a producer closes ahead of the last published one."""
TIMEOUT = 300.0
"""Timeout in seconds, far longer than any operation takes."""
_TAIL = 12
_POLL = 0.05


@dataclass(frozen=True, slots=True)
class Orders:
    """Parameters of a process of the fleet.

    Attributes:
        what: "producer", or the stage of a worker.
        job, servers: Name of the job, and addresses of the cluster.
        producer: Name of the producer or worker.
        folder: State folder of the process.
        journal: File to which a producer writes its epochs.
        stop: File that contains the last epoch to close.
        seed, count, first_cell, first_epoch: Arguments of `SeededDevices`.
        pace: Pause of a producer after every epoch (seconds), to share the machine.
        noise_key: Noise key in hexadecimal, or "".
    """

    what: str
    job: str
    servers: str
    producer: str
    folder: str
    journal: str
    stop: str
    seed: int = 0
    count: int = 0
    first_cell: int = 0
    first_epoch: int = 1
    pace: float = 0.2
    noise_key: str = ""

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    @property
    def ahead(self) -> Path:
        """File that contains an epoch to close out of turn."""
        return Path(self.journal).with_suffix(".ahead")

    def devices(self) -> SeededDevices:
        return SeededDevices(
            self.seed, self.producer, self.count, self.first_cell, self.first_epoch
        )


@dataclass(slots=True)
class Member:
    """A member of the fleet: a process that is restarted when it exits.

    Attributes:
        orders: Parameters of the process.
        clock: Clock of the process.
        prefix: Command that wraps the process, for example to enter a namespace.
        punctual: True if every window must wait for this producer.
        held: True while the process must not be restarted.
        finished: True after the process has completed its work.
    """

    orders: Orders
    clock: Clock
    prefix: tuple[str, ...] = ()
    punctual: bool = True
    held: bool = False
    finished: bool = False
    process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return Path(self.orders.folder)

    @property
    def is_producer(self) -> bool:
        return self.orders.what == "producer"

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def noted(self, what: str) -> list[int]:
        """Return the epochs of the journal's lines that start with `what`, in order."""
        path = Path(self.orders.journal)
        if not path.exists():
            return []
        lines = (line.split() for line in path.read_text().splitlines())
        return [int(epoch) for said, epoch in lines if said == what]

    @property
    def closed(self) -> int:
        """Last epoch that the journal records as closed, or 0."""
        return max(self.noted("closed"), default=0)


@dataclass
class Fleet:
    """The processes of a job, which are restarted when they exit, until `kill`.

    Attributes:
        job: Deployed job.
        cluster: Connection of the harness, which can fail temporarily.
        servers: Addresses passed to the processes.
        folder: Folder for all files of the processes.
        preload: Library for the clocks.
        seed: Seed of the devices.
        noise_key: Noise key, if the job's shuffle stage adds dummies.
        published: Last published epoch, or 0.
    """

    job: DeployedJob
    cluster: Cluster
    servers: str
    folder: Path
    preload: Path
    seed: int
    noise_key: NoiseKey | None = None
    members: dict[str, Member] = field(default_factory=dict)
    gone: list[Member] = field(default_factory=list)
    published: int = 0

    def __post_init__(self) -> None:
        self._estimates = EstimateReader(self.cluster, self.job)

    def add(
        self, name: str, what: str, *, prefix: tuple[str, ...] = (), **numbers: int | float
    ) -> Member:
        """Add a member, which `keep_alive` starts; `numbers` are fields of `Orders`."""
        orders = Orders(
            what=what,
            job=self.job.name,
            servers=self.servers,
            producer=name,
            folder=str(self.folder / name),
            journal=str(self.folder / f"{name}.journal"),
            stop=str(self.folder / "stop"),
            seed=self.seed,
            noise_key=self.noise_key.secret.hex() if self.noise_key is not None else "",
            **numbers,  # type: ignore[arg-type]
        )
        member = Member(orders, Clock(self.preload, self.folder / f"{name}.clock"), prefix)
        self.members[name] = member
        return member

    def double(self, name: str, **changes: int) -> str:
        """Add a second process of a member under the same producer name, and return its own name.

        Without `changes`, it starts with a copy of the member's current folder. With `changes` to
        the orders, it starts with an empty folder. It does not pause, to catch up.
        """
        one = self.members[name]
        twin = f"{name}-{len(self.gone) + len(self.members)}"
        folder = self.folder / twin
        orders = replace(
            one.orders,
            folder=str(folder),
            journal=str(self.folder / f"{twin}.journal"),
            pace=0.0,
            **changes,  # type: ignore[arg-type]
        )
        if not changes:
            self.signal(name, signal.SIGSTOP)
            try:
                shutil.copytree(one.folder, folder)
                if (journal := Path(one.orders.journal)).exists():
                    shutil.copy(journal, orders.journal)
            finally:
                self.signal(name, signal.SIGCONT)
        clock = Clock(self.preload, self.folder / f"{twin}.clock")
        self.members[twin] = Member(orders, clock, one.prefix, punctual=False)
        return twin

    def remove(self, name: str) -> None:
        member = self.members.pop(name)
        _kill(member)
        self.gone.append(member)

    def kill(self) -> None:
        for member in [*self.members.values(), *self.gone]:
            _kill(member)

    @property
    def producers(self) -> dict[str, Member]:
        return {name: each for name, each in self.members.items() if each.is_producer}

    @property
    def workers(self) -> dict[str, Member]:
        return {name: each for name, each in self.members.items() if not each.is_producer}

    def keep_alive(self) -> None:
        """Start all members that are not running, held or finished."""
        for name, member in self.members.items():
            if member.runs or member.held or member.finished:
                continue
            if member.process is not None and member.process.returncode == 0:
                member.finished = member.is_producer
            if not member.finished:
                member.process = self._start(name, member)

    def signal(self, name: str, number: signal.Signals) -> None:
        member = self.members[name]
        if member.process is not None and member.runs:
            os.kill(member.process.pid, number)

    def wait_until(
        self, condition: Callable[[], bool], what: str, seconds: float | None = None
    ) -> bool:
        """Keep all members alive until a condition holds, and return whether it does.

        Args:
            condition: Condition to wait for.
            what: Description of the condition, for failures.
            seconds: Maximum time to wait; None fails the test after `TIMEOUT`.
        """
        deadline = time.monotonic() + (TIMEOUT if seconds is None else seconds)
        while not condition():
            if time.monotonic() > deadline:
                assert seconds is not None, (
                    f"timeout after {TIMEOUT:.0f} s: {what}; the last published epoch is "
                    f"{self.published}\n{self.logs()}"
                )
                return False
            self.keep_alive()
            self.look()
            time.sleep(_POLL)
        return True

    def wait_for_epochs(self, more: int, seconds: float | None = None) -> bool:
        """Wait until `more` further epochs are published."""
        wanted = self.published + more
        return self.wait_until(
            lambda: self.published >= wanted, f"epoch {wanted} is published", seconds
        )

    def look(self) -> None:
        """Update `published`, if the broker answers."""
        try:
            for record in self._estimates.read():
                self.published = max(self.published, record.epoch)
        except (KafkaError, ClusterError):
            pass

    def dead_letters(self) -> int:
        try:
            return self.cluster.end_offsets(self.job.topic(Role.DEAD_LETTERS))[0]
        except (KafkaError, ClusterError):
            return 0

    def finish(self) -> int:
        """Make all producers end with the same epoch; return it when it is published."""
        self.look()
        # No producer has closed this epoch yet.
        last = self.published + 2 * LEAD
        stop = self.folder / "stop"
        stop.with_suffix(".new").write_text(str(last))
        stop.with_suffix(".new").rename(stop)
        self.wait_until(lambda: self.published >= last, f"the last epoch, {last}, is published")
        self.wait_until(
            lambda: all(each.finished for each in self.producers.values()), "producers end"
        )
        return last

    def drawn(self) -> list[Drawn]:
        """Return the draws of all producers, which must have exited."""
        found: dict[bytes, Drawn] = {}
        for member in [*self.producers.values(), *(m for m in self.gone if m.is_producer)]:
            drawn = _drawn(member)
            if drawn is None:
                continue
            twin = found.get(drawn.enrollment)
            if twin is not None:
                epochs = tuple(sorted({*twin.epochs, *drawn.epochs}))
                drawn = replace(twin, epochs=epochs, punctual=False)
            found[drawn.enrollment] = drawn
        return list(found.values())

    def logs(self) -> str:
        """Return the last log lines of all members, for failure messages."""
        tails = (
            f"--- {path.stem}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-_TAIL:])
            for path in sorted(self.folder.glob("*.log"))
        )
        return "\n".join(tails)

    def said(self, name: str, words: str) -> int:
        """Count the occurrences of a text in the log of a member."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace").count(words) if path.exists() else 0

    def tracebacks(self) -> list[str]:
        """Return the members that logged a traceback."""
        return [
            path.stem
            for path in sorted(self.folder.glob("*.log"))
            if "Traceback (most recent call last)" in path.read_text(errors="replace")
        ]

    def _start(self, name: str, member: Member) -> subprocess.Popen[bytes]:
        orders = self.folder / f"{name}.json"
        orders.write_text(json.dumps(asdict(member.orders)))
        with (self.folder / f"{name}.log").open("ab") as log:
            return WarmPopen(
                [*member.prefix, sys.executable, str(SCRIPT), str(orders)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **member.clock.environment, "PYTHONPATH": str(ROOT)},
            )


def _kill(member: Member) -> None:
    if member.process is not None:
        member.process.kill()
        member.process.wait()


def _drawn(member: Member) -> Drawn | None:
    """Return the draws stored in a producer's folder, or None if it never started."""
    path = member.folder / "producer.sqlite3"
    if not path.exists():
        return None
    store = ProducerStore(path)
    try:
        enrollment, closed = store.fact("enrollment"), store.fact("closed_epoch") or 0
        outbox = sum(1 for _ in store.outbox())
    finally:
        store.close()
    if enrollment is None:
        return None
    assert isinstance(enrollment, bytes)
    assert isinstance(closed, int)
    assert not (member.finished and outbox), f"{member.orders.producer} has unsent records"
    epochs = tuple(sorted(epoch for epoch in set(member.noted("closing")) if epoch <= closed))
    return Drawn(member.orders.devices(), enrollment, epochs, member.punctual)
