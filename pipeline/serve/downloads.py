"""Published estimates of a job as files, read from Kafka for each download and streamed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from dpstream.pipeline.devices.ground_truths import GroundTruths
from dpstream.pipeline.errors import error_line
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.file_formats import parquet_of
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.series import Series
from dpstream.pipeline.serve.history import Point, check_estimate
from dpstream.pipeline.serve.views import NOT_PRIVATE, triples_json
from dpstream.pipeline.stages.estimate_records import EstimateRecord, shown_json

_LOG = logging.getLogger(__name__)

Made = TypeVar("Made")
Format: TypeAlias = Literal["json", "csv", "parquet"]

TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Download:
    """Selection for a download: epochs `first` to `last`, where None means no limit.

    JSON is limited to `series`, if there are any; `ground_truths` are added to JSON and Parquet.
    """

    job: DeployedJob
    first: int | None = None
    last: int | None = None
    series: tuple[Series, ...] = ()
    ground_truths: GroundTruths | None = None

    def chunks(self, records: Iterable[EstimateRecord], format: Format) -> Iterator[bytes]:
        """Yield the file in chunks of about 64 KiB; `records` are in the order of publication."""
        wanted = (
            record
            for record in records
            if (self.first is None or record.epoch >= self.first)
            and (self.last is None or record.epoch <= self.last)
        )
        if format == "parquet":
            return self._parquet(wanted)
        lines = self._json(wanted) if format == "json" else self._csv(wanted)
        return _chunks(lines)

    def _csv(self, records: Iterable[EstimateRecord]) -> Iterator[str]:
        for line in PublishedRows.of(self.job).csv_lines(records):
            yield f"{line}\n"

    def _json(self, records: Iterable[EstimateRecord]) -> Iterator[str]:
        about: dict[str, Any] = {
            "job": self.job.name,
            "deployment": self.job.deployment.hex(),
            "assumes_changes": self.job.assumes_changes,
        }
        if self.ground_truths is not None:
            about["ground_truth_note"] = NOT_PRIVATE
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
        for record in records:
            try:
                check_estimate(self.job.domain, record.estimate)
                found = made(record)
            except Exception as error:
                # A truncated file would be worse; the follower also skips such records.
                _LOG.warning(
                    "job %s: download skips epoch %d: %s",
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
            body["estimate"] = shown_json(record.estimate)
            if record.estimate is not None and record.estimate.detection_threshold is not None:
                body["labels"] = self.job.domain.labels(record.estimate.numbers)
        if self.ground_truths is not None:
            found = self.ground_truths.known(point.epoch, point.estimate)
            body["ground_truth"] = None if found is None else found.tolist()
        return body

    def _parquet(self, records: Iterable[EstimateRecord]) -> Iterator[bytes]:
        rows = PublishedRows.of(self.job, ground_truths=self.ground_truths)
        return parquet_of(rows, self._each(records, lambda each: list(rows.rows(each))))


def _chunks(lines: Iterable[str]) -> Iterator[bytes]:
    held, size = [], 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            yield "".join(held).encode()
            held, size = [], 0
    if held:
        yield "".join(held).encode()
