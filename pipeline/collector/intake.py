"""Decide which report bodies to accept, without I/O and identically in every collector.

A body is checked twice. First, the body's header determines whether the job accepts the body at
this time. Later, the contents of envelopes are checked for several bodies together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.collector.responses import HttpResponse, RequestProblem
from dpstream.pipeline.collector.tokens import HORIZON, REPORT, Tagger
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import TOLERANCE_MS, EpochTimes, times_of
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.job_range import epoch_problem
from dpstream.pipeline.jobs.key_files import CollectorKey, WrongKeyError
from dpstream.pipeline.jobs.listed_jobs import ListedJobs
from dpstream.pipeline.stages.admission import MessageCheck
from dpstream.topics.envelopes import (
    ENVELOPE_OVERHEAD,
    HEADER_BYTES,
    IDENTITY_BYTES,
    EnvelopeError,
    Envelopes,
    decode_body,
)
from dpstream.topics.loose_batches import (
    LOOSE_PAYLOAD_TARGET,
    REPORT_ID_BYTES,
    TAG_BYTES,
    Enrollments,
    LooseBatch,
    encode_enrollments,
    encode_loose_batch,
    subject_of_device,
    subject_of_token,
)
from dpstream.topics.sealing import CIPHERTEXT_BYTES, key_id

_GATES: Final = 256
"""Maximum number of cached headers; each belongs to an epoch that is currently accepted."""
_DEVICE: Final = subject_of_device(b"")
_PURPOSE: Final = 2 * IDENTITY_BYTES
_ENROLLMENT: Final = 2
_TAG_TYPE: Final = np.dtype("<u8")
_EVER: Final = 2**63
_SETTLING_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """Properties that all reports for one epoch have, and the times at which they are accepted.

    Times are in milliseconds since 1970. Acceptance lasts from `opens` to `closes`; the epoch
    itself starts at `begins`. Accepted reports must be in the log by `settles`. They then count
    even if this collector fails, because no collector declares the epoch's end before this time.
    """

    job: str
    epoch: int
    key: bytes | None
    envelope_bytes: int
    opens: int
    begins: int
    closes: int
    settles: int

    def rejection(self, body_bytes: int, now: int) -> HttpResponse | None:
        envelopes, rest = divmod(body_bytes - HEADER_BYTES, self.envelope_bytes)
        if rest or not envelopes:
            return RequestProblem.MALFORMED.answer()
        if now >= self.closes:
            return RequestProblem.LATE.answer()
        if now < self.opens:
            return RequestProblem.EARLY.answer(begins=self.begins)
        return None

    @property
    def row_bytes(self) -> int:
        beside = TAG_BYTES if self.key is None else TAG_BYTES + REPORT_ID_BYTES
        return self.envelope_bytes - ENVELOPE_OVERHEAD + beside

    def envelopes(self, body: bytes) -> int:
        return (len(body) - HEADER_BYTES) // self.envelope_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Records to write for request bodies: first the `enrollments`, then the `batches`."""

    rejections: Sequence[HttpResponse | None]
    enrollments: Sequence[bytes] = ()
    batches: Sequence[bytes] = ()
    reports: int = 0


