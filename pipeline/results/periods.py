"""Periods for which results are shown: every epoch or every M epochs, and changes between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.changes import Changes, check_changes
from dpstream.pipeline.results.roll_ups import RollUpError, check_window, roll_ups
from dpstream.pipeline.stages.estimate_records import EstimateRecord


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
    """

    job: DeployedJob
    interval: int | None = None
    change: int | None = None
    aggregate: Aggregate = Aggregate.mean
    of_shares: bool = False

    def __post_init__(self) -> None:
        if self.interval is not None and self.aggregate is Aggregate.sum:
            people = self.job.people
            raise RollUpError(
                f"job {self.job.name} counts {people}: a sum over {self.interval:,} epochs would "
                f"count the same ones again, and the number of different {people} does not follow "
                f"from shorter periods. Declare a measure {{type: active, within: {self.interval}}}"
            )
        if self.averages is not None:
            check_window(self.job, self.averages)
        if self.change is not None:
            check_changes(self.job, *self._lag)

    @property
    def averages(self) -> int | None:
        """Number of epochs whose mean is shown; None if single epochs are shown."""
        return self.interval if self.aggregate is Aggregate.mean else None

    @property
    def epochs_back(self) -> int | None:
        """Number of epochs since which changes are shown."""
        return None if self.change is None else self.change * (self.interval or 1)

    @property
    def value(self) -> str:
        """Name of the numbers; see `PublishedRows`."""
        if self.change is not None:
            return "change"
        return "estimate" if self.averages is None else "mean"

    def records(self, records: Iterable[EstimateRecord]) -> Iterator[EstimateRecord]:
        """Yield one record for every period, from those of all epochs."""
        changing = None
        if self.change is not None:
            changing = Changes(self.job, *self._lag, of_shares=self.of_shares)
        if self.averages is not None:
            records = roll_ups(self.job, records, self.averages)
        for record in records:
            shown = record if changing is None else changing.next(record)
            if shown is None:
                continue
            if self.aggregate is Aggregate.mean or not record.epoch % (self.interval or 1):
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
        what = "mean over" if self.averages is not None else "last of"
        return f"{what} {self.interval:,} epochs"
