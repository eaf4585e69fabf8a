"""Encode a producer's randomized reports for an epoch as records, for every parallel shuffler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.randomizers.counted_messages import CountedMessages, Reports
from dpstream.topics.batches import Batch, Punctuation, batch_id, encode_batch, encode_punctuation
from dpstream.topics.messages import Messages, split_messages
from dpstream.topics.names import Role

if TYPE_CHECKING:
    from dpstream.topics.fixed_sizes import FixedSize


@dataclass(frozen=True, slots=True)
class DrawnEpoch:
    """Encoder for the reports that a producer has drawn for one epoch.

    Attributes:
        enrollment: Enrollment ID of the producer, 16 bytes.
        drawing: Random ID of this draw, 8 bytes.
        most: Maximum number of reports, if the number of reports is secret; otherwise None.
    """

    job: DeployedJob
    epoch: int
    enrollment: bytes
    drawing: bytes
    contributors: int
    population: int
    most: int | None

    def records(
        self, reports: Reports, generator: np.random.Generator
    ) -> Iterator[tuple[Role, Iterator[bytes]]]:
        """Yield each parallel shuffler's topic, and the records with its part of the reports.

        The shuffler that finalizes windows comes last. `reports` has shape (n, width), or is
        `CountedMessages`. Raises `CodecError` if there are more reports than records can hold.
        """
        roles, parts, most = self.job.route.reports, [reports], self.most
        if len(roles) > 1:
            from dpstream.randomizers.division import divide, room_of_part

            most = None if most is None else room_of_part(most, len(roles))
            parts = divide(reports, len(roles), most, generator)
        for role, part in reversed(list(zip(roles, parts, strict=True))):
            yield role, self._records(role, self._chunks(part, most, generator))

    def _chunks(
        self, reports: Reports, most: int | None, generator: np.random.Generator
    ) -> Sequence[tuple[Messages, FixedSize | None]]:
        """Return each batch's messages and fixed size; None means the smallest possible size."""
        words = self._words(reports, generator)
        if most is not None:
            from dpstream.topics.fixed_sizes import fixed_size, split_fixed

            return list(split_fixed(words, fixed_size(self.job.message_format, most)))
        return [(chunk, None) for chunk in split_messages(words)] if words.rows else []

    def _words(self, reports: Reports, generator: np.random.Generator) -> Messages:
        """Return the messages to send, in an order that hides which of them are dummy messages."""
        if isinstance(reports, CountedMessages):
            return Messages(reports.values, reports.counts)
        if self.job.protocol_entry.shuffling is None:
            return Messages(reports)
        if self.job.message_format.width == 1:
            return Messages.canonical(reports)
        return Messages(generator.permutation(reports))

    def _encoded(self, role: Role, batch: Batch) -> bytes:
        return encode_batch(batch)

    def _records(
        self, role: Role, chunks: Sequence[tuple[Messages, FixedSize | None]]
    ) -> Iterator[bytes]:
        job, epoch = self.job, self.epoch
        for index, (chunk, room) in enumerate(chunks):
            batch = Batch(
                job.fingerprint,
                job.deployment,
                batch_id(self.drawing, index),
                self.enrollment,
                epoch,
                chunk,
                room,
            )
            yield self._encoded(role, batch)
        yield encode_punctuation(
            Punctuation(
                job.fingerprint,
                job.deployment,
                self.enrollment,
                epoch,
                batches=len(chunks),
                contributors=self.contributors,
                population=self.population,
                drawing=self.drawing,
            )
        )


def drawn_epochs(job: DeployedJob) -> type[DrawnEpoch]:
    if job.sealed is None:
        return DrawnEpoch
    from dpstream.pipeline.devices.sealed_records import SealedEpoch, SharedEpoch

    return SharedEpoch if job.shared else SealedEpoch
