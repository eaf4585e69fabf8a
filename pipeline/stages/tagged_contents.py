"""Tagged contents in a device job's open window, in bounded memory; one per tag counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.stages.environment import SPILL_FILE_BYTES, OpenSpillFile, temporary_file
from dpstream.topics.loose_batches import TAG_BYTES

_MEMORY_LIMIT: Final = 1 << 22
_DIVISIONS: Final = 64
_DIVISION_SHIFT: Final = np.uint64(64 - 6)
_TAG_TYPE = np.dtype("<u8")


class TaggedContents:
    """Rows with a tag and a content, in order of arrival; the first row with each tag counts.

    Tags are digests, so divisions by their first bits have similar sizes.

    >>> contents = TaggedContents(content_bytes=1)
    >>> contents.add(np.array([7, 9, 7], np.uint64), np.array([[1], [2], [3]], np.uint8))
    >>> sorted(np.concatenate(list(contents.first_of_each())).tolist()), len(contents)
    ([[1], [2]], 3)

    Attributes:
        contradicting: Number of rows that differ from the first row with their tag, available after
            `first_of_each` is exhausted.
    """

    def __init__(self, content_bytes: int, open_spill_file: OpenSpillFile = temporary_file) -> None:
        self._row_bytes = TAG_BYTES + content_bytes
        self.contradicting = 0
        self._open_spill_file = open_spill_file
        self._file: BinaryIO | None = None
        self._waiting: list[NDArray[np.uint8]] = []
        self._drop()

    def __len__(self) -> int:
        return self._count

    @property
    def buffered_bytes(self) -> int:
        return self._waiting_bytes + (0 if self._file is None else SPILL_FILE_BYTES)

    def add(self, tags: NDArray[np.uint64], contents: NDArray[np.uint8]) -> None:
        """Add rows: `tags`, shape (n,), and `contents`, shape (n, content bytes)."""
        rows = np.empty((len(tags), self._row_bytes), np.uint8)
        rows[:, :TAG_BYTES] = tags.astype(_TAG_TYPE)[:, None].view(np.uint8)
        rows[:, TAG_BYTES:] = contents
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._count += len(rows)
        if self._waiting_bytes >= _MEMORY_LIMIT:
            self.spill()

    def spill(self) -> None:
        if not self._waiting:
            return
        if self._file is None:
            self._file = self._open_spill_file()
        rows = np.concatenate(self._waiting)
        divisions = (_tags(rows) >> _DIVISION_SHIFT).astype(np.uint8)
        rows = rows[np.argsort(divisions, kind="stable")]
        lengths = np.bincount(divisions, minlength=_DIVISIONS) * self._row_bytes
        place = self._file.seek(0, 2)
        self._file.write(rows.tobytes())
        for division, length in enumerate(lengths.tolist()):
            if length:
                self._segments[division].append((place, length))
                place += length
        self._waiting.clear()
        self._waiting_bytes = 0

    def first_of_each(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the first content for every tag, by ascending tag, in blocks (n, content bytes)."""
        self.contradicting = 0
        if self._file is None:
            if self._waiting:
                yield self._first_of_each(np.concatenate(self._waiting))
            return
        self.spill()
        for division in sorted(self._segments):
            yield self._first_of_each(self._read(division))

    def _first_of_each(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        # Among equal tags, NumPy returns the index of the first.
        _, first, of = np.unique(_tags(rows), return_index=True, return_inverse=True)
        if len(first) < len(rows):
            self.contradicting += int((rows != rows[first[of]]).any(axis=1).sum())
        return rows[first, TAG_BYTES:]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._drop()

    def _drop(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._count = 0
        self._segments: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def _read(self, division: int) -> NDArray[np.uint8]:
        assert self._file is not None
        chunks = []
        for place, length in self._segments[division]:
            self._file.seek(place)
            chunks.append(self._file.read(length))
        return np.frombuffer(b"".join(chunks), np.uint8).reshape(-1, self._row_bytes)


def _tags(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(rows[:, :TAG_BYTES]).view(_TAG_TYPE)[:, 0]
