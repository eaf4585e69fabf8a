"""A stage that signs says who it is before it reads, and nothing is written that is not signed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from pipeline.actions import Action, Append, Commit, Flush, Steps
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import parse_job
from pipeline.stages.signed_stage import SignedStage, is_signed
from tests.support.signed_stages import signer_of
from tests.support.small_run import job_text
from topics.chunks import Chunk, encode_chunk
from topics.manifests import Fate, Manifest, encode_manifest
from topics.names import Role
from topics.partials import PartialPart, encode_partial
from topics.signed import Decided, Released, StageRecord, Statement, digest_of, read_statement
from topics.words import Words


@pytest.fixture
def job() -> DeployedJob:
    return deploy_job(parse_job(job_text()), deployed_at=0, deployment=bytes(16))


@dataclass
class Scripted:
    """Does what it is told to, and remembers what it was answered."""

    script: list[Action]
    replies: list[object] = field(default_factory=list)
    role: Role = Role.REPORTS

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        yield from self._act()
        return 7

    def revoke(self, partition: int) -> None:
        self.script = []

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        yield from self._act()

    def tick(self, now: float) -> Steps[None]:
        yield from self._act()

    def rests(self) -> float | None:
        return 7.0

    def unfinished(self, partition: int) -> str:
        return f"partition {partition}"

    def heartbeat(self) -> Mapping[str, object]:
        return {"beats": True}

    def _act(self) -> Steps[None]:
        for action in self.script:
            self.replies.append((yield action))


def chunk(job: DeployedJob, index: int, total: int, attempt: bytes = b"a" * 16) -> Append:
    words = Words(np.array([[index]], np.uint8))
    made = Chunk(job.fingerprint, job.deployment, 3, 5, attempt, index, total, words)
    return Append(Role.SHUFFLED, 1, encode_chunk(made))


def manifest(job: DeployedJob) -> Append:
    made = Manifest(job.fingerprint, job.deployment, 3, Fate.EMPTY, 0, 0, 1, (False,), (), 0, 0, 0)
    return Append(Role.MANIFESTS, 0, encode_manifest(made))


def driven(steps: Steps[object]) -> tuple[list[Action], object]:
    """All actions, each answered with its number; and what is returned."""
    actions: list[Action] = []
    reply: object = None
    while True:
        try:
            actions.append(steps.send(reply))
        except StopIteration as finished:
            return actions, finished.value
        reply = None if isinstance(actions[-1], Append) else len(actions)


def said(action: Action) -> Statement:
    assert isinstance(action, Append)
    assert action.role is Role.STAGES
    return read_statement(action.value).statement


def signing(job: DeployedJob, script: list[Action]) -> tuple[SignedStage, Scripted]:
    stage = Scripted(script)
    made = SignedStage(stage, job, signer_of(job, "shuffle"), wall_clock=lambda: 11)
    return made, stage


def test_it_says_once_who_it_is_and_that_is_acknowledged_before_anything_else(
    job: DeployedJob,
) -> None:
    made, _ = signing(job, [Commit(Role.REPORTS, 0, 1)])
    actions, answer = driven(made.assign(0, None, 0.0))
    assert isinstance(said(actions[0]), StageRecord)
    assert actions[1:] == [Flush(), Commit(Role.REPORTS, 0, 1)]
    assert answer == 7
    assert driven(made.assign(1, None, 0.0))[0] == [Commit(Role.REPORTS, 0, 1)]


def test_a_manifest_is_signed_and_that_is_acknowledged_before_it_is_written(
    job: DeployedJob,
) -> None:
    made, _ = signing(job, [manifest(job), Flush()])
    statement, flush, *own = driven(made.tick(0.0))[0]
    assert (flush, own) == (Flush(), [manifest(job), Flush()])
    record = manifest(job).value
    assert said(statement) == Decided(
        job.deployment, "shuffle", "one", 3, 1, hashlib.sha256(record).digest()
    )


def test_a_window_is_signed_when_all_of_it_is_there_and_before_it_is_whole(
    job: DeployedJob,
) -> None:
    """Of what is not signed the last record is missing, so that it is no window; none is held."""
    *pieces, last = (chunk(job, index, 3) for index in range(3))
    made, _ = signing(job, [*pieces, last, Flush()])
    *before, statement, flush, whole, end = driven(made.record(0, 0, b"", 0.0))[0]
    assert (before, flush, whole, end) == (pieces, Flush(), last, Flush())
    words = [Words(np.array([[index]], np.uint8)) for index in range(3)]
    assert said(statement) == Released(
        *(job.deployment, "shuffle", "one", 3, 1, "shuffled", 5, b"a" * 16, 3, digest_of(words))
    )


def test_of_attempts_that_mix_each_is_signed_for_itself(job: DeployedJob) -> None:
    one, other = ([chunk(job, index, 2, name * 16) for index in (0, 1)] for name in (b"a", b"b"))
    made, _ = signing(job, [one[0], other[0], other[1], one[1]])
    actions = driven(made.tick(0.0))[0]
    signed, flush = actions[2], Flush()
    assert actions == [one[0], other[0], signed, flush, other[1], actions[5], flush, one[1]]
    statements = [said(each) for each in (signed, actions[5])]
    assert [getattr(each, "attempt", None) for each in statements] == [b"b" * 16, b"a" * 16]


def test_what_a_stage_had_begun_to_write_is_forgotten_with_its_partitions(
    job: DeployedJob,
) -> None:
    """Its partitions are another's by now, and an attempt that goes on later is not whole."""
    first, last = (chunk(job, index, 2) for index in range(2))
    made, stage = signing(job, [first])
    assert driven(made.tick(0.0))[0] == [first]
    stage.script = []
    driven(made.assign(0, None, 0.0))
    stage.script = [last]
    assert driven(made.tick(0.0))[0] == [last], "without a signature"


def test_sums_of_a_party_are_signed_too(job: DeployedJob) -> None:
    part = PartialPart(job.fingerprint, job.deployment, 3, 5, b"a" * 16, 0, 1, b"sum")
    made, _ = signing(job, [Append(Role.PARTIALS_A, 0, encode_partial(part))])
    statement, _, _ = driven(made.tick(0.0))[0]
    words = [Words(np.frombuffer(b"sum", np.uint8)[:, None])]
    found = said(statement)
    assert isinstance(found, Released)
    assert (found.role, found.contents) == ("partials-a", digest_of(words))


def test_all_else_is_the_stages_own(job: DeployedJob) -> None:
    other = Append(Role.DEAD_LETTERS, 0, b"letter")
    made, stage = signing(job, [other, Commit(Role.REPORTS, 0, 3)])
    assert driven(made.tick(0.0))[0] == [other, Commit(Role.REPORTS, 0, 3)]
    assert stage.replies == [None, 2]
    assert (made.role, made.unfinished(4)) == (Role.REPORTS, "partition 4")
    assert made.heartbeat() == {"beats": True}
    made.revoke(0)
    assert stage.script == []


def test_stages_that_have_to_be_trusted_sign_and_no_others(job: DeployedJob) -> None:
    assert {stage for stage in job.stages if is_signed(job, stage)} == {"shuffle"}
    offsets = {role: each for role, each in job.start_offsets.items() if role is not Role.STAGES}
    assert not is_signed(job.model_copy(update={"start_offsets": offsets}), "shuffle")
