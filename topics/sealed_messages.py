"""Encrypt each report separately; ciphertexts are sent as reports of another format.

A report is packed (`pack_reports`): one byte that marks it as a report, its integers, and zeros up
to a multiple of eight bytes. It is encrypted for the aggregator, and then for each further
shuffler, from the last to the second. Each shuffler removes one layer of encryption, and no output
of a shuffler resembles an input. All ciphertexts of a job have one size: rows of 8-byte integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import MessageArray
from dpstream.topics.sealing import (
    CIPHERTEXT_BYTES,
    Lock,
    seal_all,
    unseal_all,
)

_WORD: Final = np.dtype("<u8")


_REPORT, _COVER_TRAFFIC = 1, 0


NAME_WORDS: Final = 2


def sealed_format(form: MessageFormat, layers: int) -> MessageFormat:
    """Return the format of reports in `layers` layers of encryption; 0 means packed, not sealed.

    >>> sealed_format(MessageFormat(np.dtype("<u4")), 1).report_bytes
    56
    """
    packed = -(-(1 + form.report_bytes) // _WORD.itemsize)
    return MessageFormat(_WORD, packed + layers * CIPHERTEXT_BYTES // _WORD.itemsize)


def pack_reports(reports: MessageArray, cover_traffic: int, form: MessageFormat) -> MessageArray:
    """Return rows to encrypt: reports, shape (n, width), then `cover_traffic` cover messages."""
    rows = np.zeros((len(reports) + cover_traffic, sealed_format(form, 0).report_bytes), np.uint8)
    rows[: len(reports), 0] = _REPORT
    words = np.ascontiguousarray(reports, form.dtype).view(np.uint8)
    size = (len(reports), form.report_bytes)
    rows[: len(reports), 1 : 1 + form.report_bytes] = words.reshape(size)
    return rows.view(_WORD)


def unpack_reports(rows: MessageArray, form: MessageFormat) -> MessageArray:
    """Return the reports of decrypted rows, (n, width), without cover traffic or invalid rows."""
    size = (len(rows), _WORD.itemsize * rows.shape[1])
    bytes_of = np.ascontiguousarray(rows).view(np.uint8).reshape(size)
    end = 1 + form.report_bytes
    packed = (bytes_of[:, 0] == _REPORT) & ~bytes_of[:, end:].any(axis=1)
    reports = np.ascontiguousarray(bytes_of[packed, 1:end])
    return reports.view(form.dtype).reshape(len(reports), form.width)


def seal_rows(rows: MessageArray, locks: Sequence[Lock]) -> MessageArray:
    """Encrypt every row for each lock in turn, so that the first lock's layer is the innermost.

    Rows are sorted by their bytes, which is a random order because of the ephemeral keys.
    """
    ciphertexts = _bytes_of(rows)
    for lock in locks:
        ciphertexts = seal_all(ciphertexts, lock)
    return _rows_of(
        sorted(ciphertexts), rows.shape[1] + len(locks) * CIPHERTEXT_BYTES // _WORD.itemsize
    )


def open_rows(rows: MessageArray, private_key: X25519PrivateKey, context: bytes) -> MessageArray:
    """Remove the outer layer of encryption; rows that fail to decrypt are left out."""
    return open_named_rows(rows, private_key, context)[:, NAME_WORDS:]


def open_named_rows(
    rows: MessageArray, private_key: X25519PrivateKey, context: bytes
) -> MessageArray:
    """Return the rows of `open_rows`, each preceded by the name of its ciphertext.

    The `NAME_WORDS` integers of a name are half of the ephemeral key: without the private key, only
    the creator of a ciphertext can create another one with the same name that decrypts. A name that
    occurs twice is therefore a copy, or a repetition by the same creator.
    """
    contents = unseal_all(_bytes_of(rows), private_key, context)
    there = np.array([content is not None for content in contents], np.bool_)
    opened = [content for content in contents if content is not None]
    inner = _rows_of(opened, rows.shape[1] - CIPHERTEXT_BYTES // _WORD.itemsize)
    return np.hstack([rows[there, :NAME_WORDS], inner])


def strictly_increases(rows: MessageArray) -> bool:
    """Return whether every row is larger than the previous one, as sorted unique rows are.

    >>> rows = np.array([[1, 5], [1, 6], [2, 0]], np.dtype("<u8"))
    >>> strictly_increases(rows), strictly_increases(rows[[0, 0]])
    (True, False)
    """
    earlier, later = rows[:-1], rows[1:]
    decisive = (earlier != later).argmax(axis=1)[:, None]
    below = np.take_along_axis(earlier, decisive, 1) < np.take_along_axis(later, decisive, 1)
    return bool(below.all())


def _bytes_of(rows: MessageArray) -> list[bytes]:
    return [row.tobytes() for row in rows]


def _rows_of(ciphertexts: Sequence[bytes], width: int) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(ciphertexts), _WORD).reshape(-1, width)
