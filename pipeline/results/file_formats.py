"""Published rows as files or as a pyarrow table, with a type for every column."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dpstream.pipeline.jobs.wording import KEYS as WORDS
from dpstream.pipeline.results.published_rows import Cell, PublishedRows, csv_row
from dpstream.pipeline.stages.estimate_records import EstimateRecord

if TYPE_CHECKING:
    import pyarrow

EpochRows: TypeAlias = "Iterable[Iterable[tuple[Cell, ...]]]"

_ROWS_AT_ONCE = 1 << 16


def csv_chunks(rows: PublishedRows, records: Iterable[EstimateRecord]) -> Iterator[bytes]:
    for line in rows.csv_lines(records):
        yield f"{line}\n".encode()


def json_chunks(rows: PublishedRows, records: Iterable[EstimateRecord]) -> Iterator[bytes]:
    """Yield one JSON object per row, keyed by column; flags are a list."""
    for record in records:
        for row in rows.rows(record):
            cells = dict(zip(rows.columns, rows.texts(row), strict=True))
            yield f"{json.dumps(cells, ensure_ascii=False, allow_nan=False)}\n".encode()


def parquet_chunks(rows: PublishedRows, records: Iterable[EstimateRecord]) -> Iterator[bytes]:
    return parquet_of(rows, map(rows.rows, records))


CHUNKS: Mapping[str, Callable[[PublishedRows, Iterable[EstimateRecord]], Iterator[bytes]]] = {
    "csv": csv_chunks,
    "jsonl": json_chunks,
    "parquet": parquet_chunks,
}
"""Functions that yield a file's content in chunks, by the name of the format."""


def plain_chunks(format: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield a file of rows that share their keys; lists are joined by spaces in CSV."""
    if format == "parquet":
        import pyarrow
        from pyarrow import parquet

        sink = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), sink, compression="zstd")
        yield sink.getvalue()
        return
    if format == "csv":
        yield f"{csv_row(*(rows[0] if rows else ()))}\n".encode()
    for row in rows:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        if format == "csv":
            cells = (" ".join(cell) if isinstance(cell, list) else cell for cell in row.values())
            text = csv_row(*cells)
        yield f"{text}\n".encode()


def parquet_of(rows: PublishedRows, epochs: EpochRows) -> Iterator[bytes]:
    from pyarrow import parquet

    schema, sink = table_schema(rows), _ChunkSink()
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in _batches(schema, epochs):
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


class _ChunkSink(io.RawIOBase):
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(memoryview(data).cast("B"))
        self._buffer += data
        self._position += size
        return size

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        data, self._buffer = bytes(self._buffer), bytearray()
        return data


def table_schema(rows: PublishedRows) -> pyarrow.Schema:
    """Return column names and types; the metadata has job, deployment, guarantee and wording.

    Times are timestamps in the job's zone; names and statuses are dictionary-encoded.
    """
    import pyarrow

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    whole, number = pyarrow.int64(), pyarrow.float64()
    begin = pyarrow.timestamp("us", rows.spans.zone)
    types: dict[str, Any] = {
        **dict.fromkeys(("epoch", "reports", "population", "contributors"), whole),
        **dict.fromkeys(("assumes_changes", "first_epoch", "averaged_epochs"), whole),
        **dict.fromkeys(("start", "end"), begin),
        **dict.fromkeys((*rows.query.name_columns, "label", "window_status", "privacy_unit"), text),
        **dict.fromkeys(("title", "unit", "statistic", "refused"), text),
        "flags": pyarrow.list_(pyarrow.string()),
        "closed_at": pyarrow.timestamp("ms", "UTC"),
    }
    return pyarrow.schema(
        [(name, types.get(name, number)) for name in rows.columns],
        metadata={
            "job": rows.job.name,
            "deployment": rows.job.deployment.hex(),
            "guarantee": json.dumps(rows.job.guarantee.to_json()),
            "wording": json.dumps(rows.job.given_texts(*WORDS), ensure_ascii=False),
        },
    )


def table_of(rows: PublishedRows, records: Iterable[EstimateRecord]) -> pyarrow.Table:
    import pyarrow

    schema = table_schema(rows)
    batches = _batches(schema, map(rows.rows, records))
    return pyarrow.Table.from_batches(batches, schema).unify_dictionaries()


def _batches(schema: pyarrow.Schema, epochs: EpochRows) -> Iterator[pyarrow.RecordBatch]:
    pending: list[tuple[Cell, ...]] = []
    for rows in epochs:
        pending += rows
        if len(pending) >= _ROWS_AT_ONCE:
            yield _batch(schema, pending)
            pending = []
    if pending:
        yield _batch(schema, pending)


def _batch(schema: pyarrow.Schema, rows: list[tuple[Cell, ...]]) -> pyarrow.RecordBatch:
    import pyarrow

    columns = [
        pyarrow.array(column, type=field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)
