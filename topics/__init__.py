"""Wire formats: topics, their settings and their records.

A job named ``students`` owns these topics; one more, ``dpstream.jobs``, lists the deployed jobs:

==========================  ==================================================  ==================
topic                       record                                              module
==========================  ==================================================  ==================
``students.producers``      `Registration`, `Deregistration`, `Drain`           `records`
``students.reports``        `Batch`, `Punctuation`: reports of one producer     `batches`
``students.manifests``      `Manifest`: the contents of an epoch's window       `manifests`
``students.shuffled``       `Chunk`: reports of a window, without senders       `chunks`
``students.partials``       `PartialPart`: aggregator state of one window       `partials`
``students.estimates``      the published estimates                             `pipeline`
``students.results``        estimates as JSON documents, by epoch, compacted    `pipeline`
``students.status``         heartbeats of the workers                           `pipeline`
``students.dead-letters``   `DeadLetter`, `Discard`: rejected records           `records`
==========================  ==================================================  ==================

Options add topics: ``devices`` (enrollments), with reports in `loose_batches`, if devices report
directly; ``reports-2`` ... for parallel shufflers; ``hop-1`` ... between chained shufflers;
``partials-a`` and ``-b`` for the two aggregators.

Batches, punctuation, manifests, chunks, partials and the records of collectors are binary: a fixed
little-endian header with a common beginning and end (`dpstream.topics.frames`), then a payload.
Batches and chunks carry reports as opaque integers (`dpstream.topics.messages`). A dead letter is
the rejected record, with Kafka headers that state the reason. The other records are JSON.
`dpstream.topics.names` has the topics' names and settings.

Fingerprints, deployments and other identities are 16 bytes. Except for dead letters, every record
of this package is versioned. Records are validated on creation and reading. A record that violates
its format raises `CodecError`, which describes the violation; `envelopes`, sent over HTTP, raise
`EnvelopeError`. Readers never guess, and never allocate more than a small multiple of the largest
record allowed. A batch, for instance:

>>> import numpy as np
>>> from dpstream.topics.batches import Batch, decode_batch, encode_batch
>>> from dpstream.topics.messages import Messages
>>> reports = np.array([[3], [1], [3]], np.uint8)
>>> batch = Batch(bytes(16), bytes(16), bytes(16), bytes(16), epoch=1, words=Messages(reports))
>>> record = encode_batch(batch)
>>> record[:4], len(record)
(b'dpst', 107)
>>> decode_batch(record).words.values.tolist()
[[3], [1], [3]]

If a job waits for many producers, a manifest can contain only the differences from an earlier one
(`dpstream.topics.short_manifests`).

The package is independent of protocols and imports no other package of dpstream.
"""
