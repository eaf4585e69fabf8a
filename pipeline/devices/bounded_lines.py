"""Lines of which no record is held whole that is too long to be one.

A file of one endless line, a quote that is never closed, or a few kilobytes of gzip that unpack to
gigabytes are read through, or refused, within a few megabytes of memory.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import partial
from typing import Self, TextIO

RECORD_CAP = 1 << 20
"""Characters of one record, line ends included."""
LINE_CAP = 1 << 30
"""Characters after which a line that has not ended is no line of a log."""


class EndlessLineError(ValueError):
    """A line does not end; the message says so."""


class BoundedLines:
    """Hands on lines, and refuses those that would make a record too long.

    Args:
        lines: of a file, which is read no further than is needed, or in memory.

    Attributes:
        taken: how many lines, whole ones.
        record: characters of the record that is being read; who has read one sets it to 0.
        batch: characters since it was last set to 0.
    """

    def __init__(self, lines: Iterable[str] | TextIO) -> None:
        readline = getattr(lines, "readline", None)
        pieces = iter(lines) if readline is None else iter(partial(readline, RECORD_CAP + 1), "")
        self._next = pieces.__next__
        self.taken = self.record = self.batch = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        """The next line.

        Raises:
            csv.Error: the record is too long; the line that makes it so has been passed over.
            EndlessLineError: and does not end.
        """
        line = self._next()
        self.taken += 1
        length = len(line)
        self.record += length
        self.batch += length
        if self.record > RECORD_CAP:
            self._pass_over(line)
            raise csv.Error(f"more than {RECORD_CAP:,} characters")
        return line

    def _pass_over(self, piece: str) -> None:
        """Read on to the end of the line that a piece belongs to."""
        length = len(piece)
        while len(piece) > RECORD_CAP and not piece.endswith("\n"):
            length += len(piece)
            if length > LINE_CAP:
                raise EndlessLineError(
                    f"a line of more than {LINE_CAP:,} characters: this is no log"
                )
            try:
                piece = self._next()
            except StopIteration:
                return
