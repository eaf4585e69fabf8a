"""What is on the wire: topics and their settings, and the records in them.

A job named ``students`` owns these topics; one more, ``dpstream.jobs``, lists the deployed jobs:

==========================  ==================================================  ==================
topic                       record                                              module
==========================  ==================================================  ==================
``students.producers``      `Registration`, `Farewell`, `Drain`: who, and when  `records`
``students.reports``        `Batch`, `Punctuation`: reports of one producer     `batches`
``students.manifests``      `Manifest`: what the window of an epoch holds       `manifests`
``students.shuffled``       `Chunk`: the reports of a window, nobody's          `chunks`
``students.partials``       `PartialPart`: what an aggregator made of a window  `partials`
``students.estimates``      the published estimates                             `pipeline`
``students.results``        the same as JSON documents, by epoch, compacted     `pipeline`
``students.status``         heartbeats of the workers                           `pipeline`
``students.dead-letters``   `DeadLetter`, `Dismissal`: what was refused, why    `records`
==========================  ==================================================  ==================

Options have more: ``devices`` (who has enrolled) and reports in `loose_batches` where devices
report for themselves, ``model`` (`models`) of a job that learns, ``reports-2`` and so on for
instances side by side, ``hop-1`` and so on between stages in series, ``partials-a`` and ``-b`` of
two parties.

Batches, punctuation, manifests, chunks and partials are binary: a fixed little-endian header whose
beginning and end they share (`dpstream.topics.frames`), then a payload. Batches and chunks carry
reports as opaque words (`dpstream.topics.words`). The other records are JSON.
`dpstream.topics.names` has names and settings of the topics.

Everything is versioned and checked as it is read. What is not exactly as described raises
`CodecError`, which says what is wrong; nothing is guessed, and nothing is allocated that exceeds a
small multiple of the largest record allowed. A batch, for instance:

>>> import numpy as np
>>> from dpstream.topics.batches import Batch, decode_batch, encode_batch
>>> from dpstream.topics.words import Words
>>> reports = np.array([[3], [1], [3]], np.uint8)
>>> batch = Batch(bytes(16), bytes(16), bytes(16), bytes(16), epoch=1, words=Words(reports))
>>> record = encode_batch(batch)
>>> record[:4], len(record)
(b'dpst', 107)
>>> decode_batch(record).words.values.tolist()
[[3], [1], [3]]

Where a job waits for many producers, a manifest may say what differs from an earlier one
(`dpstream.topics.short_manifests`).

The package knows no protocol, and imports none of the other packages.
"""