@dataclass(eq=False)
class Intake:
    """Check device reports for one deployment; raise WrongKeyError if `key` is wrong."""

    job: DeployedJob
    key: CollectorKey
    times: EpochTimes = field(init=False)
    _rules: dict[bytes, IntakeRules] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.key.digest != self.job.collector_key:
            raise WrongKeyError(
                f"the collector key does not match the deployment of job {self.job.name}: copy the "
                "original file, and pass it with --collector-key"
            )
        times = times_of(self.job)
        assert times is not None
        self.times = times
        self._check = MessageCheck(self.job)
        self._form = self.job.content_format
        self._late = round(self.job.late * 1000)
        # In other jobs, the first report of a horizon enrolls its device.
        self._last_purpose = 1 if self.job.protocol_entry.sampled is None else 2

    @property
    def takes_tokens(self) -> bool:
        return self.job.devices is not None and self.job.devices.tokens is not None

    def closes(self, epoch: int) -> int:
        """Return the time at which acceptance for an epoch ends, milliseconds since 1970."""
        end = self.times.start(epoch + 1)
        return _EVER if end is None else end + self._late

    def settles(self, epoch: int) -> int:
        """Return the time after which reports added to the log are late, milliseconds since 1970.

        This time is one second after acceptance ends, or the middle of the shuffler's remaining
        grace period if that is earlier. Watermarks are written after this time.
        """
        grace = round(1000 * self.job.shuffle.grace)
        return self.closes(epoch) + min(_SETTLING_MS, max(0, grace - self._late) // 2)

    def rules(self, body: bytes) -> IntakeRules | HttpResponse:
        """Return the intake rules for a body, or a rejection that does not depend on the time."""
        rules = self._rules.get(body[:HEADER_BYTES])
        if rules is not None:
            return rules
        try:
            found = self._new_rules(decode_body(body))
        except EnvelopeError:
            return RequestProblem.MALFORMED.answer()
        if isinstance(found, IntakeRules):
            if len(self._rules) >= _GATES:
                self._rules.clear()
            self._rules[body[:HEADER_BYTES]] = found
        return found

    def _new_rules(self, envelopes: Envelopes) -> IntakeRules | HttpResponse:
        job, epoch = self.job, envelopes.epoch
        if envelopes.deployment != job.deployment:
            return RequestProblem.DEPLOYMENT.answer(deployment=job.deployment.hex())
        if envelopes.fingerprint != job.fingerprint:
            return RequestProblem.FINGERPRINT.answer()
        begins = self.times.start(epoch)
        if epoch_problem(job, epoch) is not None or begins is None:
            return RequestProblem.EPOCH.answer()
        if epoch < job.first_epoch:
            return RequestProblem.LATE.answer()
        assert job.devices is not None
        public_key = job.devices.key_at(epoch)
        if envelopes.key != (None if public_key is None else key_id(public_key)):
            return RequestProblem.SEALED.answer()
        size = ENVELOPE_OVERHEAD + self._form.size + (0 if public_key is None else CIPHERTEXT_BYTES)
        if envelopes.rows.shape[1] != size:
            return RequestProblem.MALFORMED.answer()
        opens = begins - TOLERANCE_MS
        closes, settles = self.closes(epoch), self.settles(epoch)
        return IntakeRules(job.name, epoch, envelopes.key, size, opens, begins, closes, settles)

    def take(
        self, rules: IntakeRules, bodies: Sequence[bytes], subjects: Sequence[str | None]
    ) -> Taken:
        """Check the envelopes in bodies that share one set of rules; `subjects` are by body."""
        size = rules.envelope_bytes
        data = b"".join([body[HEADER_BYTES:] for body in bodies])
        rows = np.frombuffer(data, np.uint8).reshape(-1, size)
        counts = [rules.envelopes(body) for body in bodies]
        ends = np.cumsum([0, *counts]).tolist()
        devices = [data[at : at + IDENTITY_BYTES] for at in range(0, len(data), size)]
        rejections = self._rejections(rules, rows, ends)
        for index, (begin, end) in enumerate(pairwise(ends)):
            if end - begin > 1 and rejections[index] is None:
                if len(set(devices[begin:end])) < end - begin:
                    rejections[index] = RequestProblem.TWICE.answer()
                elif self.takes_tokens:
                    rejections[index] = RequestProblem.SEVERAL.answer()
            if self.takes_tokens and subjects[index] is None:
                # Bodies without a subject must not count as the same sender.
                rejections[index] = rejections[index] or RequestProblem.NO_TOKEN.answer()
        good = [rejection is None for rejection in rejections]
        taken = np.flatnonzero(np.repeat(good, counts))
        if not len(taken):
            return Taken(rejections)
        rows = rows[taken]
        has_report = rows[:, _PURPOSE] != _ENROLLMENT
        if self.takes_tokens:
            of = np.repeat(np.arange(len(bodies)), counts)[taken]
            who = [subject_of_token(cast(str, subjects[index])) for index in of]
        else:
            who = [_DEVICE + devices[index] for index in taken]
        return Taken(
            rejections,
            list(self._enrollments(rules.epoch, rows, who)),
            list(self._batches(rules, rows[has_report], list(compress(who, has_report)))),
            int(np.count_nonzero(has_report)),
        )

    def _rejections(
        self, rules: IntakeRules, rows: NDArray[np.uint8], ends: Sequence[int]
    ) -> list[HttpResponse | None]:
        formed = rows[:, _PURPOSE] <= self._last_purpose
        if rules.key is not None:
            return [
                None if good else RequestProblem.MALFORMED.answer() for good in _all(formed, ends)
            ]
        slots, used, well_formed = self._form.unpack(rows[:, ENVELOPE_OVERHEAD:])
        rejections = [
            None if good else RequestProblem.MALFORMED.answer()
            for good in _all(formed & well_formed, ends)
        ]
        in_use = np.arange(self._form.slots) < used[:, None]
        for index in self._foreign(rules.epoch, slots, in_use, ends, 0, len(rejections)):
            rejections[index] = rejections[index] or RequestProblem.FOREIGN.answer()
        return rejections

    def _foreign(
        self,
        epoch: int,
        slots: NDArray[np.unsignedinteger],
        in_use: NDArray[np.bool_],
        ends: Sequence[int],
        first: int,
        last: int,
    ) -> Iterator[int]:
        """Yield the indices of bodies in [`first`, `last`) that contain invalid messages.

        Bisection avoids checking every body because of a single invalid message.
        """
        begin, end = ends[first], ends[last]
        words = slots[begin:end][in_use[begin:end]]
        if not len(words) or self._check.message_problem(epoch, words) is None:
            return
        if last - first == 1:
            yield first
            return
        middle = (first + last) // 2
        yield from self._foreign(epoch, slots, in_use, ends, first, middle)
        yield from self._foreign(epoch, slots, in_use, ends, middle, last)

    def _enrollments(
        self, epoch: int, rows: NDArray[np.uint8], who: Sequence[bytes]
    ) -> Iterator[bytes]:
        enrolls = np.flatnonzero(rows[:, _PURPOSE]).tolist()
        if not enrolls:
            return
        job = self.job
        tagger = Tagger(self.key.secret, HORIZON, job.deployment, job.epochs.horizon_of(epoch))
        numbers = _numbers(tagger.tags([who[index] for index in enrolls]))
        # Sorted like reports, so that a position in one record reveals nothing about the other
        # record.
        numbers = np.sort(numbers)
        most = LOOSE_PAYLOAD_TARGET // TAG_BYTES
        for at in range(0, len(numbers), most):
            part = numbers[at : at + most]
            yield encode_enrollments(Enrollments(job.fingerprint, job.deployment, epoch, part))

    def _batches(
        self, rules: IntakeRules, rows: NDArray[np.uint8], who: Sequence[bytes]
    ) -> Iterator[bytes]:
        if not len(rows):
            return
        job = self.job
        tags = Tagger(self.key.secret, REPORT, job.deployment, rules.epoch).tags(who)
        parts = [tags, rows[:, ENVELOPE_OVERHEAD:]]
        if rules.key is not None:
            # The ciphertext is bound to the report ID.
            parts.insert(1, rows[:, IDENTITY_BYTES : 2 * IDENTITY_BYTES])
        # The first of equal tags counts; a stable sort keeps it first.
        whole = np.concatenate(parts, axis=1)[np.argsort(_numbers(tags), kind="stable")]
        most = max(1, LOOSE_PAYLOAD_TARGET // whole.shape[1])
        for at in range(0, len(whole), most):
            part = whole[at : at + most]
            yield encode_loose_batch(
                LooseBatch(job.fingerprint, job.deployment, rules.epoch, rules.key, part)
            )


def _numbers(tags: NDArray[np.uint8]) -> NDArray[np.uint64]:
    numbers: NDArray[np.uint64] = np.ascontiguousarray(tags).view(_TAG_TYPE)[:, 0]
    return numbers


def _all(good: NDArray[np.bool_], ends: Sequence[int]) -> list[bool]:
    whole: list[bool] = np.logical_and.reduceat(good, ends[:-1]).tolist()
    return whole


@dataclass(frozen=True, slots=True)
class SelectedJob:
    job: DeployedJob
    phase: Phase


@dataclass(frozen=True, slots=True)
class SelectedJobs:
    """A collector's jobs at one moment.

    `rejected` maps jobs whose reports cannot be accepted to the reasons. It contains only jobs that
    the collector's options name, and jobs written by another version of the software.
    """

    jobs: Mapping[str, SelectedJob]
    rejected: Mapping[str, str]


def selected_jobs(topic: ListedJobs, names: Collection[str] = ()) -> SelectedJobs:
    """Return the jobs in `names`; without `names`, all jobs with a ``devices`` section."""
    jobs, rejected = {}, {}
    for name, job in topic.jobs.items():
        if names and name not in names:
            continue
        if job.devices is None or job.signed_description is None or job.replay_of is not None:
            if names:
                rejected[name] = "it was deployed without devices that report by themselves"
            continue
        # Computed before the first report arrives, because it takes seconds for some mechanisms.
        _ = job.content_format
        jobs[name] = SelectedJob(job, topic.phase(name))
    for name in topic.unreadable:
        if not names or name in names:
            rejected[name] = "it was deployed by an incompatible version of dpstream"
    for name in set(names) - topic.jobs.keys() - topic.unreadable:
        rejected[name] = "it is not deployed; its reports are accepted after its deployment"
    return SelectedJobs(jobs, rejected)
