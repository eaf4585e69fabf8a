"""Published estimates as CSV: what ``dpstream estimates --format csv`` and the live page give."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.stages.estimate_records import EstimateRecord


def csv_lines(rows: PublishedRows, records: Iterable[EstimateRecord]) -> Iterator[str]:
    """A header, and the rows of every epoch; nothing stands where there is no number.

    Moments are ISO 8601 with their zone, and flags are separated by spaces.
    """
    yield ",".join(rows.columns)
    for record in records:
        for row in rows.rows(record):
            cells = rows.texts(row)
            yield csv_row(*(" ".join(cell) if isinstance(cell, tuple) else cell for cell in cells))


def csv_row(*cells: object) -> str:
    """A row; nothing stands for None."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
