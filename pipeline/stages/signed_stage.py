"""A stage that signs what it decides and writes, so that others can hold it to its word.

It stands around any stage, and changes nothing that the stage does: what goes by is looked at, and
what there is to say of it is written to ``<job>.stages`` beside it. So `verify-stage` needs no
secret to find a stage that went on under another decision than the first, wrote a window in two
versions, or was not what it says it is.

* Before it reads anything, the stage says who it is and what it runs.
* A manifest is announced before it is written, and a window when all of it is there to be written;
  that is acknowledged first. So no manifest and no chunk is in the log that nobody has signed,
  whoever is killed when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.actions import Action, Append, Flush, Steps, replacing
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.stages.stage import Stage
from topics.chunks import Chunk, decode_chunk
from topics.frames import Kind, kind_of
from topics.manifests import read_head
from topics.names import HOPS, SUMS, Role
from topics.partials import decode_partial
from topics.signed import (
    Attested,
    Decided,
    Released,
    Software,
    StageRecord,
    Statement,
    WordsDigest,
    binding_of,
    public_key_of,
    sign_statement,
)
from topics.words import Words

WINDOW_ROLES: Final = (*HOPS, Role.SHUFFLED)
"""Topics of windows, in chunks."""
TRUSTED_ROLES: Final = (*WINDOW_ROLES, *SUMS)
"""What is signed: windows, and each party's sums of tables that are in two shares."""
_UNTRUSTED: Final = frozenset({"aggregate", "publish"})


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signs.

    Attributes:
        key: of the stage, which none but its operator has.
        stage: as in ``dpstream run STAGE``.
        worker: its name.
        software: what is installed, see `pipeline.operations.installed_software`.
        python: the version of the interpreter.
        noise_key: SHA-256 of the noise key that the stage holds; None where it needs none.
        scheme: of what vouches for it; empty: nothing does.
        attest: from `binding_of` what it says of itself, the document of that scheme.
    """

    key: Ed25519PrivateKey = field(repr=False)
    stage: str
    worker: str
    software: Mapping[str, Software]
    python: str
    noise_key: bytes | None = None
    scheme: str = ""
    attest: Callable[[bytes], bytes] = lambda binding: b""


def is_signed(job: DeployedJob, stage: str) -> bool:
    """Whether a stage signs what it does: one that has to be trusted, of a deployment with room.

    Deployments that were made before there was a topic for it have none.
    """
    return Role.STAGES in job.start_offsets and stage not in _UNTRUSTED and job.replay_of is None


@dataclass(slots=True)
class _Writing:
    """An attempt whose last record is not there yet: what was written of it, as a digest."""

    digest: WordsDigest = field(default_factory=WordsDigest)
    records: int = 0


class SignedStage:
    """Does what a stage does, and signs it.

    Args:
        stage: not used before.
        job: the deployed job, for which `is_signed`.
        signer: who it is.
        wall_clock: milliseconds since 1970.
    """

    def __init__(
        self, stage: Stage, job: DeployedJob, signer: Signer, *, wall_clock: Callable[[], int]
    ) -> None:
        self._stage = stage
        self._job = job
        self._signer = signer
        # Made now, so that who cannot be vouched for ends before it joins the others.
        self._introduction = [self._said(each) for each in _introduction(job, signer, wall_clock())]
        self._writing: dict[bytes, _Writing] = {}

    @property
    def role(self) -> Role:
        """See `Stage`."""
        return self._stage.role

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """See `Stage`; before anything else the worker says who it is."""
        # What an owner that was stopped had begun to write is no more its own.
        self._writing.clear()
        if self._introduction:
            yield from self._introduction
            yield Flush()
            self._introduction = []
        return (yield from replacing(self._stage.assign(partition, committed, now), self._signing))

    def revoke(self, partition: int) -> None:
        """See `Stage`."""
        self._stage.revoke(partition)

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """See `Stage`."""
        yield from replacing(
            self._stage.record(partition, offset, value, now, written), self._signing
        )

    def tick(self, now: float) -> Steps[None]:
        """See `Stage`."""
        yield from replacing(self._stage.tick(now), self._signing)

    def rests(self) -> float | None:
        """See `Stage`."""
        return self._stage.rests()

    def unfinished(self, partition: int) -> str:
        """See `Stage`."""
        return self._stage.unfinished(partition)

    def heartbeat(self) -> Mapping[str, object]:
        """See `Stage`."""
        return self._stage.heartbeat()

    def _signing(self, action: Action) -> Steps[object]:
        """An action of the stage, after what is to be said of it."""
        if isinstance(action, Append) and action.role in TRUSTED_ROLES:
            yield from self._write(action)
            return None
        if isinstance(action, Append) and action.role is Role.MANIFESTS:
            yield self._said(self._decision(action.value))
            yield Flush()
        return (yield action)

    def _said(self, statement: Statement) -> Append:
        return Append(Role.STAGES, 0, sign_statement(statement, self._signer.key))

    def _decision(self, record: bytes) -> Decided:
        manifest = read_head(record)
        return Decided(
            self._job.deployment,
            self._signer.stage,
            self._signer.worker,
            manifest.epoch,
            manifest.instance,
            hashlib.sha256(record).digest(),
        )

    def _write(self, action: Append) -> Steps[None]:
        """Write the records of an attempt, and sign before the last: none is complete unsigned."""
        chunk = read_piece(action.value)
        writing = self._writing.setdefault(chunk.attempt, _Writing())
        writing.digest.add(chunk.words)
        writing.records += 1
        if writing.records < chunk.total:
            yield action
            return
        del self._writing[chunk.attempt]
        yield self._said(
            Released(
                self._job.deployment,
                self._signer.stage,
                self._signer.worker,
                chunk.epoch,
                chunk.instance,
                action.role.value,
                chunk.manifest_offset,
                chunk.attempt,
                chunk.total,
                writing.digest.value,
            )
        )
        yield Flush()
        yield action


def _introduction(job: DeployedJob, signer: Signer, now: int) -> Iterator[Statement]:
    """Who a worker is, and what vouches for it."""
    record = StageRecord(
        job.deployment,
        signer.stage,
        signer.worker,
        now,
        signer.python,
        signer.software,
        signer.noise_key,
    )
    yield record
    if signer.scheme:
        document = signer.attest(binding_of(record, public_key_of(signer.key)))
        yield Attested(job.deployment, signer.stage, signer.worker, signer.scheme, document)


def read_piece(record: bytes) -> Chunk:
    """A chunk of a window, or a part of a sum, whose bytes then stand for its words.

    Raises:
        CodecError: the record is neither.
    """
    if kind_of(record) is not Kind.PARTIAL:
        return decode_chunk(record)
    part = decode_partial(record)
    return Chunk(
        part.fingerprint,
        part.deployment,
        part.epoch,
        part.manifest_offset,
        part.attempt,
        part.index,
        part.total,
        Words(np.frombuffer(part.payload, np.uint8)[:, None]),
    )
