"""What a run leaves behind: how good it was, a table, and how to go on."""

from __future__ import annotations

import csv
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.operations.up.progress import Row
from dpstream.pipeline.results.coverage import (
    coverage_lines,
    coverage_over_time,
    expected_coverage,
)
from dpstream.pipeline.results.expected_errors import predicted_rmse
from dpstream.pipeline.results.kinds.known_kinds import kind_of
from dpstream.pipeline.results.known_digits import percent
from dpstream.pipeline.results.sentences import sentence_of
from dpstream.pipeline.results.smoothing import SmoothedHorizon, columns
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.numeric_values import relative_error_lines
from dpstream.pipeline.whole_files import replaced_whole

NOT_PRIVATE = "demo: not private"
"""How the truth is labelled wherever it is shown."""

"""What is said wherever the intervals of one run are counted."""

CSV_COLUMNS = (
    "epoch",
    "begins",
    "estimate",
    "standard_deviation",
    "low",
    "high",
    f"truth ({NOT_PRIVATE})",
    "window_reports",
    "reports",
    "population",
    "contributors",
    "fate",
    "flags",
    "closed_at",
)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A finished run.

    Attributes:
        job: as deployed.
        rows: one per epoch.
        users: in the input.
        seconds: from the deployment until the last estimate was read.
        reports: in all released windows.
        values: the input; None where it is not known.
        smoothed: horizons by their number from 0 on, if the protocol has any.
    """

    job: DeployedJob
    rows: tuple[Row, ...]
    users: int
    seconds: float
    reports: int
    values: ValueLog | None = None
    smoothed: Mapping[int, SmoothedHorizon] = field(default_factory=dict)

    @property
    def records(self) -> list[EstimateRecord]:
        """What was published."""
        return [row.record for row in self.rows]

    @property
    def rmse(self) -> float | None:
        """Root mean squared error against the truth, in users; None without any estimate."""
        errors = np.concatenate(
            [
                row.intervals[0] - row.truths
                for row in self.rows
                if row.intervals.size and row.truths is not None
            ]
            or [np.zeros(0)]
        )
        return float(np.sqrt(np.mean(np.square(errors)))) if errors.size else None

    @property
    def smoothed_rmse(self) -> float | None:
        """The same of the smoothed estimates."""
        errors = [
            found["smoothed"][0] - row.truths
            for row in self.rows
            for found in [
                columns(row.record, self.smoothed.get(self.job.epochs.horizon_of(row.epoch)))
            ]
            if "smoothed" in found and row.truths is not None
        ]
        return float(np.sqrt(np.mean(np.square(errors)))) if errors else None

    @property
    def predicted_rmse(self) -> float | None:
        """What ``dpstream plan`` says beforehand; None for a protocol without a forecast."""
        return predicted_rmse(self.job, self.users)

    @property
    def covered(self) -> tuple[int, int]:
        """How many intervals hold the truth, and how many claim to."""
        held = [each for _, each in self.covered_by_epoch()]
        return sum(map(np.count_nonzero, held)), sum(map(len, held))

    def covered_by_epoch(self) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Whether the intervals that claim to hold the truth do, epoch by epoch."""
        for row in self.rows:
            if row.truths is not None and row.intervals.size and GAP not in row.estimate.flags:
                _, low, high = row.intervals
                yield row.epoch, (low <= row.truths) & (row.truths <= high)

    @property
    def _labels(self) -> tuple[str, ...] | None:
        estimates = (row.record.estimate for row in self.rows)
        found = any(each is not None and each.found_above is not None for each in estimates)
        return None if found else self.job.domain.items

    def to_json(self) -> dict[str, Any]:
        """JSON values; those that ``dpstream simulate --json`` has too are named as there."""
        held, claimed = self.covered
        spans = EpochSpans(self.job)
        return {
            "job": self.job.name,
            "deployment": self.job.deployment,
            "guarantee": self.job.guarantee,
            "users": self.users,
            "rmse": self.rmse,
            "smoothed_rmse": self.smoothed_rmse,
            "predicted_rmse": self.predicted_rmse,
            "coverage": held / claimed if claimed else None,
            "coverage_over_time": coverage_over_time(self.covered_by_epoch()),
            "assumes_changes": self.job.assumes_changes,
            "seconds": round(self.seconds, 3),
            "reports": self.reports,
            "truth": NOT_PRIVATE,
            **({} if (labels := self._labels) is None else {"labels": labels}),
            "epochs": [spans.dated(_row_json(row)) for row in self.rows],
        }


