"""Encode an epoch of a sealed job as ciphertexts, or as shares of a table."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpstream.pipeline.devices.epoch_records import DrawnEpoch
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.randomizers.counted_messages import CountedMessages, Reports, written_out
from dpstream.topics.batches import Batch
from dpstream.topics.fixed_sizes import FixedSize
from dpstream.topics.messages import Messages, split_messages
from dpstream.topics.names import Role
from dpstream.topics.sealed_batches import SEALED_PAYLOAD_TARGET, seal_batch
from dpstream.topics.sealed_messages import pack_reports, seal_rows
from dpstream.topics.shares import share_table, table_of


@dataclass(frozen=True, slots=True)
class SealedEpoch(DrawnEpoch):
    """Epoch with a ciphertext for every report; cover traffic hides how many reports there are."""

    def _chunks(
        self, reports: Reports, most: int | None, generator: np.random.Generator
    ) -> Sequence[tuple[Messages, FixedSize | None]]:
        values = written_out(reports)
        cover_traffic = 0 if most is None else most - len(values)
        rows = pack_reports(values, cover_traffic, self.job.message_format)
        words = Messages(seal_rows(rows, self.job.locks.after(Role.REPORTS, self.epoch)))
        return [
            (chunk, None) for chunk in split_messages(words, SEALED_PAYLOAD_TARGET) if chunk.rows
        ]

    def _encoded(self, role: Role, batch: Batch) -> bytes:
        return seal_batch(batch, self.job.locks.of_batch(role, self.epoch))


@dataclass(frozen=True, slots=True)
class SharedEpoch(DrawnEpoch):
    """Epoch as a table of report counts in two shares, whose size is independent of the counts."""

    def _chunks(
        self, reports: Reports, most: int | None, generator: np.random.Generator
    ) -> Sequence[tuple[Messages, FixedSize | None]]:
        input_format = self.job.table_format
        first, second = (self.job.locks.of(party, self.epoch) for party in SHARERS)
        if isinstance(reports, CountedMessages):
            table = table_of(reports.values, reports.counts, input_format.cells)
        else:
            table = table_of(reports, None, input_format.cells)
        locks = first, second
        rows = share_table(table, self.contributors, input_format, locks, secrets.token_bytes)
        return [(chunk, None) for chunk in split_messages(Messages(rows))]
