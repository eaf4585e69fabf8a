"""What was published of a job, as files: read afresh from Kafka, a piece at a time."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.printable import error_line
from pipeline.results.estimate_csv import csv_lines
from pipeline.results.published_rows import PublishedRows
from pipeline.results.queries import headline_query, usual_query
from pipeline.results.truths import Truths
from pipeline.serve.history import Point
from pipeline.serve.series import Series, check_estimate
from pipeline.serve.views import NOT_PRIVATE, triples_json, truths_at
from pipeline.stages.estimate_records import EstimateRecord

_LOG = logging.getLogger(__name__)

Made = TypeVar("Made")
Format: TypeAlias = Literal["json", "csv", "parquet"]

TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
_PIECE = 1 << 16
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Download:
    """What is downloaded of a job.

    Attributes:
        job: as deployed.
        first: the first epoch; None for all before the last one.
        last: the last epoch; None for all there are.
        series: of JSON and Parquet, those wanted; none for all that was published.
        truths: beside the estimates, in JSON and Parquet.
    """

    job: DeployedJob
    first: int | None = None
    last: int | None = None
    series: tuple[Series, ...] = ()
    truths: Truths | None = None

    def pieces(self, records: Iterable[EstimateRecord], format: Format) -> Iterator[bytes]:
        """The file, in pieces of about 64 KiB.

        Args:
            records: all that was published, in the order of publication.
            format: of the file.
        """
        wanted = (
            record
            for record in records
            if (self.first is None or record.epoch >= self.first)
            and (self.last is None or record.epoch <= self.last)
        )
        if format == "parquet":
            return self._parquet(wanted)
        lines = self._json(wanted) if format == "json" else self._csv(wanted)
        return _pieces(lines)

    def _csv(self, records: Iterable[EstimateRecord]) -> Iterator[str]:
        for line in csv_lines(PublishedRows.of_everything(self.job), records):
            yield f"{line}\n"

    def _json(self, records: Iterable[EstimateRecord]) -> Iterator[str]:
        about: dict[str, Any] = {"job": self.job.name, "deployment": self.job.deployment.hex()}
        if self.truths is not None:
            about["truth_note"] = NOT_PRIVATE
        yield f'{json.dumps(about)[:-1]}, "estimates": ['
        separator = "\n"
        for text in self._each(
            records, lambda each: json.dumps(self._epoch(each), allow_nan=False)
        ):
            yield separator + text
            separator = ",\n"
        yield "\n]}\n"

    def _each(
        self, records: Iterable[EstimateRecord], made: Callable[[EstimateRecord], Made]
    ) -> Iterator[Made]:
        """What is made of every record; one that is none of the job is passed over."""
        for record in records:
            try:
                check_estimate(self.job.domain, record.estimate)
                found = made(record)
            except Exception as error:
                # Half a file would be worse; the follower passes it over too.
                _LOG.warning(
                    "job %s: epoch %d is left out of a download: %s",
                    *(self.job.name, record.epoch, error_line(error)),
                )
                continue
            yield found

    def _epoch(self, record: EstimateRecord) -> dict[str, Any]:
        point = Point.of(record, self.job.domain)
        body = point.facts()
        if self.series:
            body["series"] = {each.id: triple for each, triple in triples_json(point, self.series)}
        else:
            body["estimate"] = None if record.estimate is None else record.estimate.to_json()
            if record.estimate is not None and record.estimate.found_above is not None:
                body["labels"] = self.job.domain.labels(record.estimate.numbers)
        if self.truths is not None:
            found = truths_at(self.truths, point)
            body["truth"] = None if found is None else found.tolist()
        return body

    def _parquet(self, records: Iterable[EstimateRecord]) -> Iterator[bytes]:
        import pyarrow
        from pyarrow import parquet

        schema = pyarrow.schema(
            [
                ("epoch", pyarrow.int64()),
                ("series", pyarrow.string()),
                ("estimate", pyarrow.float64()),
                ("standard_deviation", pyarrow.float64()),
                ("low", pyarrow.float64()),
                ("high", pyarrow.float64()),
                ("population", pyarrow.int64()),
                ("contributors", pyarrow.int64()),
                ("fate", pyarrow.string()),
                ("flags", pyarrow.string()),
                ("closed_at", pyarrow.timestamp("ms", "UTC")),
                *([] if self.truths is None else [("truth_not_private", pyarrow.float64())]),
            ],
            metadata={
                "job": self.job.name,
                "deployment": self.job.deployment.hex(),
                "guarantee": json.dumps(self.job.guarantee().to_json()),
            },
        )
        sink = _Pieces()
        with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
            rows: list[tuple[object, ...]] = []
            for found in self._each(records, lambda each: list(self._rows(each))):
                rows += found
                if len(rows) >= _ROWS_AT_ONCE:
                    writer.write_table(_table(pyarrow, schema, rows))
                    rows = []
                    yield sink.take()
            writer.write_table(_table(pyarrow, schema, rows))
        yield sink.take()

    def _rows(self, record: EstimateRecord) -> Iterator[tuple[object, ...]]:
        about = (
            record.population,
            record.contributors,
            record.fate.value,
            " ".join(record.flags),
            record.closed_at,
        )
        answered = False
        for name, numbers, truth in self._answers(record):
            answered = True
            true = () if self.truths is None else (truth,)
            yield record.epoch, name, *numbers, *about, *true
        if not answered:
            true = () if self.truths is None else (None,)
            yield record.epoch, None, None, None, None, None, *about, *true

    def _answers(
        self, record: EstimateRecord
    ) -> Iterator[tuple[str, tuple[float | None, ...], float | None]]:
        """Name, estimate with deviation and bounds, and truth of all that is wanted."""
        point = Point.of(record, self.job.domain)
        if self.series:
            for each, triple in triples_json(point, self.series):
                if triple is not None:
                    value, low, high = triple
                    yield each.label, (value, None, low, high), None
            return
        domain = self.job.domain
        query = usual_query(domain, everything=True) or headline_query(domain)
        truth = None if self.truths is None else truths_at(self.truths, point)
        for answer in query.answers(record.estimate, truth):
            numbers = answer.value, answer.standard_deviation, answer.low, answer.high
            yield "users" if domain.kind == "value" else answer.name, numbers, answer.truth


class _Pieces(io.RawIOBase):
    """A file that is written and taken away piece by piece."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(memoryview(data).cast("B"))
        self._held += data
        self._position += size
        return size

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return held


def _table(pyarrow: Any, schema: Any, rows: list[tuple[object, ...]]) -> Any:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [
        pyarrow.array(column, type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _pieces(lines: Iterable[str]) -> Iterator[bytes]:
    held, size = [], 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _PIECE:
            yield "".join(held).encode()
            held, size = [], 0
    if held:
        yield "".join(held).encode()