def write_csv(job: DeployedJob, rows: Sequence[Row], path: Path) -> None:
    """Write a header and a row for every epoch; nothing stands where there is no number.

    Of items and numbers there is a row for every item or bucket of every epoch, and its name after
    the epoch and its beginning.
    """
    column = kind_of(job.domain).everything(job.domain).column
    epoch, begins, *columns = CSV_COLUMNS
    spans = EpochSpans(job)
    with replaced_whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([epoch, begins, *([] if column is None else [column]), *columns])
        for row in rows:
            record, deviation = row.record, row.estimate.standard_deviation
            about = (
                "" if row.reports is None else row.reports,
                row.estimate.reports,
                record.population,
                record.contributors,
                record.fate.value,
                " ".join(row.estimate.flags),
                datetime.fromtimestamp(record.closed_at / 1000, UTC).isoformat(
                    timespec="milliseconds"
                ),
            )
            names = [[] if column is None else [name] for name in estimated_names(row)]
            found = row.intervals if row.intervals.size else np.full((3, len(names)), np.nan)
            truths = [""] * len(names) if row.truths is None else row.truths
            for name, truth, (value, low, high) in zip(names, truths, found.T, strict=True):
                numbers = map(_cell, (value, deviation, low, high))
                writer.writerow(
                    [row.epoch, spans.begins(row.epoch), *name, *numbers, truth, *about]
                )


def estimated_names(row: Row) -> list[str]:
    """What every number of an epoch, or every truth where there is none, is about."""
    items = np.arange(1, 1 + (1 if row.truths is None else len(row.truths)))
    if row.intervals.size and row.record.estimate is not None:
        items = row.record.estimate.numbers
    return row.domain.labels(items)


def _cell(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else f"{number:.3f}"


def summary(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """The result: what is said, and about what."""
    rmse, predicted = outcome.rmse, outcome.predicted_rmse
    held, claimed = outcome.covered
    if outcome.rows and all(row.truths is None for row in outcome.rows):
        yield "last estimate", str(sentence_of(outcome.job, outcome.records))
        yield "guarantee", str(outcome.job.guarantee).partition(";")[0]
        return
    if outcome.rows:
        yield "last estimate", str(sentence_of(outcome.job, outcome.records))
    if rmse is None:
        yield "RMSE", "nothing could be estimated"
    else:
        yield "RMSE", f"{_share(rmse, outcome)}, against the truth"
        yield from relative_error_lines(rmse, outcome.users, outcome.job.people)
    smoothed = outcome.smoothed_rmse
    if smoothed is not None:
        yield "smoothed RMSE", f"{_share(smoothed, outcome)}, by looking back at the end"
    if predicted is not None:
        yield "predicted RMSE", f"{_share(predicted, outcome)}, by dpstream plan"
    if claimed:
        expected = expected_coverage(outcome.job, outcome.values)
        yield "95 % intervals", f"{held} of {claimed} hold the truth; {expected}"
        parts = coverage_over_time(outcome.covered_by_epoch())
        yield from coverage_lines(outcome.job, parts, outcome.values)
    yield "guarantee", str(outcome.job.guarantee).partition(";")[0]
    yield "truth", f"{NOT_PRIVATE}; taken from the input here, and sent nowhere"


def next_steps(
    job_file: Path, program: str, *, example: bool, stages: Iterable[str]
) -> Iterator[tuple[str, list[str]]]:
    """What to do next, and the commands that do it.

    Args:
        job_file: of the job that has run.
        program: how the command is called here.
        example: whether the job is only an example: then a copy of its file is the beginning.
        stages: of the job.
    """
    own = "job.yaml" if example else shlex.quote(str(job_file))
    if example:
        yield (
            "your own data, a CSV with the columns user, epoch, value",
            [
                f"cp {shlex.quote(str(job_file))} {own}",
                f"{program} plan {own} --users 10000",
                f"{program} up {own} --input FILE",
            ],
        )
    yield (
        "your own cluster, each worker and producer on any machine",
        [
            "export DPSTREAM_BOOTSTRAP_SERVERS=HOST:9092",
            f"{program} deploy {own}",
            *(f"{program} run {stage} {own}" for stage in stages),
            f"{program} produce {own} --input FILE",
            f"{program} estimates {own} --follow",
        ],
    )


def _share(error: float, outcome: Outcome) -> str:
    return f"{error:,.0f} {outcome.job.people} ({percent(error / outcome.users, 0.005)})"


def _row_json(row: Row) -> dict[str, Any]:
    said: dict[str, Any] = {"epoch": row.epoch, "fate": row.record.fate.value}
    if kind_of(row.domain).single:
        said |= {**row.estimate.to_json(), "estimate": row.estimate.value}
        truth: Any = None if row.truths is None or not row.truths.size else int(row.truths[0])
    else:
        found = row.record.estimate
        said |= {"items": None} if found is None else found.to_json()
        if found is not None and found.found_above is not None:
            said |= {"labels": estimated_names(row)}
        said |= {"population": row.record.population}
        truth = None if row.truths is None else row.truths.tolist()
    return {**said, "truth": truth, "window_reports": row.reports}
