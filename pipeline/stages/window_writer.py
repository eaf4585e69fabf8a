"""The words of decided windows: read again from the raw topic, and written without their origin.

All of it is a function of the manifest, so that whatever is repeated is repeated identically, but
for the id of the attempt and a random order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from pipeline.actions import Append, Flush, LogRecord, Steps, end_offset, scan
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.stages.admission import Admission, Refusal
from pipeline.stages.decision_log import Decision
from pipeline.stages.multisets import WordMultiset
from pipeline.stages.roster import Roster
from pipeline.stages.stage_noise import StageNoise
from pipeline.stages.windows import PunctuationError, Window
from topics.chunks import Chunk, encode_chunk
from topics.manifests import Manifest
from topics.names import Role
from topics.words import split_words


class WindowWriter:
    """Reads and writes the words of windows that a manifest releases.

    Args:
        job: the deployed job.
        admission: the checks that records have passed.
        roster: who is registered.
        noise: makes the dummies of an epoch.
        identifiers: makes the random 16-byte ids of attempts.
        generator: cryptographic generator for ``order: random``.
        multiset: makes an empty multiset of words.
    """

    def __init__(
        self,
        job: DeployedJob,
        admission: Admission,
        roster: Roster,
        noise: StageNoise,
        *,
        identifiers: Callable[[], bytes],
        generator: np.random.Generator,
        multiset: Callable[[], WordMultiset],
    ) -> None:
        self._job = job
        self._admission = admission
        self._roster = roster
        self._noise = noise
        self._identifiers = identifiers
        self._generator = generator
        self._multiset = multiset

    def read(self, manifest: Manifest) -> Steps[WordMultiset]:
        """Collect the window of a manifest from the raw topic; the roster has all its producers."""
        partition = self._job.partition_of(manifest.epoch)
        window = Window(manifest.epoch, 0.0, self._multiset)
        inside = {
            producer.enrolment
            for producer, included in zip(self._roster, manifest.producers, strict=False)
            if included
        }

        def collect(record: LogRecord) -> None:
            admitted = self._admission.admit(partition, record.value)
            if (
                not isinstance(admitted, Refusal)
                and admitted.epoch == manifest.epoch
                and admitted.enrolment in inside
            ):
                with suppress(PunctuationError):
                    window.add(admitted)

        end = yield from end_offset(Role.REPORTS, partition)
        stop = min(manifest.cut_offset, end)
        yield from scan(Role.REPORTS, partition, manifest.first_offset, stop, collect)
        return window.words

    def write(self, decision: Decision, words: WordMultiset) -> Steps[None]:
        """Write a window's words, and the dummies of its epoch: a new attempt, in equal pieces."""
        manifest = decision.manifest
        dummies = self._noise.dummies(manifest.epoch)
        if dummies is not None:
            words.add(dummies)
        if self._job.shuffle.order == "random":
            pieces = split_words(words.permuted(self._generator))
        else:
            pieces = split_words(words.sorted())
        attempt = self._identifiers()
        for index, piece in enumerate(pieces):
            chunk = Chunk(
                fingerprint=self._job.fingerprint,
                deployment=self._job.deployment,
                epoch=manifest.epoch,
                manifest_offset=decision.offset,
                attempt=attempt,
                index=index,
                total=len(pieces),
                words=piece,
            )
            yield Append(Role.SHUFFLED, self._job.partition_of(manifest.epoch), encode_chunk(chunk))
        yield Flush()
