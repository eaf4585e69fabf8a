"""What stages leave behind, read once and put in order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import IO, Final, TypeAlias

from pipeline.actions import LogRecord, carry_out
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import release_problem
from pipeline.jobs.roster import Roster
from pipeline.stages.boxes_of_windows import boxes_in_order, distinct
from pipeline.stages.decision_log import Decision, DecisionLog, manifest_reader
from pipeline.stages.multisets import WordMultiset
from pipeline.stages.signed_stage import TRUSTED_ROLES, read_piece
from topics.chunks import Chunk
from topics.frames import CodecError
from topics.manifest_parts import Part, decode_part
from topics.manifests import Manifest
from topics.names import SUMS, Role
from topics.records import Drain, decode_producer_record
from topics.signed import Signed, WordsDigest, digest_of, read_statement
from topics.word_forms import WordForm
from topics.words import Words

HELD_BYTES: Final = 1 << 22
"""Of attempts that have begun and not ended, up to which their records are kept in memory."""
_NO_WORDS_OF_THE_JOB = (CodecError, ValueError, IndexError)

Read: TypeAlias = Callable[[Role, int], Iterable[LogRecord]]
"""From a role and a partition, the deployment's records that are still there, in order."""


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """A manifest in the log, first or not.

    Attributes:
        offset: in the log.
        timestamp: when the broker wrote it, milliseconds since 1970.
        manifest: what it says.
        digest: SHA-256 of the record.
    """

    offset: int
    timestamp: int
    manifest: Manifest
    digest: bytes


@dataclass(frozen=True, slots=True)
class PartRecord:
    """What is said of a part of a window, by the offset of its decision; the first word or not.

    Attributes:
        offset: in the log.
        part: what it says.
        digest: SHA-256 of the record.
    """

    offset: int
    part: Part
    digest: bytes


@dataclass(frozen=True, slots=True)
class StatementRecord:
    """A statement in the log; None where the record is no statement, and `problem` says why."""

    offset: int
    signed: Signed | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One writing of a window, or of a party's sum.

    Attributes:
        role: of the topic.
        epoch, instance, manifest_offset, attempt, total: as its chunks say.
        complete: whether all chunks are there.
        rows, messages: of the words.
        contents: `digest_of` the words, in order.
        multiset: the same of the words in canonical order: of windows, equal where they are.
        disorder: why the words do not stand as canonical order has it; empty: they do.
    """

    role: Role
    epoch: int
    instance: int
    manifest_offset: int
    attempt: bytes
    total: int
    complete: bool
    rows: int = 0
    messages: int = 0
    contents: bytes = b""
    multiset: bytes = b""
    disorder: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it.

    Attributes:
        job: the deployed job.
        manifests: of the deployment, in the order of the log.
        parts: what is said there of parts by the offset of their decision; other parts are among
            the manifests.
        decisions: by epoch, the first manifest that counts, and its place in `manifests`.
        statements: of ``<job>.stages``, in the order of the log; those of earlier deployments are
            left out.
        attempts: by topic and in the order of its log.
        roster: who is registered, as of now.
        drains: when an operator drained a partition of the reports: milliseconds since 1970.
        words: reads windows once more, of the role that is decided: each with its words in
            canonical order, one at a time, so that no more than one is held. Those are left out
            that retention has taken meanwhile, or that hold no words of the job.
        raw: reads the raw reports of a partition that are still there; None: it was not asked for.
    """

    job: DeployedJob
    manifests: tuple[ManifestRecord, ...]
    parts: tuple[PartRecord, ...]
    decisions: dict[int, tuple[Decision, ManifestRecord]]
    statements: tuple[StatementRecord, ...]
    attempts: tuple[Attempt, ...]
    roster: Roster
    drains: dict[int, int]
    words: Callable[[Iterable[Attempt]], Iterator[tuple[Attempt, Words]]]
    raw: Callable[[int], Iterable[LogRecord]] | None = None

    @property
    def signs(self) -> bool:
        """Whether the deployment has a topic for what stages sign."""
        return Role.STAGES in self.job.start_offsets

    def released(self, role: Role) -> dict[tuple[int, int], Attempt]:
        """The first complete attempt of every epoch and instance: what whoever reads takes."""
        found: dict[tuple[int, int], Attempt] = {}
        for attempt in self.attempts:
            if attempt.role is role and attempt.complete:
                found.setdefault((attempt.epoch, attempt.instance), attempt)
        return found


