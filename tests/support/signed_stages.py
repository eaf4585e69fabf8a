"""Stages in memory that sign what they do, honest ones and others, and what a verifier reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.actions import Action, Append, LogRecord, Result, Steps, replacing
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.operations.stage_verification.evidence import Evidence, Read, read_evidence
from pipeline.operations.stage_verification.findings import Finding, Verdict
from pipeline.operations.stage_verification.verify_stage import Verification
from pipeline.simulation.memory import MemoryLog
from pipeline.stages.signed_stage import SignedStage, Signer, is_signed
from pipeline.stages.stage import Stage
from tests.support.world import BEGUN, World
from topics.names import Role
from topics.signed import Software, public_key_of

SOFTWARE = {
    "dpstream": Software("0.1.0", "installed", hashlib.sha256(b"dpstream").digest()),
    "numpy": Software("2.4.0", "recorded", hashlib.sha256(b"numpy").digest()),
}


def key_of(name: str) -> Ed25519PrivateKey:
    """A key that is the same for the same name."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def public_key(name: str) -> bytes:
    return public_key_of(key_of(name))


def signer_of(job: DeployedJob, stage: str, *, key: str = "", worker: str = "one") -> Signer:
    """Who a worker of a stage is."""
    noise_key = job.noise_key if stage == "shuffle" else None
    return Signer(key_of(key or stage), stage, worker, SOFTWARE, "3.11.2", noise_key)


def signed(job: DeployedJob, name: str, stage: Stage) -> Stage:
    """A stage that signs, if it has to be trusted."""
    if not is_signed(job, name):
        return stage
    return SignedStage(stage, job, signer_of(job, name), wall_clock=lambda: BEGUN)


Change = Callable[[Action], Iterable[Action]]
"""From an action of a stage, what is done in its place; none: it is left out."""


@dataclass
class ChangedStage:
    """Does what a stage does, but for what `change` makes of it."""

    stage: Stage
    change: Change

    @property
    def role(self) -> Role:
        return self.stage.role

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        return self._changed(self.stage.assign(partition, committed, now))

    def revoke(self, partition: int) -> None:
        self.stage.revoke(partition)

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        return self._changed(self.stage.record(partition, offset, value, now, written))

    def tick(self, now: float) -> Steps[None]:
        return self._changed(self.stage.tick(now))

    def rests(self) -> float | None:
        return self.stage.rests()

    def unfinished(self, partition: int) -> str:
        return self.stage.unfinished(partition)

    def heartbeat(self) -> Mapping[str, object]:
        return self.stage.heartbeat()

    def _changed(self, steps: Steps[Result]) -> Steps[Result]:
        return replacing(steps, self._replacement)

    def _replacement(self, action: Action) -> Steps[object]:
        reply: object = None
        for each in self.change(action):
            reply = yield each
        return reply


def appends(role: Role, change: Callable[[bytes], Iterable[bytes]]) -> Change:
    """What becomes of the records that are written to a topic."""

    def changed(action: Action) -> Iterator[Action]:
        if isinstance(action, Append) and action.role is role:
            for value in change(action.value):
                yield Append(role, action.partition, value)
        else:
            yield action

    return changed


@dataclass
class KeepingLog(MemoryLog):
    """Topics of which nothing is deleted."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        pass


@dataclass
class SignedWorld(World):
    """A world whose stages sign; `inside` changes what the shuffle stage does before it is signed,
    `outside` what is written in the end.
    """

    inside: Change | None = None
    outside: Change | None = None
    keys_by_stage: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log = KeepingLog(self.broker_time)

    def stage(self, name: str) -> Stage:
        made = super().stage(name)
        if name == "shuffle" and self.inside is not None:
            made = ChangedStage(made, self.inside)
        made = signed(self.job, name, made)
        if name == "shuffle" and self.outside is not None:
            made = ChangedStage(made, self.outside)
        return made


def reader_of_log(log: MemoryLog, change: Callable[[Role, LogRecord], LogRecord]) -> Read:
    """What is in topics in memory, as a verifier reads it."""

    def read(role: Role, partition: int) -> Iterator[LogRecord]:
        position, end = 0, log.end(role, partition)
        while position < end:
            found = log.read(role, partition, position, end)
            position = found.end
            for record in found.records:
                yield change(role, record)

    return read


def evidence_of(
    job: DeployedJob,
    log: MemoryLog,
    *,
    raw: bool = False,
    change: Callable[[Role, LogRecord], LogRecord] = lambda role, record: record,
) -> Evidence:
    """What stages have left behind; `change` alters it as it is read."""
    return read_evidence(job, reader_of_log(log, change), raw=raw)


def violated(found: Verification) -> set[str]:
    """The rules that were broken."""
    return {each.rule for each in found.findings if each.verdict is Verdict.VIOLATED}


def verified(found: Verification) -> set[str]:
    """The rules that were kept, in something."""
    return {each.rule for each in found.findings if each.verdict is Verdict.VERIFIED}


def finding(found: Verification, rule: str) -> Finding:
    return next(each for each in found.findings if each.rule == rule)
