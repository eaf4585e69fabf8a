"""Read Parquet files, one row group at a time, as texts like those of a CSV file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.devices.columns import Columns, Placing
from dpstream.pipeline.devices.rows import Records
from dpstream.pipeline.jobs.input_formats import InputFormat

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC: Final = b"PAR1"
_BATCH: Final = 1 << 13  # rows; as texts they are large


def parquet_file(
    name: str,
    file: BufferedReader,
    input_format: InputFormat,
    crowd: str | None,
    fields: Sequence[str] | None = None,
) -> tuple[Columns, Iterator[Records]]:
    """Return the columns and rows, numbered from 1; raise `InputError` for a damaged file."""
    import pyarrow as pa

    table = _opened(name, file)
    leaves = list(_leaves(table.schema_arrow))
    found = Columns.of(
        *(name, leaves),
        crowd=crowd,
        fields=fields,
        input_format=input_format,
        where="the schema",
    )
    others = (found.value,) if found.fields is None else found.fields
    wanted = [leaves[at] for at in (found.user, found.position, *others)]
    wanted += [] if crowd is None else [leaves[found.crowd]]
    if found.placing is Placing.TIME and input_format.time_format is not None:
        kind = _inner(table.schema_arrow.empty_table(), wanted[1]).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            raise InputError(
                f"{name}: column {wanted[1]} has type {kind}, which already defines the time: "
                "remove time_format"
            )
    unused = tuple(leaf for leaf in leaves if leaf not in wanted)
    columns = Columns.in_order(found.placing, crowd=crowd is not None, unused=unused, fields=fields)
    return columns, _records(name, table, wanted)


def single_columns(
    name: str, file: BufferedReader
) -> tuple[tuple[str, ...], Iterator[list[list[str]]]]:
    import pyarrow as pa

    table = _opened(name, file)
    empty = table.schema_arrow.empty_table()
    names = [
        leaf
        for leaf in _leaves(table.schema_arrow)
        if not pa.types.is_nested(_inner(empty, leaf).type)
    ]
    return tuple(names), (records.fields for records in _records(name, table, names))


def _opened(name: str, file: BufferedReader) -> Any:
    # Imported late because it takes a quarter of a second, and other files do not need it.
    import pyarrow as pa
    from pyarrow import parquet

    if not file.seekable():
        raise InputError(f"{name}: cannot read Parquet from a pipe; expected a file")
    try:
        return parquet.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(name, error) from None


def _records(name: str, table: Any, wanted: list[str]) -> Iterator[Records]:
    import pyarrow as pa

    number = 1
    try:
        for batch in table.iter_batches(_BATCH, columns=list(dict.fromkeys(wanted))):
            texts = [_texts(name, column, _inner(batch, column)) for column in wanted]
            fields = list(map(list, zip(*texts, strict=True)))
            yield Records(fields, np.arange(number, number + len(fields), dtype=np.int64))
            number += len(fields)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(name, error) from None


def _damaged(name: str, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [""])[0][:200]
    return InputError(f"{name}: damaged Parquet file ({reason}); download or write it again")


def _leaves(schema: Any, prefix: str = "") -> Iterator[str]:
    import pyarrow as pa

    for field in schema:
        if pa.types.is_struct(field.type):
            yield from _leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def _inner(batch: Any, name: str) -> Any:
    from pyarrow import compute

    if name in batch.schema.names:
        return batch.column(name)
    outer, _, inner = name.partition(".")
    while outer not in batch.schema.names:
        more, _, inner = inner.partition(".")
        outer = f"{outer}.{more}"
    return compute.struct_field(batch.column(outer), inner.split("."))


def _texts(name: str, column: str, array: pa.Array) -> list[str]:
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_timestamp(kind):
        # Digits beyond microseconds are truncated, as in texts.
        array = array.cast(pa.timestamp("us", kind.tz and "UTC"), safe=False)
    elif pa.types.is_nested(kind):
        raise InputError(f"{name}: column {column} has type {kind}; expected single values")
    texts: list[str] = array.cast(pa.string()).fill_null("").to_pylist()
    return texts
