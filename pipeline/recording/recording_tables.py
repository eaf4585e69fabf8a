"""Convert rows of a recording to Parquet tables and back.

* Every table has a column ``epoch``, which never decreases.
* Reports are opaque: integers if their width is 1, otherwise all bytes of a row (little-endian).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpstream.pipeline.recording.recording_index import RecordKind
from dpstream.pipeline.stages.estimate_records import VERSION, EstimateRecord
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.messages import MessageArray, Messages

Numbers: TypeAlias = tuple[float | None, float | None, float | None, float | None]

_OPTIONS = {"compression": "zstd", "compression_level": 1}


@dataclass(frozen=True, slots=True)
class RecordedPartial:
    epoch: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RecordedEstimate:
    """Published estimate for an epoch; `estimate` and `guarantee` are JSON texts.

    `numbers` are value, low, high and standard error of a single estimate; otherwise all None.
    Other fields are as in `EstimateRecord`.
    """

    epoch: int
    window_status: WindowStatus
    closed_at: int
    contributors: int
    population: int
    estimate: str
    guarantee: str
    numbers: Numbers = (None, None, None, None)
    reason: str | None = None
    assumes_changes: int | None = None


@dataclass(frozen=True, slots=True)
class MessageColumn:
    dtype: np.dtype[Any]
    width: int

    @property
    def type(self) -> Any:
        if self.width == 1:
            return pa.from_numpy_dtype(self.dtype)
        return pa.binary(self.dtype.itemsize * self.width)

    def array(self, values: MessageArray) -> Any:
        plain = np.ascontiguousarray(values)
        return pa.Array.from_buffers(self.type, len(plain), [None, pa.py_buffer(plain)])

    def values(self, array: Any) -> MessageArray:
        if self.width == 1:
            single: MessageArray = array.to_numpy(zero_copy_only=True)
            return single[:, None]
        start = array.offset * self.type.byte_width
        found: MessageArray = np.frombuffer(array.buffers()[1], np.uint8)[start:].view(self.dtype)[
            : len(array) * self.width
        ]
        return found.reshape(len(array), self.width)


def schema_of(kind: RecordKind, words: MessageColumn) -> Any:
    """Return the Arrow schema for a kind of file; only columns of estimates can contain nulls."""
    unsigned, text = pa.uint64(), pa.string()
    columns: dict[RecordKind, dict[str, Any]] = {
        RecordKind.MANIFESTS: {
            "window_status": text,
            "first_epoch": unsigned,
            "contributors": unsigned,
            "population": unsigned,
            "timestamp": unsigned,
            "producers": pa.list_(pa.bool_()),
            "populations": pa.list_(pa.uint32()),
        },
        RecordKind.WINDOWS: {"word": words.type, "count": unsigned},
        RecordKind.PARTIALS: {"payload": pa.binary()},
        RecordKind.ESTIMATES: {
            "window_status": text,
            "closed_at": unsigned,
            "contributors": unsigned,
            "population": unsigned,
            "estimate": text,
            "guarantee": text,
            **dict.fromkeys(("value", "ci95_low", "ci95_high", "standard_error"), pa.float64()),
            "reason": text,
            "assumes_changes": unsigned,
        },
    }
    return pa.schema([("epoch", unsigned), *columns[kind].items()])


def writer_options(kind: RecordKind, words: MessageColumn) -> dict[str, Any]:
    if kind is not RecordKind.WINDOWS:
        return dict(_OPTIONS)
    # Differences between sorted integers are small.
    delta = {"word": "DELTA_BINARY_PACKED"} if words.width == 1 and words.dtype.itemsize > 2 else {}
    dictionaries = ["epoch", "count", *([] if delta else ["word"] if words.width == 1 else [])]
    return {**_OPTIONS, "use_dictionary": dictionaries, "column_encoding": delta or None}


def distinct(words: Messages) -> tuple[MessageArray, NDArray[np.uint64]]:
    if words.counts is not None:
        return words.values, words.counts.astype(np.uint64)
    values = words.values
    first = np.ones(len(values), np.bool_)
    first[1:] = (values[1:] != values[:-1]).any(axis=1)
    starts = np.flatnonzero(first)
    return values[starts], np.diff(starts, append=len(values)).astype(np.uint64)


def table_of(kind: RecordKind, words: MessageColumn, rows: Sequence[Any]) -> Any:
    """Return a table of `rows`: this module's dataclasses or, for windows, (epoch, `Messages`)."""
    schema = schema_of(kind, words)
    if kind is RecordKind.WINDOWS:
        return _windows_table(schema, words, rows)
    columns = zip(*map(_CELLS[kind], rows), strict=True)
    arrays = [pa.array(cells, field.type) for cells, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _windows_table(schema: Any, words: MessageColumn, rows: Sequence[tuple[int, Messages]]) -> Any:
    found = [distinct(window) for _, window in rows]
    epochs = np.repeat(
        np.array([epoch for epoch, _ in rows], np.uint64), [len(counts) for _, counts in found]
    )
    values = np.concatenate([values for values, _ in found])
    counts = np.concatenate([counts for _, counts in found])
    return pa.Table.from_arrays(
        [pa.array(epochs), words.array(values), pa.array(counts)], schema=schema
    )


def _manifest_cells(row: Manifest) -> tuple[Any, ...]:
    return (
        row.epoch,
        row.window_status.value,
        row.first_epoch,
        row.contributors,
        row.population,
        row.timestamp,
        tuple(row.producers),
        tuple(row.populations),
    )


def _estimate_cells(row: RecordedEstimate) -> tuple[Any, ...]:
    return (
        row.epoch,
        row.window_status.value,
        row.closed_at,
        row.contributors,
        row.population,
        row.estimate,
        row.guarantee,
        *row.numbers,
        row.reason,
        row.assumes_changes,
    )


_CELLS: dict[RecordKind, Any] = {
    RecordKind.MANIFESTS: _manifest_cells,
    RecordKind.PARTIALS: lambda row: (row.epoch, row.payload),
    RecordKind.ESTIMATES: _estimate_cells,
}


def manifests_of(table: Any, fingerprint: bytes, deployment: bytes) -> Iterator[Manifest]:
    """Yield the manifests in a table, with all offsets 0; raise `CodecError` for malformed rows."""
    for row in table.to_pylist():
        yield Manifest(
            fingerprint=fingerprint,
            deployment=deployment,
            epoch=row["epoch"],
            window_status=WindowStatus(row["window_status"]),
            first_offset=0,
            cut_offset=0,
            first_epoch=row["first_epoch"],
            producers=tuple(row["producers"]),
            populations=tuple(row["populations"]),
            contributors=row["contributors"],
            population=row["population"],
            timestamp=row["timestamp"],
        )


def partials_of(table: Any) -> Iterator[RecordedPartial]:
    for row in table.to_pylist():
        yield RecordedPartial(row["epoch"], row["payload"])


def estimates_of(table: Any) -> Iterator[RecordedEstimate]:
    for row in table.to_pylist():
        yield RecordedEstimate(
            epoch=row["epoch"],
            window_status=WindowStatus(row["window_status"]),
            closed_at=row["closed_at"],
            contributors=row["contributors"],
            population=row["population"],
            estimate=row["estimate"],
            guarantee=row["guarantee"],
            numbers=(row["value"], row["ci95_low"], row["ci95_high"], row["standard_error"]),
            reason=row["reason"],
            assumes_changes=row["assumes_changes"],
        )


def windows_of(table: Any, words: MessageColumn) -> Iterator[tuple[int, MessageArray, Any]]:
    """Yield the epoch, distinct messages and counts of each window, or of its part in the table."""
    if not table.num_rows:
        return
    epochs, word, counts = (
        table.column(name).combine_chunks() for name in ("epoch", "word", "count")
    )
    numbers = epochs.to_numpy()
    values, occurring = words.values(word), counts.to_numpy()
    cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    bounds = [0, *cuts.tolist(), len(numbers)]
    for start, stop in pairwise(bounds):
        yield int(numbers[start]), values[start:stop], occurring[start:stop]


def recorded_estimate(record: EstimateRecord) -> RecordedEstimate:
    body, single = record.to_json(), None if record.estimate is None else record.estimate.single
    numbers: Numbers = (None, None, None, None)
    if single is not None:
        numbers = (single.value, single.ci95_low, single.ci95_high, single.standard_error)
    return RecordedEstimate(
        epoch=record.epoch,
        window_status=record.window_status,
        closed_at=record.closed_at,
        contributors=record.contributors,
        population=record.population,
        estimate=_text(body["estimate"]),
        guarantee=_text(body["guarantee"]),
        numbers=numbers,
        reason=record.reason,
        assumes_changes=record.assumes_changes,
    )


def published_estimate(row: RecordedEstimate, deployment: bytes) -> EstimateRecord:
    body = {
        "version": VERSION,
        "deployment": deployment.hex(),
        "epoch": row.epoch,
        "window_status": row.window_status.value,
        "closed_at": row.closed_at,
        "contributors": row.contributors,
        "population": row.population,
        **({} if row.reason is None else {"reason": row.reason}),
        **({} if row.assumes_changes is None else {"assumes_changes": row.assumes_changes}),
    }
    head = json.dumps(body)[:-1]
    text = f'{head}, "estimate": {row.estimate}, "guarantee": {row.guarantee}}}'
    return EstimateRecord.from_bytes(text.encode())


def _text(body: Mapping[str, Any] | None) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
