"""Reports in boxes, one each, that are words of another form to everybody on their way.

A report is packed (`pack_reports`): one byte that says whether it is one, its words, and zeros up
to a multiple of eight bytes. It is sealed to the party that adds it up, and then, from the last to
the second, to each further shuffle stage: a stage opens one layer, and what it passes on looks like
nothing that came in. All boxes of a job have one size, and rows of 8-byte words hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from dpstream.topics.sealing import (
    BOX_BYTES,
    Lock,
    seal_all,
    unseal_all,
)
from dpstream.topics.word_forms import WordForm
from dpstream.topics.words import WordArray

_WORD: Final = np.dtype("<u8")


_REPORT, _CHAFF = 1, 0


NAME_WORDS: Final = 2
"""Words of a row that name its box."""


def sealed_form(form: WordForm, layers: int) -> WordForm:
    """The form of reports in so many boxes, one in another; 0: packed, and not sealed.

    >>> sealed_form(WordForm(np.dtype("<u4")), 1).report_bytes
    56
    """
    packed = -(-(1 + form.report_bytes) // _WORD.itemsize)
    return WordForm(_WORD, packed + layers * BOX_BYTES // _WORD.itemsize)


def pack_reports(reports: WordArray, chaff: int, form: WordForm) -> WordArray:
    """Rows to be sealed: of reports, (n, width), and after them of so many that are none."""
    rows = np.zeros((len(reports) + chaff, sealed_form(form, 0).report_bytes), np.uint8)
    rows[: len(reports), 0] = _REPORT
    words = np.ascontiguousarray(reports, form.dtype).view(np.uint8)
    size = (len(reports), form.report_bytes)
    rows[: len(reports), 1 : 1 + form.report_bytes] = words.reshape(size)
    return rows.view(_WORD)


def unpack_reports(rows: WordArray, form: WordForm) -> WordArray:
    """The reports among opened rows, (n, width); chaff, and what nobody packs, is left out."""
    size = (len(rows), _WORD.itemsize * rows.shape[1])
    bytes_of = np.ascontiguousarray(rows).view(np.uint8).reshape(size)
    end = 1 + form.report_bytes
    packed = (bytes_of[:, 0] == _REPORT) & ~bytes_of[:, end:].any(axis=1)
    reports = np.ascontiguousarray(bytes_of[packed, 1:end])
    return reports.view(form.dtype).reshape(len(reports), form.width)


def seal_rows(rows: WordArray, locks: Sequence[Lock]) -> WordArray:
    """Every row in boxes, the one for the first lock being the innermost.

    Rows come back in the order of their bytes, which ephemeral keys make a random one.
    """
    boxes = _bytes_of(rows)
    for lock in locks:
        boxes = seal_all(boxes, lock)
    return _rows_of(sorted(boxes), rows.shape[1] + len(locks) * BOX_BYTES // _WORD.itemsize)


def open_rows(rows: WordArray, private_key: X25519PrivateKey, context: bytes) -> WordArray:
    """What the outermost boxes of rows hold; those that do not open are left out."""
    return open_named_rows(rows, private_key, context)[:, NAME_WORDS:]


def open_named_rows(rows: WordArray, private_key: X25519PrivateKey, context: bytes) -> WordArray:
    """The same, each after the first `NAME_WORDS` words of its box.

    These are half of its ephemeral key: nobody can make another box that opens, of the same name,
    but who made the first one. So who meets a name twice has met a copy.
    """
    contents = unseal_all(_bytes_of(rows), private_key, context)
    there = np.array([content is not None for content in contents], np.bool_)
    opened = [content for content in contents if content is not None]
    inner = _rows_of(opened, rows.shape[1] - BOX_BYTES // _WORD.itemsize)
    return np.hstack([rows[there, :NAME_WORDS], inner])


def strictly_increases(rows: WordArray) -> bool:
    """Whether every row is larger than the one before, as a sort without repetition leaves them.

    >>> rows = np.array([[1, 5], [1, 6], [2, 0]], np.dtype("<u8"))
    >>> strictly_increases(rows), strictly_increases(rows[[0, 0]])
    (True, False)
    """
    earlier, later = rows[:-1], rows[1:]
    decisive = (earlier != later).argmax(axis=1)[:, None]
    below = np.take_along_axis(earlier, decisive, 1) < np.take_along_axis(later, decisive, 1)
    return bool(below.all())


def _bytes_of(rows: WordArray) -> list[bytes]:
    return [row.tobytes() for row in rows]


def _rows_of(boxes: Sequence[bytes], width: int) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(boxes), _WORD).reshape(-1, width)
