"""Observations of a record, except for the messages of reports."""

from __future__ import annotations

from dataclasses import replace

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.topics.batches import decode_batch
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.sealed_batches import decode_sealed_batch


def seen_record(job: DeployedJob, record: LogRecord, *, timed: bool) -> tuple[object, ...]:
    """Return the observations of a record, without messages, and with its time if `timed`."""
    about = (record.offset, record.timestamp if timed else None, record.key, record.headers)
    try:
        kind = kind_of(record.value)
    except CodecError:
        return (*about, record.value)
    if kind is RecordType.SEALED_BATCH:
        sealed = decode_sealed_batch(record.value)
        return (
            *about,
            len(record.value),
            replace(sealed, ciphertext=bytes(len(sealed.ciphertext))),
        )
    if kind is not RecordType.BATCH:
        return (*about, record.value)
    batch = decode_batch(record.value)
    # The number of messages is visible where their space is fixed.
    messages = batch.words.messages if job.protocol_entry.shuffling is None else None
    return (
        *about,
        len(record.value),
        (batch.fingerprint, batch.deployment, batch.batch, batch.enrollment, batch.epoch),
        (batch.size, messages, batch.words.width, batch.words.values.dtype),
    )


def seen_chunk(value: bytes) -> tuple[object, ...]:
    """Return a record; the messages of a released window and their size are omitted."""
    try:
        chunk = decode_chunk(value)
    except CodecError:
        return (value,)
    words = chunk.words
    payload = words.values.nbytes + (0 if words.counts is None else words.counts.nbytes)
    return (
        len(value) - payload,
        (chunk.fingerprint, chunk.deployment, chunk.epoch, chunk.manifest_offset, chunk.attempt),
        (chunk.index, chunk.total, chunk.instance, words.width, words.values.dtype),
    )
