"""Differences between published estimates that are a fixed number of epochs apart.

The errors of two estimates are correlated, so a change has its own interval. The interval is
computed from published data only: no other data is read, and no privacy is spent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dpstream.aggregators.change_errors import ChangeErrors, RetainedErrors, deviation_of
from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.ratios import Amount, difference_in_time
from dpstream.pipeline.stages.estimate_records import EstimateRecord


class ChangeError(DpstreamError):
    """A job's estimates do not support changes; the message states why."""


def check_changes(job: DeployedJob, lag: int = 1, window: int = 1) -> None:
    """Raise `ChangeError` unless published data determine the intervals for changes.

    A change is the difference between means over windows of `window` epochs, `lag` windows apart.
    """
    # Errors of ranges are known if different users answer at every epoch.
    ranges = job.domain.kind == "numbers" and job.protocol_entry.sampled is not None
    if not (kind_of(job.domain).same_items or ranges) or job.domain.column is not None:
        raise ChangeError(
            f"job {job.name} does not publish the same items at every epoch. Changes can be shown "
            "only for a single count, a fixed list of items, or numbers in sampled_response"
        )
    if job.protocol_entry.per_epoch or _errors(job, lag, window) is not None:
        return
    longest = job.protocol_entry.longest_window(job.law)
    if longest is not None:
        means = f" between means over {window:,} epochs" if window > 1 else ""
        raise ChangeError(
            f"job {job.name}: over more than {longest:,} epochs a device answers more than once, "
            f"and its answers are correlated, so a change{means} {lag:,} apart has no known "
            "interval. Use a smaller distance"
        )
    if window > 1:
        raise ChangeError(
            f"protocol {job.protocol}: the published data do not show how the errors of two "
            "windows are correlated; expected sampled_response or a protocol with independent "
            "epochs. Remove --change or --interval"
        )
    raise ChangeError(
        f"protocol {job.protocol}: the published data do not show how the errors of two epochs are "
        "correlated, so a change has no interval; expected value_stream, shuffled_counts, "
        "sampled_response or a protocol with independent epochs"
    )


def has_changes(job: DeployedJob) -> bool:
    if not kind_of(job.domain).same_items:
        return False
    try:
        check_changes(job)
    except ChangeError:
        return False
    return True


class Changes:
    """Differences between estimates `lag` (at least 1) epochs apart, in the order of publication.

    With a `window`, these are differences between means over that many epochs, `lag` windows apart.

    Errors in different horizons are independent, unless devices keep draws when a horizon starts.
    To know the correlation of two epochs' errors, all the horizon's earlier epochs are required.

    With `of_shares`, these are the changes of shares of the users, times the later number of users.
    They differ from changes of counts if the number of users changes; not for numbers.
    """

    def __init__(
        self, job: DeployedJob, lag: int, window: int = 1, *, of_shares: bool = False
    ) -> None:
        check_changes(job, lag, window)
        self._job, self._lag, self._window = job, lag, window
        self._of_shares = of_shares
        self._before: deque[EstimateRecord] = deque(maxlen=lag + 1)
        self._errors: ChangeErrors | None = None
        # A group is given, and is no source of errors.
        self._lasting = bool(set(job.randomizer().lasting) - {"group"})

    def next(self, record: EstimateRecord) -> EstimateRecord | None:
        """Return the next epoch's record, with the change in place of the estimate.

        Returns None until `lag` earlier epochs are known. The change is None unless both epochs
        have an estimate.
        """
        if self._before and record.epoch != self._before[-1].epoch + self._window:
            self._before.clear()
            self._errors = None
        goes_on = self._lasting or self._window > 1
        if not self._before if goes_on else self._job.epochs.local(record.epoch) == 1:
            self._errors = _errors(self._job, self._lag, self._window)
        self._before.append(record)
        deviation: Any = None
        if self._errors is not None:
            deviation = self._errors.next(record.estimate, record.population)
        earlier = self._before[0]
        if len(self._before) <= self._lag:
            return None
        if self._independent(earlier.epoch, record.epoch):
            deviation = _independent_errors(earlier, record)
        before, now = earlier.estimate, record.estimate
        if before is None or now is None or deviation is None:
            return replace(record, estimate=None)
        if isinstance(before, PanelEstimates) and isinstance(now, PanelEstimates):
            return replace(record, estimate=now.changed_since(before, np.asarray(deviation)))
        if self._of_shares and earlier.population != record.population:
            return replace(record, estimate=_share_change(earlier, record, deviation))
        return replace(record, estimate=now.change_from(before, deviation))

    def _independent(self, earlier: int, later: int) -> bool:
        if self._lasting:
            return False
        if self._job.protocol_entry.per_epoch:
            return True
        # A later window can start in the horizon of the earlier one.
        horizons = self._job.epochs
        return self._window == 1 and horizons.horizon_of(earlier) != horizons.horizon_of(later)


def _independent_errors(earlier: EstimateRecord, later: EstimateRecord) -> Any:
    before, now = earlier.estimate, later.estimate
    if isinstance(before, PanelEstimates) and isinstance(now, PanelEstimates):
        return np.hypot(before.standard_errors, now.standard_errors)
    errors = RetainedErrors(1, kept=0.0)
    errors.next(before, earlier.population)
    return errors.next(now, later.population)


def _share_change(
    earlier: EstimateRecord, later: EstimateRecord, deviation: float
) -> Estimate | ItemEstimates | None:
    """Return the change of shares, times the later number of users, from that of the counts."""
    before, now = earlier.estimate, later.estimate
    assert before is not None
    assert now is not None
    of_both = deviation_of(now), deviation_of(before)
    if not earlier.population or not later.population or None in of_both:
        return None
    amounts = [Amount(0.0, (each or 0.0) ** 2) for each in of_both]
    change = difference_in_time(
        amounts[0], later.population, amounts[1], earlier.population, deviation
    )
    factor = later.population / earlier.population
    if isinstance(before, Estimate):
        before = replace(before, value=None if before.value is None else factor * before.value)
    elif isinstance(before, ItemEstimates):
        before = replace(before, values=factor * before.values)
    else:
        return None
    return now.change_from(before, later.population * (change.standard_error or 0.0))


def changes(
    job: DeployedJob,
    records: Iterable[EstimateRecord],
    lag: int,
    window: int = 1,
    *,
    of_shares: bool = False,
) -> Iterator[EstimateRecord]:
    changes_of_job = Changes(job, lag, window, of_shares=of_shares)
    return (change for record in records if (change := changes_of_job.next(record)) is not None)


def _errors(job: DeployedJob, lag: int, window: int) -> ChangeErrors | None:
    aggregation = job.protocol_entry.aggregation
    if window > 1:
        return aggregation.window_changes(job.law, window, lag)
    return aggregation.changes(job.law, job.parameters, lag)
