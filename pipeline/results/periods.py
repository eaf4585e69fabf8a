"""Periods for which results are shown: every epoch or every M epochs, and changes between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.changes import Changes, check_changes
from dpstream.pipeline.results.roll_ups import RollUpError, check_window, roll_ups
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.measures import Measure


class Aggregate(StrEnum):
    """Number shown for several epochs."""

    mean = "mean"
    sum = "sum"
    last = "last"


@dataclass(frozen=True, slots=True)
class Periods:
    """Periods of a job, from epoch 1 on, and what is shown of each.

    Raises `RollUpError` or `ChangeError` if the estimates do not determine these numbers.

    Attributes:
        interval: Epochs of a period, at least 2; None for single epochs.
        change: Number of periods since which changes are shown; None for the numbers themselves.
        of_shares: True if changes are those of shares of the users.
        measures: Measures that are shown; () for all of the job.
    """

    job: DeployedJob
    interval: int | None = None
    change: int | None = None
    aggregate: Aggregate = Aggregate.mean
    of_shares: bool = False
    measures: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.interval is not None and self.aggregate is Aggregate.sum:
            check_sums(self.job, self.interval, self.measures)
        if self.averages is not None:
            check_window(self.job, self.averages)
        if self.change is not None:
            check_changes(self.job, *self._lag)

    @property
    def averages(self) -> int | None:
        """Number of epochs whose mean or sum is shown; None if single epochs are shown."""
        return None if self.aggregate is Aggregate.last else self.interval

    @property
    def epochs_back(self) -> int | None:
        """Number of epochs since which changes are shown."""
        return None if self.change is None else self.change * (self.interval or 1)

    @property
    def value(self) -> str:
        """Name of the numbers; see `PublishedRows`."""
        if self.change is not None:
            return "change"
        return "estimate" if self.averages is None else self.aggregate.value

    def records(self, records: Iterable[EstimateRecord]) -> Iterator[EstimateRecord]:
        """Yield one record for every period, from those of all epochs."""
        changing = None
        if self.change is not None:
            changing = Changes(self.job, *self._lag, of_shares=self.of_shares)
        if self.averages is not None:
            sums = self.aggregate is Aggregate.sum
            records = roll_ups(self.job, records, self.averages, sums=sums)
        for record in records:
            shown = record if changing is None else changing.next(record)
            if shown is None:
                continue
            if self.averages is not None or not record.epoch % (self.interval or 1):
                yield shown

    @property
    def _lag(self) -> tuple[int, int]:
        """Distance of changes, and the number of epochs in each mean."""
        assert self.change is not None
        if self.averages is None:
            return self.epochs_back or 0, 1
        return self.change, self.averages

    @property
    def description(self) -> str:
        """Words for what is shown, such as "mean over 4 epochs"; empty for plain estimates."""
        if self.change is not None:
            back = f"{self.epochs_back:,} epochs" if self.interval else f"{self.change:,}"
            return f"change since {back} ago"
        if self.interval is None:
            return ""
        what = "last of" if self.averages is None else f"{self.value} over"
        return f"{what} {self.interval:,} epochs"


def check_sums(job: DeployedJob, epochs: int, measures: Collection[str] = ()) -> None:
    """Raise `RollUpError` unless numbers of these measures can be added over epochs.

    By default, of all measures of the job. Events can be added, but not users: the same ones are
    counted at several epochs.
    """
    declared = job.measures or {}
    shown = list(measures or declared or ("",))
    for name in shown:
        measure = declared.get(name, Measure("active"))
        if measure.type in ("count", "sum") and measure.answer == "mean" and measure.within == 1:
            continue
        longer = replace(measure, within=epochs)
        same = next((each for each, other in declared.items() if other == longer), None)
        advice = f"Declare a measure {{type: {measure.type}, within: {epochs}}}"
        if same is not None:
            advice = f"Use --measure {same}"
        elif measure.to_json().keys() - {"type", "within"}:
            advice += f" with the other keys of {name}"
        subject = f"measure {name}" if name else f"job {job.name}"
        if measure.answer != "mean":
            reason = (
                f"counts {job.people}: a sum over {epochs:,} epochs would count the same ones "
                f"again, and the number of different {job.people} does not follow from shorter "
                "periods"
            )
        elif measure.type not in ("count", "sum"):
            reason = f"is of type {measure.type}: only numbers of type count and sum can be added"
        else:
            reason = (
                f"is within {measure.within:,} epochs: a sum over {epochs:,} epochs would add the "
                "same events again"
            )
            advice += ", or one within 1 epoch, whose sums are possible"
        if len(shown) > 1:
            advice += ". For another measure alone, add --measure NAME"
        raise RollUpError(f"{subject} {reason}. {advice}")
