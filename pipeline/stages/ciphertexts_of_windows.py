"""Decrypt a window's reports: each stage removes one layer, the last stage the innermost one.

A window of sealed reports is a set of ciphertexts in increasing order. Every ciphertext has its own
key, so the order reveals nothing. A ciphertext that occurs twice was copied, and counts only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.actions import Steps, Yield
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.sealed import AGGREGATE
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.pipeline.stages.multisets import MessageMultiset, distinct_of_all
from dpstream.pipeline.stages.ordered_chunks import Chunks
from dpstream.pipeline.stages.window_writer import WindowRelease
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import MessageArray, Messages, split_messages
from dpstream.topics.sealed_messages import (
    NAME_WORDS,
    open_named_rows,
    open_rows,
    sealed_format,
    strictly_increases,
    unpack_reports,
)
from dpstream.topics.sealing import key_id, unseal_all


@dataclass(slots=True)
class IncreasingCiphertexts:
    ends: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)

    def add(self, index: int, words: Messages, form: MessageFormat) -> None:
        rows = words.values
        if words.counts is not None or rows.dtype != form.dtype or rows.shape[1] != form.width:
            raise ValueError(f"messages: got {rows.shape[1]} x {rows.dtype}; expected {form}")
        if not len(rows):
            return
        first, last = rows[0].tolist(), rows[-1].tolist()
        _, before = self.ends.get(index - 1, (None, None))
        after, _ = self.ends.get(index + 1, (None, None))
        if not (
            strictly_increases(rows)
            and (before is None or before < first)
            and (after is None or last < after)
        ):
            raise ValueError(
                "ciphertexts are out of order or duplicated; expected strictly increasing order"
            )
        self.ends[index] = first, last


def distinct(words: Messages) -> Messages:
    rows = words.values
    first = np.ones(len(rows), np.bool_)
    first[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return Messages(rows[first])


class SealedRelease(WindowRelease):
    def chunks(self, words: MessageMultiset) -> Steps[Chunks]:
        return (yield from ciphertexts_in_order(words))


def ciphertexts_in_order(words: MessageMultiset) -> Steps[Chunks]:
    """Cut the distinct ciphertexts, in increasing order, into chunks, using little memory."""
    if words.in_files:
        return (yield from words.once())
    return Chunks.of(split_messages(distinct(words.sorted())))


class Decryptor:
    """Decrypt the outermost layer of reports with a party's private keys.

    `party` is a key of `dpstream.pipeline.jobs.sealed.Sealed.parties`. Keys of past key periods can
    be erased: methods then raise `WrongKeyError`. The constructor raises it if any other key is
    missing.
    """

    def __init__(self, job: DeployedJob, party: str, keys: KeyRing) -> None:
        check_keys(job, party, keys)
        self._job = job
        self._party = party
        self._keys = keys

    def open(self, epoch: int, rows: MessageArray) -> MessageArray:
        private_key, context = self._period(epoch)
        return open_rows(rows, private_key, context)

    def open_named(self, epoch: int, rows: MessageArray) -> MessageArray:
        """Decrypt as `open` does; each content follows its name (see `open_named_rows`)."""
        private_key, context = self._period(epoch)
        return open_named_rows(rows, private_key, context)

    def open_all(self, epoch: int, ciphertexts: list[bytes]) -> list[bytes | None]:
        private_key, context = self._period(epoch)
        return unseal_all(ciphertexts, private_key, context)

    def _period(self, epoch: int) -> tuple[X25519PrivateKey, bytes]:
        lock = self._job.locks.of(self._party, epoch)
        private_key = self._keys.find(lock.public_key)
        if private_key is None:
            raise WrongKeyError(
                f"epoch {epoch} of job {self._job.name} is sealed to key "
                f"{key_id(lock.public_key).hex()} of {self._party}, which is no longer in "
                f"{self._keys.source}: the epoch cannot be read without that key"
            )
        return private_key, lock.context


class ReportReader:
    def __init__(self, job: DeployedJob, keys: KeyRing) -> None:
        self._job = job
        self._opener = Decryptor(job, AGGREGATE, keys)

    def add(self, aggregator: Aggregator, epoch: int, words: Messages) -> int:
        """Add the reports in an epoch's ciphertexts, and return the number of reports."""
        return self._add_opened(aggregator, epoch, self._opener.open(epoch, words.values))

    @property
    def named_format(self) -> MessageFormat:
        packed = sealed_format(self._job.message_format, 0)
        return MessageFormat(packed.dtype, NAME_WORDS + packed.width)

    def open_named(self, epoch: int, words: Messages) -> Messages:
        """Decrypt an epoch's ciphertexts without aggregation; each content follows its name."""
        return Messages(self._opener.open_named(epoch, words.values))

    def add_named(
        self, aggregator: Aggregator, epoch: int, parts: Sequence[MessageMultiset]
    ) -> Steps[int]:
        """Add the distinct contents of several partial windows, and return the number of reports.

        A shuffler drops its own duplicates, but does not know what other shufflers received.
        """
        reports = 0
        for block in distinct_of_all(parts):
            for chunk in split_messages(Messages(block.values[:, NAME_WORDS:])):
                reports += self._add_opened(aggregator, epoch, chunk.values)
            yield Yield()
        return reports

    def _add_opened(self, aggregator: Aggregator, epoch: int, rows: MessageArray) -> int:
        local_epoch = self._job.epochs.local(epoch)
        reports = reports_in(rows, self._job.message_format, aggregator, local_epoch)
        aggregator.add(local_epoch, reports, None)
        return len(reports)


def check_keys(job: DeployedJob, party: str, keys: KeyRing) -> None:
    assert job.sealed is not None
    public_keys = job.sealed.parties[party]
    available = [keys.find(public_key) is not None for public_key in public_keys]
    if not available[-1] or available != sorted(available):
        missing = [
            key_id(key).hex() for key, here in zip(public_keys, available, strict=True) if not here
        ]
        raise WrongKeyError(
            f"job {job.name}: no private key in {keys.source} for {party} with public key "
            f"{', '.join(missing)}. Copy the key that 'dpstream keygen' created, or specify its "
            "folder with '--keys'"
        )


def reports_in(
    rows: MessageArray, form: MessageFormat, aggregator: Aggregator, epoch: int
) -> MessageArray:
    """Return the valid reports among the decrypted contents; `epoch` counts within its horizon."""
    reports = unpack_reports(rows, form)
    if form.distinct is not None:
        reports = reports[reports[:, 0] < form.distinct]
    return _known(reports, aggregator, epoch)


def _known(reports: MessageArray, aggregator: Aggregator, epoch: int) -> MessageArray:
    try:
        aggregator.check_messages(epoch, reports)
    except ValueError:
        if len(reports) <= 1:
            return reports[:0]
        half = len(reports) // 2
        parts = (reports[:half], reports[half:])
        return np.concatenate([_known(part, aggregator, epoch) for part in parts])
    return reports
