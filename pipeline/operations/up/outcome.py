"""Accuracy of a finished run, and commands for its next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, OUTSIDE, Estimate
from dpstream.pipeline.devices.ground_truths import GroundTruths
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.results.coverage import (
    coverage_lines,
    coverage_over_time,
    expected_coverage,
)
from dpstream.pipeline.results.expected_errors import depends_on_share, predicted_rmse
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.known_digits import percent
from dpstream.pipeline.results.measure_sentences import row_headline
from dpstream.pipeline.results.measure_series import MeasuredError, measured_errors
from dpstream.pipeline.results.privacy_sentences import trusted_party
from dpstream.pipeline.results.sentences import sentence_of
from dpstream.pipeline.results.series import Series
from dpstream.pipeline.results.smoothing import SmoothedHorizon, columns
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.numeric_values import relative_error_lines
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain
from dpstream.topics.manifests import WindowStatus

NOT_PRIVATE = "not private"
"""Label of the ground truth wherever it is shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published epoch with its ground truth.

    `ground_truths` is int64: the number of users with value 1, shape (1,), or with each estimated
    item, shape (items,). It comes from the input alone; None if the input does not determine it.
    """

    record: EstimateRecord
    ground_truths: NDArray[np.int64] | None
    domain: ValueDomain = BOOLEAN
    series: tuple[Series, ...] = ()

    @classmethod
    def of(
        cls,
        job: DeployedJob,
        record: EstimateRecord,
        ground_truths: GroundTruths,
        series: tuple[Series, ...] = (),
    ) -> Row:
        truths = ground_truths.of(record.epoch, record.estimate)
        return cls(record, truths, job.domain, series)

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def estimate(self) -> Estimate:
        """The epoch's estimate (for items, the largest); without one, all fields are None."""
        return self.record.summary

    @property
    def headline(self) -> Headline:
        """The epoch as one number, with the ground truth; recomputed at each access."""
        if self.series:
            return row_headline(self.series, self.record, self.ground_truths)
        return kind_of(self.domain).headline(self.domain, self.record, self.ground_truths)

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Values, lower bounds and upper bounds of all estimates, shape (3, estimates)."""
        estimate = self.record.estimate
        return np.zeros((3, 0)) if estimate is None else estimate.intervals

    @property
    def notes(self) -> list[str]:
        measured = [self.headline.name] if self.series else []
        selects = kind_of(self.domain).in_one.selects and not measured
        name = self.headline.name if selects else ""
        status = self.record.window_status
        unreleased = [] if status is WindowStatus.RELEASED else [status.value]
        # Omit the flag `outside`: the displayed numbers are clipped, so readers would take the flag
        # to mean that the ground truth is outside the interval.
        flags = [flag for flag in self.estimate.flags if flag != OUTSIDE]
        return [*unreleased, *measured, *([f"{name}, the largest"] if name else []), *flags]

    def to_json(self) -> dict[str, Any]:
        found, status = self.record.estimate, self.record.window_status
        ground_truth = None if self.ground_truths is None else self.ground_truths.tolist()
        body: dict[str, Any] = {"epoch": self.epoch, "window_status": status.value}
        if kind_of(self.domain).single:
            body |= {**self.estimate.to_json(), "estimate": self.estimate.value}
            ground_truth = ground_truth[0] if ground_truth else None
        else:
            body |= {"items": None if found is None else found.to_json()}
            if found is not None and found.detection_threshold is not None:
                body |= {"labels": self.domain.labels(found.numbers)}
        return {**body, "population": self.record.population, "ground_truth": ground_truth}


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A finished run.

    `seconds` is the time from deployment to reading the last estimate. `values` are the input; None
    if unknown. `smoothed` has the smoothed horizons, numbered from 0.
    """

    job: DeployedJob
    rows: tuple[Row, ...]
    users: int
    seconds: float
    ground_truths: GroundTruths
    values: ValueLog | None = None
    smoothed: Mapping[int, SmoothedHorizon] = field(default_factory=dict)

    @property
    def records(self) -> list[EstimateRecord]:
        return [row.record for row in self.rows]

    @property
    def known(self) -> dict[int, NDArray[np.int64]] | None:
        known = {row.epoch: row.ground_truths for row in self.rows if row.ground_truths is not None}
        return known or None

    @property
    def rmse(self) -> float | None:
        return _rmse(
            row.intervals[0] - row.ground_truths
            for row in self.rows
            if row.intervals.size and row.ground_truths is not None
        )

    @property
    def by_measure(self) -> list[MeasuredError]:
        return measured_errors(
            self.job,
            (
                (row.record.estimate.numbers, row.intervals[0] - row.ground_truths)
                for row in self.rows
                if row.record.estimate is not None and row.ground_truths is not None
            ),
        )

    @property
    def smoothed_rmse(self) -> float | None:
        return _rmse(
            found["smoothed"][0] - row.ground_truths
            for row in self.rows
            for found in [
                columns(row.record, self.smoothed.get(self.job.epochs.horizon_of(row.epoch)))
            ]
            if "smoothed" in found and row.ground_truths is not None
        )

    @property
    def predicted_rmse(self) -> float | None:
        return predicted_rmse(self.job, self.users, self.share)

    @property
    def share(self) -> float | None:
        """Mean estimated share of users with the value; None if no prediction depends on it."""
        if not kind_of(self.job.domain).single or not depends_on_share(self.job):
            return None
        found = [
            row.intervals[0, 0] / max(1, row.record.population)
            for row in self.rows
            if row.intervals.size
        ]
        return float(np.clip(np.mean(found), 0.0, 1.0)) if found else None

    @property
    def covered(self) -> tuple[int, int]:
        """Number of intervals that contain the ground truth, and of all that claim to do so."""
        held = [each for _, each in self.covered_by_epoch()]
        return sum(map(np.count_nonzero, held)), sum(map(len, held))

    def covered_by_epoch(self) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        for row in self.rows:
            if (
                row.ground_truths is not None
                and row.intervals.size
                and GAP not in row.estimate.flags
            ):
                _, low, high = row.intervals
                yield row.epoch, (low <= row.ground_truths) & (row.ground_truths <= high)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; keys shared with ``dpstream simulate --json`` have the same names."""
        held, claimed = self.covered
        spans = EpochSpans(self.job)
        estimates = (record.estimate for record in self.records)
        found = any(each is not None and each.detection_threshold is not None for each in estimates)
        items = None if found else self.job.domain.items
        return {
            "job": self.job.name,
            "deployment": self.job.deployment,
            "guarantee": self.job.guarantee,
            "users": self.users,
            "rmse": self.rmse,
            "smoothed_rmse": self.smoothed_rmse,
            "predicted_rmse": self.predicted_rmse,
            "predicted_share": self.share,
            "coverage": held / claimed if claimed else None,
            "coverage_over_time": coverage_over_time(self.covered_by_epoch()),
            "assumes_changes": self.job.assumes_changes,
            "seconds": round(self.seconds, 3),
            "ground_truth": NOT_PRIVATE,
            **({} if items is None else {"labels": items}),
            "epochs": [spans.dated(row.to_json()) for row in self.rows],
        }


def _rmse(errors: Iterable[NDArray[np.float64]]) -> float | None:
    every = np.concatenate([np.zeros(0), *errors])
    return float(np.sqrt(np.mean(np.square(every)))) if every.size else None


def summary(outcome: Outcome) -> Iterator[tuple[str, str]]:
    def share(error: float) -> str:
        return f"{error:,.0f} {outcome.job.people} ({percent(error / outcome.users, 0.005)})"

    guarantee = str(outcome.job.guarantee).partition(";")[0]
    if (rolling := outcome.job.guarantee.rolling) is not None:
        guarantee += f"; {rolling}"
    guarantee += f"; trusted party: {trusted_party(outcome.job.guarantee.trust)}"
    if outcome.rows:
        yield "last estimate", str(sentence_of(outcome.job, outcome.records))
        if outcome.known is None:
            yield "guarantee", guarantee
            return
    rmse, predicted = outcome.rmse, outcome.predicted_rmse
    if by_measure := outcome.by_measure:
        # Rows have different units and sizes: one error of all would be of none.
        predicted = None
        for each in by_measure:
            text = f"{each.rmse:,.3g}" if each.is_mean else share(each.rmse)
            yield f"RMSE of {each.name}", text
    elif rmse is None:
        yield "RMSE", "no estimates"
    else:
        yield "RMSE", f"{share(rmse)}, compared with the ground truth"
        if kind_of(outcome.job.domain).single or not depends_on_share(outcome.job):
            yield from relative_error_lines(rmse, outcome.users, outcome.job.people)
    if (smoothed := outcome.smoothed_rmse) is not None:
        yield "smoothed RMSE", f"{share(smoothed)}, smoothed retrospectively at the end"
    if predicted is not None:
        estimated = outcome.share
        of = "" if estimated is None else f" for the estimated share of {estimated:.0%}"
        yield "predicted RMSE", f"{share(predicted)}, predicted by 'dpstream plan'{of}"
    held, claimed = outcome.covered
    if claimed:
        expected = expected_coverage(outcome.job, outcome.values)
        yield "95 % intervals", f"{held} of {claimed} contain the ground truth; {expected}"
        parts = coverage_over_time(outcome.covered_by_epoch())
        yield from coverage_lines(outcome.job, parts, outcome.values)
    yield "guarantee", guarantee
    yield "ground truth", f"{NOT_PRIVATE}; taken from the input on this machine, never sent"


def next_steps(
    job_file: Path,
    program: str,
    *,
    example: bool,
    recurring: bool,
    stages: Iterable[str],
    groups: str = "",
    rows: Sequence[str] = (),
    cluster: Sequence[str] = (),
) -> Iterator[tuple[str, list[str]]]:
    """Yield next steps, each with its commands.

    `groups` are options that show a breakdown, `rows` those of the run that select rows of the
    input, and `cluster` those that select the cluster.
    """
    own = "job.yaml" if example else shlex.quote(str(job_file))
    if example:
        yield (
            "your own data, a CSV file with the columns user, epoch, value",
            [
                f"cp {shlex.quote(str(job_file))} {own}",
                f"{program} plan {own} --users 10000",
                f"{program} up {own} --input FILE",
            ],
        )
    else:
        options = "".join(f" {option}" for option in map(shlex.quote, cluster))
        yield (
            "these results again, on the live page or as a table",
            [
                f"{program} serve{options}",
                f"{program} estimates {own}{groups}{options}",
            ],
        )
    selected = "".join(f" {option}" for option in map(shlex.quote, rows))
    yield (
        "your own cluster, each worker and producer on any machine",
        [
            "export DPSTREAM_BOOTSTRAP_SERVERS=HOST:9092",
            f"{program} deploy {own}",
            *(f"{program} run {stage} {own}" for stage in stages),
            f"{program} produce {own} --input FILE{selected}{' --to-epoch EPOCH' * recurring}",
            f"{program} estimates {own} --follow",
        ],
    )