def read_evidence(job: DeployedJob, read: Read, *, raw: bool = False) -> Evidence:
    """Read what there is.

    Args:
        job: the deployed job, no replay.
        read: the records of a topic; also later, for `Evidence.words`.
        raw: whether to read raw reports, too.
    """
    # Stages may be at work meanwhile: what was written last is read first, so that all that stood
    # before it is found. They sign before they decide, and decide before they write.
    attempts = [
        _attempt(job, role, place, pieces)
        for role in TRUSTED_ROLES
        if role in job.start_offsets
        for partition in range(len(job.start_offsets[role]))
        for place, pieces in _writings(job, role, partition, read(role, partition))
    ]
    log = tuple(read(Role.MANIFESTS, 0))
    manifests = tuple(_manifests(job, log))
    roster, drains = Roster(job), dict[int, int]()
    for record in read(Role.PRODUCERS, 0):
        roster.apply(record)
        _note_drain(job, record, drains)
    statements: tuple[StatementRecord, ...] = ()
    if Role.STAGES in job.start_offsets:
        statements = tuple(_statements(job, read(Role.STAGES, 0)))
    return Evidence(
        job,
        manifests,
        tuple(_parts(job, log)),
        _decisions(job, manifests, log),
        statements,
        tuple(attempts),
        roster,
        drains,
        partial(_words, job, read),
        partial(read, Role.REPORTS) if raw else None,
    )


def _manifests(job: DeployedJob, records: Iterable[LogRecord]) -> Iterator[ManifestRecord]:
    reader = manifest_reader(job)
    for record in records:
        try:
            manifest = reader.decode(record.offset, record.value)
        except CodecError:
            continue
        if (manifest.deployment, manifest.fingerprint) == (job.deployment, job.fingerprint):
            digest = hashlib.sha256(record.value).digest()
            yield ManifestRecord(record.offset, record.timestamp, manifest, digest)


def _parts(job: DeployedJob, records: Iterable[LogRecord]) -> Iterator[PartRecord]:
    for record in records:
        with suppress(CodecError):
            part = decode_part(record.value)
            if (part.deployment, part.fingerprint) == (job.deployment, job.fingerprint):
                digest = hashlib.sha256(record.value).digest()
                yield PartRecord(record.offset, part, digest)


def _decisions(
    job: DeployedJob, manifests: Sequence[ManifestRecord], records: Iterable[LogRecord]
) -> dict[int, tuple[Decision, ManifestRecord]]:
    by_offset = {each.offset: each for each in manifests}
    found: dict[int, tuple[Decision, ManifestRecord]] = {}

    def note(decision: Decision) -> None:
        found[decision.manifest.epoch] = decision, by_offset[decision.offset]

    log = DecisionLog(job, note)
    for record in records:
        log.apply(record)
    return found


def _statements(job: DeployedJob, records: Iterable[LogRecord]) -> Iterator[StatementRecord]:
    for record in records:
        try:
            signed = read_statement(record.value)
        except CodecError as error:
            yield StatementRecord(record.offset, None, str(error))
            continue
        if signed.statement.deployment == job.deployment:
            yield StatementRecord(record.offset, signed)


def _note_drain(job: DeployedJob, record: LogRecord, drains: dict[int, int]) -> None:
    try:
        said = decode_producer_record(record.value)
    except CodecError:
        return
    if isinstance(said, Drain) and said.deployment == job.deployment:
        drains.setdefault(said.partition, record.timestamp)


@dataclass(frozen=True, slots=True)
class _Place:
    """What chunks of one attempt have in common.

    Those that contradict each other are of different attempts, whatever they are called.
    """

    attempt: bytes
    epoch: int
    instance: int
    manifest_offset: int
    total: int


def _place(of: Chunk | Attempt) -> _Place:
    return _Place(of.attempt, of.epoch, of.instance, of.manifest_offset, of.total)


def _writings(
    job: DeployedJob,
    role: Role,
    partition: int,
    records: Iterable[LogRecord],
    wanted: Callable[[_Place], bool] = lambda place: True,
) -> Iterator[tuple[_Place, Iterator[Words] | None]]:
    """The attempts of a partition, with their words: those that are whole as they end, and then the
    others, without. The words are to be read before the next attempt, and held piece by piece: what
    has begun and not ended waits in a scratch file.
    """
    with SpooledTemporaryFile(max_size=HELD_BYTES) as file:
        yield from _ended(job, role, partition, records, wanted, _Held(file))


