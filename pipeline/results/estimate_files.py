"""Published estimates as files: CSV, JSON lines and Parquet, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO

from dpstream.pipeline.results.estimate_csv import csv_lines
from dpstream.pipeline.results.estimate_table import record_batches, table_schema
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.stages.estimate_records import EstimateRecord


def write_csv(file: BinaryIO, rows: PublishedRows, records: Iterable[EstimateRecord]) -> None:
    """Write what `csv_lines` says, in UTF-8."""
    for line in csv_lines(rows, records):
        file.write(f"{line}\n".encode())


def write_json_lines(
    file: BinaryIO, rows: PublishedRows, records: Iterable[EstimateRecord]
) -> None:
    """Write an object a row, with the names of the columns as keys; flags are a list."""
    for line in json_rows(rows, records):
        file.write(f"{line}\n".encode())


def json_rows(rows: PublishedRows, records: Iterable[EstimateRecord]) -> Iterator[str]:
    """An object for every row; moments are ISO 8601 with their zone."""
    for record in records:
        for row in rows.rows(record):
            cells = dict(zip(rows.columns, rows.texts(row), strict=True))
            yield json.dumps(cells, ensure_ascii=False, allow_nan=False)


def write_parquet(file: BinaryIO, rows: PublishedRows, records: Iterable[EstimateRecord]) -> None:
    """Write the rows with the types of `table_schema`, compressed by zstd."""
    from pyarrow import parquet

    with parquet.ParquetWriter(file, table_schema(rows), compression="zstd") as writer:
        for batch in record_batches(rows, records):
            writer.write_batch(batch)


FileWriter = Callable[[BinaryIO, PublishedRows, Iterable[EstimateRecord]], None]

WRITERS: Mapping[str, FileWriter] = {
    "csv": write_csv,
    "jsonl": write_json_lines,
    "parquet": write_parquet,
}
"""The formats, by the names that people give."""
