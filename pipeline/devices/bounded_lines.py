"""Read lines without buffering a record that is too long.

Malformed files are read or rejected with only a few megabytes of memory. Examples are an endless
line, a quote that is never closed, or a few kilobytes of gzip that unpack to gigabytes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import partial
from typing import Self, TextIO

RECORD_CAP = 1 << 20
"""Maximum number of characters in one record, including line ends."""
LINE_CAP = 1 << 30
"""Maximum number of characters in a line; an input with a longer line is rejected."""


class EndlessLineError(ValueError):
    """A line is longer than `LINE_CAP`."""


class BoundedLines:
    """Iterator over lines that rejects a line if it makes a record too long.

    Attributes:
        taken: Number of whole lines read.
        record: Characters in the current record so far; readers reset it to 0 after each record.
        batch: Characters since a reader last reset this attribute to 0.
    """

    def __init__(self, lines: Iterable[str] | TextIO) -> None:
        readline = getattr(lines, "readline", None)
        pieces = iter(lines) if readline is None else iter(partial(readline, RECORD_CAP + 1), "")
        self._next = pieces.__next__
        self.taken = self.record = self.batch = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        """Return the next line.

        Raises `csv.Error` if the line makes the record too long; the line has then been skipped.
        Raises `EndlessLineError` if the line is longer than `LINE_CAP`.
        """
        line = self._next()
        self.taken += 1
        length = len(line)
        self.record += length
        self.batch += length
        if self.record > RECORD_CAP:
            self._pass_over(line)
            raise csv.Error(f"a record has more than {RECORD_CAP:,} characters")
        return line

    def _pass_over(self, piece: str) -> None:
        length = len(piece)
        while len(piece) > RECORD_CAP and not piece.endswith("\n"):
            length += len(piece)
            if length > LINE_CAP:
                raise EndlessLineError(
                    f"a line has more than {LINE_CAP:,} characters; expected one row per line"
                )
            try:
                piece = self._next()
            except StopIteration:
                return