def _ended(
    job: DeployedJob,
    role: Role,
    partition: int,
    records: Iterable[LogRecord],
    wanted: Callable[[_Place], bool],
    held: _Held,
) -> Iterator[tuple[_Place, Iterator[Words] | None]]:
    begun: dict[_Place, dict[int, tuple[int, int]]] = {}
    identity = job.deployment, job.fingerprint
    finished: set[_Place] = set()
    for record in records:
        try:
            chunk = read_piece(record.value)
        except CodecError:
            continue
        if (chunk.deployment, chunk.fingerprint) != identity:
            continue
        if role not in SUMS and release_problem(job, chunk.epoch, chunk.instance, partition):
            continue
        place = _place(chunk)
        if place in finished or not wanted(place):
            continue
        waiting = begun.setdefault(place, {})
        if chunk.index not in waiting:
            waiting[chunk.index] = held.add(record.value)
        if len(waiting) == place.total:
            finished.add(place)
            del begun[place]
            pieces = (held.read(*waiting[index]) for index in sorted(waiting))
            yield place, (read_piece(piece).words for piece in pieces)
            if not begun:
                held.clear()
    for place in begun:
        yield place, None


class _Held:
    """Records that wait in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._end = 0

    def add(self, record: bytes) -> tuple[int, int]:
        """Where it begins, and how long it is."""
        self._file.seek(self._end)
        self._file.write(record)
        place = self._end, len(record)
        self._end += len(record)
        return place

    def read(self, start: int, length: int) -> bytes:
        """A record, by its place."""
        self._file.seek(start)
        return self._file.read(length)

    def clear(self) -> None:
        """Forget all of them."""
        self._file.seek(0)
        self._file.truncate()
        self._end = 0


def _attempt(
    job: DeployedJob, role: Role, place: _Place, pieces: Iterator[Words] | None
) -> Attempt:
    attempt = Attempt(
        role,
        place.epoch,
        place.instance,
        place.manifest_offset,
        place.attempt,
        place.total,
        complete=pieces is not None,
    )
    if pieces is None:
        return attempt
    rows, messages, disorder, said = 0, 0, "", WordsDigest()
    multiset = WordMultiset(job.form_of(role)) if role not in SUMS else None
    for piece in pieces:
        said.add(piece)
        rows += piece.rows
        messages += piece.messages
        if multiset is not None and not disorder:
            disorder = _problem(multiset, job.form_of(role), piece)
    contents = ordered = said.value
    if multiset is not None and not disorder:
        try:
            ordered = digest_in_order(job, multiset)
        except _NO_WORDS_OF_THE_JOB as error:
            disorder = f"its words are none of the job's: {error}"
        else:
            if ordered != contents:
                disorder = "its words do not stand in canonical order"
    if multiset is not None:
        multiset.close()
    return replace(
        attempt,
        rows=rows,
        messages=messages,
        contents=contents,
        multiset=ordered,
        disorder=disorder,
    )


def _problem(multiset: WordMultiset, form: WordForm, piece: Words) -> str:
    """Why words cannot be added to a multiset; empty: they are."""
    try:
        _add(multiset, form, piece)
    except _NO_WORDS_OF_THE_JOB as error:
        return f"its words are none of the job's: {error}"
    return ""


def _add(multiset: WordMultiset, form: WordForm, piece: Words) -> None:
    if piece.values.dtype != form.dtype or piece.width != form.width:
        raise CodecError(
            f"{piece.width} words of {piece.values.dtype}, must be {form.width} of {form.dtype}"
        )
    multiset.add(piece)


def digest_in_order(job: DeployedJob, multiset: WordMultiset) -> bytes:
    """The digest of a multiset as a window has it, in canonical order."""
    return digest_of(pieces_in_order(job, multiset))


def pieces_in_order(job: DeployedJob, multiset: WordMultiset) -> Iterable[Words]:
    """A multiset in canonical order, cut as a window is; if it is large, never held as a whole."""
    steps = multiset.ordered() if job.sealed is None else boxes_in_order(multiset)
    return carry_out(steps, lambda action: None).words


def _words(
    job: DeployedJob, read: Read, windows: Iterable[Attempt]
) -> Iterator[tuple[Attempt, Words]]:
    """See `Evidence.words`."""
    role = job.decided_role
    wanted = {_place(each): each for each in windows}
    for partition in sorted({job.released_in(each.epoch, each.instance) for each in wanted}):
        found = _writings(job, role, partition, read(role, partition), wanted.__contains__)
        for place, pieces in found:
            if pieces is not None:
                with suppress(*_NO_WORDS_OF_THE_JOB):
                    yield wanted[place], _canonical(job, role, pieces)


def _canonical(job: DeployedJob, role: Role, pieces: Iterable[Words]) -> Words:
    """The words of an attempt as a multiset has them."""
    form = job.form_of(role)
    multiset = WordMultiset(form)
    for piece in pieces:
        _add(multiset, form, piece)
    ordered = multiset.sorted()
    multiset.close()
    return ordered if job.sealed is None else distinct(ordered)
