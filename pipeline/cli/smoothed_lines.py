"""Smoothed estimates as lines of text, the biased ones beside them and labelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.cli.estimate_lines import EpochTable
from dpstream.pipeline.cli.output import number
from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.results.estimate_csv import csv_row
from dpstream.pipeline.results.smoothing import BIASED, SmoothedHorizon, columns, epoch_json
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate

_SHRUNK = tuple(name for name in BIASED if name.endswith("shrunk"))
_CLIPPED = tuple(name for name in BIASED if name.endswith("clipped"))
CSV_COLUMNS = (
    "epoch",
    "begins",
    "estimate",
    "smoothed",
    "smoothed_standard_deviation",
    "smoothed_low",
    "smoothed_high",
    "population",
    "fate",
    "flags",
    *(
        f"biased_{name.replace(' ', '_')}{end}"
        for name in _CLIPPED
        for end in ("", "_low", "_high")
    ),
    *(f"biased_{name.replace(' ', '_')}" for name in _SHRUNK),
)
SMOOTHED = "smoothed: from the reports of all epochs so far; ± sd, low and high are its own"
FOOTNOTE = (
    SMOOTHED,
    "* biased: the estimate, shrunk by what was known then, within 0 to the population",
    "** biased: smoothed, within 0 to the population; and shrunk besides",
)
_COLUMNS = (
    *(">estimate", "> shrunk*", ">smoothed", ">   ± sd", ">95 % low", ">    high"),
    *(">clipped**", ">shrunk**", ""),
)
_SHOWN = ("smoothed low", "smoothed high", "smoothed clipped", "smoothed shrunk")


def table_lines(
    records: Iterable[EstimateRecord], horizon: SmoothedHorizon, job: Job
) -> Iterator[str]:
    """Columns for people, and what the asterisks mean, of a job that counts one value."""
    yield from EpochTable(job, _COLUMNS).lines(_row(record, horizon) for record in records)
    yield ""
    yield from FOOTNOTE


def _row(record: EstimateRecord, horizon: SmoothedHorizon) -> list[str]:
    (numbers,) = _numbers(record, horizon)
    notes = [] if record.fate is Fate.RELEASED else [record.fate.value]
    values = (
        *(numbers.get(name) for name in ("online", "online shrunk", "smoothed")),
        _deviation(record, horizon),
        *map(numbers.get, _SHOWN),
    )
    notes += _flags(record, horizon)
    return [str(record.epoch), *map(number, values), ", ".join(notes)]


def csv_lines(
    records: Iterable[EstimateRecord], horizon: SmoothedHorizon, job: Job
) -> Iterator[str]:
    """A header, and a row for every epoch, or for every epoch and item, or range of numbers.

    Nothing stands where there is no number.
    """
    kind = "item" if horizon.estimates.level_variances is None else "range"
    labels: list[list[str]] = [[label] for label in horizon.domain.items or ()]
    spans = EpochSpans(job)
    yield ",".join([*CSV_COLUMNS[:2], *([kind] if labels else []), *CSV_COLUMNS[2:]])
    for record in records:
        for label, found in zip(labels or [[]], _numbers(record, horizon), strict=True):
            yield csv_row(
                record.epoch,
                spans.begins(record.epoch),
                *label,
                found.get("online"),
                found.get("smoothed"),
                _deviation(record, horizon),
                found.get("smoothed low"),
                found.get("smoothed high"),
                record.population,
                record.fate.value,
                " ".join(_flags(record, horizon)),
                *(found.get(f"{name}{end}") for name in _CLIPPED for end in ("", " low", " high")),
                *(found.get(name) for name in _SHRUNK),
            )


def json_lines(
    records: Iterable[EstimateRecord], horizon: SmoothedHorizon, job: Job
) -> Iterator[str]:
    """One object a line: as in the topic, with two keys more."""
    for record in records:
        body = EpochSpans(job).dated({**record.to_json(), **epoch_json(record, horizon)})
        yield json_text(body)


LINES: Mapping[str, Callable[[Iterable[EstimateRecord], SmoothedHorizon, Job], Iterator[str]]] = {
    "table": table_lines,
    "csv": csv_lines,
    "json": json_lines,
}
"""The formats, by the names that people give."""


def _numbers(record: EstimateRecord, horizon: SmoothedHorizon) -> Iterator[dict[str, float]]:
    """Every column's value, low and high, by name: of the one value, or of each item."""
    intervals_by_column = columns(record, horizon)
    for at in range(horizon.estimates.values.shape[1]):
        yield {
            f"{name}{end}": float(bound[at])
            for name, intervals in intervals_by_column.items()
            for end, bound in zip(("", " low", " high"), intervals, strict=True)
            if not np.isnan(bound[at])
        }


def _deviation(record: EstimateRecord, horizon: SmoothedHorizon) -> float | None:
    index = horizon.index(record.epoch)
    return None if index is None else float(horizon.estimates.standard_deviations[index])


def _flags(record: EstimateRecord, horizon: SmoothedHorizon) -> list[str]:
    index = horizon.index(record.epoch)
    return [GAP] if index is not None and horizon.estimates.gaps[index] else []
