"""The words of decided windows: read again from the raw topic, and written without their origin.

All of it is a function of the manifest, so that whatever is repeated is repeated identically, but
for the id of the attempt and a random order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

from dpstream.pipeline.actions import Flush, LogRecord, Steps, end_offset, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.roster import Roster
from dpstream.pipeline.stages.admission import Admission, Refusal
from dpstream.pipeline.stages.attempts import chunks_of_attempt
from dpstream.pipeline.stages.boxes_of_windows import boxes_in_order
from dpstream.pipeline.stages.decision_log import Decision
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.ordered_pieces import Pieces
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.pipeline.stages.windows import PunctuationError, Window
from dpstream.topics.batches import Batch, Punctuation, drawing_of
from dpstream.topics.manifests import Manifest
from dpstream.topics.names import Role


class WindowsAgain(Protocol):
    """Collects the words of a window that is decided from what the raw topic holds."""

    def read(self, manifest: Manifest, /) -> Steps[WordMultiset]:
        """The words of those that a manifest says are in."""
        ...


class ProducerWindows:
    """Windows of what producers sent.

    Args:
        job: the deployed job.
        admission: the checks that records have passed.
        roster: who is registered.
        multiset: makes an empty multiset of words.
        role: of the topic of raw reports.
    """

    def __init__(
        self,
        job: DeployedJob,
        admission: Admission,
        roster: Roster,
        multiset: Callable[[], WordMultiset],
        role: Role,
    ) -> None:
        self._job = job
        self._admission = admission
        self._roster = roster
        self._multiset = multiset
        self._role = role

    def read(self, manifest: Manifest) -> Steps[WordMultiset]:
        """See `WindowsAgain`; the roster has all producers of the manifest."""
        partition = self._job.partition_of(manifest.epoch)
        window = Window(manifest.epoch, 0.0, self._multiset)
        inside = drawings_in(manifest, self._roster)

        def collect(record: LogRecord) -> None:
            admitted = self._admission.admit(partition, record.value)
            if (
                not isinstance(admitted, Refusal)
                and admitted.epoch == manifest.epoch
                and admitted.enrolment in inside
                and inside[admitted.enrolment] in (None, _drawing(admitted))
            ):
                with suppress(PunctuationError):
                    window.add(admitted)

        end = yield from end_offset(self._role, partition)
        stop = min(manifest.cut_offset, end)
        yield from scan(self._role, partition, manifest.first_offset, stop, collect)
        return window.words


class WindowWriter:
    """Reads and writes the words of windows that a manifest releases.

    Args:
        job: the deployed job.
        windows: collects the words of a window.
        noise: makes the dummies of an epoch.
        identifiers: makes the random 16-byte ids of attempts.
        generator: cryptographic generator for ``order: random``.
        multiset: makes an empty multiset of words.
    """

    def __init__(
        self,
        job: DeployedJob,
        windows: WindowsAgain,
        noise: StageNoise,
        *,
        identifiers: Callable[[], bytes],
        generator: np.random.Generator,
        multiset: Callable[[], WordMultiset],
    ) -> None:
        self._job = job
        self._windows = windows
        self._noise = noise
        self._identifiers = identifiers
        self._generator = generator
        self._multiset = multiset

    def read(self, manifest: Manifest) -> Steps[WordMultiset]:
        """Collect the window of a manifest from the raw topic."""
        return (yield from self._windows.read(manifest))

    def write(self, decision: Decision, words: WordMultiset) -> Steps[None]:
        """Write a window's words with the noise of its epoch: a new attempt, in equal pieces.

        Or their noisy sum and no word, where that is what is released.
        """
        manifest = decision.manifest
        dummies = self._noise.dummies(manifest.epoch)
        if dummies is not None:
            words.add(dummies)
        # How the words are encoded must tell of those that are left alone.
        kept = self._multiset()
        if self._noise.deletes:
            kept.add(self._noise.left(manifest.epoch, words.sorted()))
            words = kept
        if self._noise.sums:
            pieces = Pieces.of([self._noise.sum(manifest.epoch, words.sorted())])
        elif self._job.shuffle.order == "random":
            pieces = yield from words.permuted(self._generator)
        elif self._job.sealed is not None:
            pieces = yield from boxes_in_order(words)
        else:
            pieces = yield from words.ordered()
        role, attempt = self._job.decided_role, self._identifiers()
        yield from chunks_of_attempt(
            self._job, role, manifest.epoch, decision.offset, attempt, pieces, manifest.instance
        )
        yield Flush()
        kept.close()


def drawings_in(manifest: Manifest, roster: Roster) -> dict[bytes, bytes | None]:
    """The enrolments that a manifest says are in, each with its drawing, if that is said."""
    enrolments = [
        producer.enrolment
        for producer, included in zip(roster, manifest.producers, strict=False)
        if included
    ]
    return dict(zip(enrolments, manifest.drawings or [None] * len(enrolments), strict=True))


def _drawing(record: Batch | Punctuation) -> bytes | None:
    return drawing_of(record.batch) if isinstance(record, Batch) else record.drawing
