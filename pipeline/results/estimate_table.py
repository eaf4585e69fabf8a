"""Published estimates as a table of pyarrow, with a real type for every column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dpstream.pipeline.jobs.wording import KEYS as WORDS
from dpstream.pipeline.results.published_rows import Cell, PublishedRows
from dpstream.pipeline.stages.estimate_records import EstimateRecord

if TYPE_CHECKING:
    import pyarrow

_ROWS_AT_ONCE = 1 << 16


def table_schema(rows: PublishedRows) -> pyarrow.Schema:
    """Names and types of the columns; job, deployment and guarantee stand in the metadata.

    So do the words of the job file, as JSON, where it has any. Moments are timestamps with the zone
    of the job, names and fates are dictionary-encoded.
    """
    import pyarrow

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    whole, number = pyarrow.int64(), pyarrow.float64()
    begin = pyarrow.timestamp("us", rows.spans.zone)
    types: dict[str, Any] = {
        **dict.fromkeys(("epoch", "reports", "population", "contributors"), whole),
        "assumes_changes": whole,
        **dict.fromkeys(("begins", "ends"), begin),
        **dict.fromkeys((rows.name_column or "", "label", "fate", "privacy_unit"), text),
        **dict.fromkeys(("title", "unit"), text),
        "flags": pyarrow.list_(pyarrow.string()),
        "closed_at": pyarrow.timestamp("ms", "UTC"),
    }
    return pyarrow.schema(
        [(name, types.get(name, number)) for name in rows.columns],
        metadata={
            "job": rows.job.name,
            "deployment": rows.job.deployment.hex(),
            "guarantee": json.dumps(rows.job.guarantee.to_json()),
            "words": json.dumps(rows.job.said(*WORDS), ensure_ascii=False),
        },
    )


def record_batches(
    rows: PublishedRows, records: Iterable[EstimateRecord]
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of all epochs, some at a time."""
    return batches_of(table_schema(rows), map(rows.rows, records))


def batches_of(
    schema: pyarrow.Schema, rows_of_epochs: Iterable[Iterable[tuple[Cell, ...]]]
) -> Iterator[pyarrow.RecordBatch]:
    """Rows in the order of the columns of a schema, some at a time."""
    held: list[tuple[Cell, ...]] = []
    for rows in rows_of_epochs:
        held += rows
        if len(held) >= _ROWS_AT_ONCE:
            yield _batch(schema, held)
            held = []
    if held:
        yield _batch(schema, held)


def table_of(rows: PublishedRows, records: Iterable[EstimateRecord]) -> pyarrow.Table:
    """All rows; columns of names have one dictionary each."""
    import pyarrow

    batches = record_batches(rows, records)
    return pyarrow.Table.from_batches(batches, table_schema(rows)).unify_dictionaries()


def _batch(schema: pyarrow.Schema, rows: list[tuple[Cell, ...]]) -> pyarrow.RecordBatch:
    import pyarrow

    columns = [
        pyarrow.array(column, type=field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)
