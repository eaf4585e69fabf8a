"""The records of an epoch that a producer has drawn: for every shuffle instance, open or sealed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealed import SHARERS
from dpstream.randomizers.counted_words import CountedWords, written_out
from dpstream.randomizers.division import Reports, divide, room_of_part
from dpstream.topics.batches import Batch, Punctuation, batch_id, encode_batch, encode_punctuation
from dpstream.topics.fixed_sizes import FixedSize, Slots, fixed_size, split_fixed
from dpstream.topics.frames import PAYLOAD_TARGET
from dpstream.topics.names import Role
from dpstream.topics.sealed_batches import SEALED_PAYLOAD_TARGET, seal_batch
from dpstream.topics.sealed_words import pack_reports, seal_rows
from dpstream.topics.shares import share_table, table_of
from dpstream.topics.words import Words, split_words


@dataclass(frozen=True, slots=True)
class DrawnEpoch:
    """What a producer has drawn of an epoch.

    Attributes:
        job: whose epoch it is.
        epoch: of the job.
        enrolment: 16 bytes, of the producer.
        drawing: 8 random bytes of this drawing, which no other has.
        contributors: devices that are present.
        population: devices that are enrolled.
        most: the most reports that there may be, where their number is a secret; None elsewhere.
    """

    job: DeployedJob
    epoch: int
    enrolment: bytes
    drawing: bytes
    contributors: int
    population: int
    most: int | None

    def records(
        self, reports: Reports, generator: np.random.Generator
    ) -> Iterator[tuple[Role, Iterator[bytes]]]:
        """The records with a part of the reports for every shuffle instance, and their topics.

        The instance that decides windows comes last.

        Args:
            reports: of all devices, shape (n, width), or counted.
            generator: of the drawing.

        Raises:
            CodecError: there are more reports than records can hold.
        """
        roles, parts, most = self.job.report_roles, [reports], self.most
        if len(roles) > 1:
            most = None if most is None else room_of_part(most, len(roles))
            parts = divide(reports, len(roles), most, generator)
        for role, part in reversed(list(zip(roles, parts, strict=True))):
            size = None if most is None else self._size(most)
            if self.job.shared:
                words, size = self._shared(part), None
            elif self.job.sealed is not None:
                words, size = self._sealed(part, size), None
            else:
                words = self._open(part, generator)
            yield role, self._records(role, words, size)

    def _size(self, most: int) -> FixedSize:
        return Slots(most) if self.job.seals_batches else fixed_size(self.job.word_form, most)

    def _open(self, reports: Reports, generator: np.random.Generator) -> Words:
        """What is sent; where dummies hide reports, in an order that does not tell them apart."""
        if isinstance(reports, CountedWords):
            return Words(reports.values, reports.counts)
        if not self.job.protocol_entry.needs_shuffle:
            return Words(reports)
        if self.job.word_form.width == 1:
            return Words.canonical(reports)
        return Words(generator.permutation(reports))

    def _sealed(self, reports: Reports, size: FixedSize | None) -> Words:
        """Every report in boxes of its own, and chaff where their number is a secret."""
        values = written_out(reports)
        chaff = size.rows - len(values) if isinstance(size, Slots) else 0
        rows = pack_reports(values, chaff, self.job.word_form)
        return Words(seal_rows(rows, self.job.locks_after(Role.REPORTS, self.epoch)))

    def _shared(self, reports: Reports) -> Words:
        """A table of how often each report occurs, in two shares: as large whatever it says."""
        form = self.job.table_form
        first, second = (self.job.lock(party, self.epoch) for party in SHARERS)
        if isinstance(reports, CountedWords):
            table = table_of(reports.values, reports.counts, form.cells)
        else:
            table = table_of(reports, None, form.cells)
        locks = first, second
        return Words(share_table(table, self.contributors, form, locks, secrets.token_bytes))

    def _records(self, role: Role, words: Words, size: FixedSize | None) -> Iterator[bytes]:
        """Batches for one shuffle instance, and their punctuation."""
        job, epoch = self.job, self.epoch
        pieces: list[tuple[Words, FixedSize | None]] = []
        if size is not None:
            pieces.extend(split_fixed(words, size))
        elif words.rows:
            target = SEALED_PAYLOAD_TARGET if job.seals_batches else PAYLOAD_TARGET
            pieces.extend((piece, None) for piece in split_words(words, target))
        for index, (piece, room) in enumerate(pieces):
            batch = Batch(
                job.fingerprint,
                job.deployment,
                batch_id(self.drawing, index),
                self.enrolment,
                epoch,
                piece,
                room,
            )
            yield (
                seal_batch(batch, job.batch_lock(role, epoch))
                if job.seals_batches
                else encode_batch(batch)
            )
        yield encode_punctuation(
            Punctuation(
                job.fingerprint,
                job.deployment,
                self.enrolment,
                epoch,
                batches=len(pieces),
                contributors=self.contributors,
                population=self.population,
                drawing=self.drawing,
            )
        )
