"""Test published changes: supported jobs, covered epochs, and printed output."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.counts import NoValuesError
from dpstream.aggregators.estimate import GAP, NORMAL_95, Estimate, Participation, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.sampled_ranges import RangeChanges, SampledRanges
from dpstream.pipeline.devices.bad_rows import BadRows
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.results.changes import (
    ChangeError,
    Changes,
    changes,
    check_changes,
    has_changes,
)
from dpstream.pipeline.results.coverage import (
    used_up,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStreamLaw
from dpstream.topics.manifests import WindowStatus
from tests.aggregators.test_changes import change_errors
from tests.support.new_jobs import new_job

EPOCHS, PEOPLE = 4, 1_000


def deployed(protocol: str = "value_stream", **parameters: Any) -> DeployedJob:
    shared = {"epsilon": 1.0} if "epsilon" not in parameters else {}
    job = new_job(
        "weeks", protocol, {**shared, **parameters}, count=EPOCHS, renew=True, minimum=500
    )
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


JOB = deployed(max_changes=2)
ITEMS = deployed("projective_geometry", domain=["a", "b", "c"])


def record(epoch: int, estimate: Published | None, people: int = PEOPLE) -> EstimateRecord:
    return EstimateRecord(
        bytes(16), epoch, WindowStatus.RELEASED, epoch, people, people, estimate, {"epsilon": 1.0}
    )


def count(epoch: int, *flags: str) -> EstimateRecord:
    value = 100.0 * epoch
    return record(epoch, Estimate.around(value, 30.0, 58.8, PEOPLE, PEOPLE, tuple(flags)))


def estimated_changes(lag: int, records: list[EstimateRecord]) -> dict[int, Estimate | None]:
    by_epoch: dict[int, Estimate | None] = {}
    for each in changes(JOB, records, lag):
        assert each.estimate is None or isinstance(each.estimate, Estimate)
        by_epoch[each.epoch] = each.estimate
    return by_epoch


def test_change_has_the_confidence_interval_from_the_protocol() -> None:
    records = [count(epoch) for epoch in range(1, 2 * EPOCHS + 1)]
    by_epoch = estimated_changes(2, records)
    assert list(by_epoch) == list(range(3, 2 * EPOCHS + 1))
    law = JOB.law
    assert isinstance(law, ValueStreamLaw)
    errors = change_errors(law, 2)
    known = [errors.next(each.estimate, PEOPLE) for each in records[:EPOCHS]]
    for epoch, estimate in by_epoch.items():
        assert estimate is not None
        assert estimate.standard_error is not None
        assert estimate.value == 200.0
        assert estimate.reports == 2 * PEOPLE
        place = (epoch - 1) % EPOCHS
        # Devices start again in each horizon, so errors of two horizons are independent.
        expected = known[place] if place >= 2 else math.hypot(30.0, 30.0)
        assert estimate.standard_error == pytest.approx(expected)
        width = NORMAL_95 * estimate.standard_error
        assert (estimate.ci95_low, estimate.ci95_high) == pytest.approx((200 - width, 200 + width))


@pytest.mark.parametrize("lag", [1, 3, EPOCHS, EPOCHS + 1, 2 * EPOCHS])
def test_errors_of_changes_across_horizons_account_for_phases_that_users_keep(lag: int) -> None:
    """A horizon apart the same users answer; at other distances two disjoint samples of them."""
    job = deployed("sampled_response")
    records = [count(epoch) for epoch in range(1, 3 * EPOCHS + 1)]
    found = list(changes(job, records, lag))
    assert [each.epoch for each in found] == list(range(1 + lag, 3 * EPOCHS + 1))
    for each in found:
        shares = [min(100 * (each.epoch - before) / PEOPLE, 1.0) for before in (0, lag)]
        spread = math.prod(share * (1 - share) for share in shares)
        common = 0.0 if lag % EPOCHS == 0 else 2 * PEOPLE**2 / (PEOPLE - 1) * math.sqrt(spread)
        assert isinstance(each.estimate, Estimate)
        assert each.estimate.standard_error == pytest.approx(math.sqrt(2 * 30**2 + common))


def test_change_is_omitted_if_an_epoch_has_no_estimate() -> None:
    by_epoch = estimated_changes(1, [record(1, None), count(2), count(3, GAP), count(4)])
    assert by_epoch[2] is None
    assert [each and each.flags for each in by_epoch.values()] == [None, (GAP,), (GAP,)]


def test_changes_after_a_missing_epoch_are_omitted_until_the_next_horizon() -> None:
    by_epoch = estimated_changes(1, [count(epoch) for epoch in (1, 3, 4, 5, 6)])
    assert list(by_epoch) == [4, 5, 6]
    assert by_epoch[4] is None
    # Epoch 5 starts a horizon, epoch 6 continues it.
    assert by_epoch[5] is not None
    assert by_epoch[6] is not None


def test_variances_are_summed_when_epochs_are_independent() -> None:
    def items(epoch: int, deviation: float, *values: float) -> EstimateRecord:
        width = 2 * deviation
        return record(epoch, ItemEstimates(np.array(values), deviation, width, 5, PEOPLE))

    # Epochs before the known ones are irrelevant.
    records = [items(7, 3.0, 1.0, 2.0, 3.0), items(8, 4.0, 5.0, 1.0, 3.5)]
    (change,) = changes(ITEMS, records, 1)
    assert isinstance(change.estimate, ItemEstimates)
    assert change.estimate.values.tolist() == [4.0, -1.0, 0.5]
    assert change.estimate.standard_error == 5.0
    assert change.estimate.half_width == pytest.approx(5 * NORMAL_95)


def test_request_for_unsupported_changes_is_rejected_with_the_reason() -> None:
    dyadic = deployed("future_rand", max_changes=2)
    with pytest.raises(ChangeError, match="future_rand: the published data do not show"):
        check_changes(dyadic)
    numbers = deployed("range_values", max_changes=2, low=0, high=8, buckets=8)
    with pytest.raises(ChangeError, match="the same items at every epoch"):
        Changes(numbers, 1)
    assert [has_changes(each) for each in (JOB, ITEMS, dyadic, numbers)] == [
        *(True, True, False, False)
    ]
    shuffled = deployed("shuffled_counts", max_changes=2, delta=1e-6)
    assert has_changes(shuffled)
    summed = deployed("shuffled_counts", max_changes=2, delta=1e-6, dummies="shuffle")
    assert has_changes(summed)


FOUR_EPOCHS = 4


def log_of(rows: list[tuple[int, int, int]], last_epoch: int) -> ChangeLog:
    rows = sorted(rows, key=lambda row: (row[1], row[0]))
    users, epochs, values = np.array(rows).T
    names = tuple(f"u{user}" for user in range(users.max() + 1))
    return ChangeLog(
        names, epochs.astype(np.int32), users.astype(np.int32), values.astype(np.int8),
        last_epoch, 0, BadRows("log.csv"),
    )  # fmt: skip


TOGGLING = [(0, 1, 1), (0, 3, 0), (0, 5, 1), (0, 6, 0), (1, 2, 1), (2, 4, 1), (2, 8, 0)]


@pytest.mark.parametrize(
    ("changes", "horizon", "free", "epochs"),
    [
        (1, 8, False, [3, 8]),
        (2, 8, False, [5]),
        (2, 8, True, [6]),
        (4, 8, False, []),
        # From epoch 5, all users start again at 0, so that a value of 1 is a change.
        (1, FOUR_EPOCHS, False, [3, 6, 8]),
        (0, FOUR_EPOCHS, False, [1, 2, 4, 5, 5, 5]),
    ],
)
def test_first_epoch_at_which_a_user_exceeds_the_change_limit_is_found(
    changes: int, horizon: int, free: bool, epochs: list[int]
) -> None:
    limit = ChangeLimit(changes, "delayed", first_is_free=free)
    assert used_up(log_of(TOGGLING, 8), limit, horizon).tolist() == epochs


@pytest.mark.parametrize(("persist", "most"), [(True, 1.0), (False, 0.98)])
def test_intervals_for_changes_in_range_counts_have_sufficient_coverage(
    persist: bool, most: float
) -> None:
    """If values persist, errors of different users are at most as correlated as assumed."""
    job, users = deployed("sampled_response", epsilon=4.0, low=0, high=16, buckets=16), 8_000
    starts, ends = np.array(list(combinations(range(17), 2))).T[:, :-1]
    participation, random = Participation.constant(EPOCHS, users), np.random.default_rng(1)
    first = random.integers(1, 17, users)
    later = first if persist else random.permutation(np.maximum(first - 1, 1))
    truth = [np.insert(np.cumsum(np.bincount(v, minlength=17)[1:]), 0, 0) for v in (first, later)]
    expected = (truth[1] - truth[0])[ends] - (truth[1] - truth[0])[starts]
    covered = []
    for seed in range(40):
        devices, aggregator, rng = job.randomizer(), job.aggregator(), seeded_generator(seed)
        devices.enroll(users, rng)
        records = []
        for epoch, values in ((1, first), (2, later)):
            aggregator.add(epoch, written_out(devices.report(epoch, values, None, rng)), None)
            records.append(record(epoch, aggregator.estimate(epoch, participation), users))
        change = next(iter(changes(job, records, 1))).estimate
        assert isinstance(change, RangeChanges)
        _, low, high = change.ranges(starts, ends)
        covered.append(((low <= expected) & (expected <= high)).mean())
        with pytest.raises(NoValuesError):
            change.quantile(0.5)
    assert 0.935 < np.mean(covered) <= most
    assert not has_changes(job)


def test_changes_one_horizon_apart_have_independent_errors() -> None:
    job, users = deployed("sampled_response", low=0, high=8, buckets=4), 900
    aggregator = job.aggregator()
    aggregator.add(1, np.arange(4, dtype=np.uint8).repeat(40)[:, None], None)
    estimate = aggregator.estimate(1, Participation.constant(EPOCHS, users))
    records = [record(epoch, estimate if epoch in (1, 5) else None, users) for epoch in range(1, 6)]
    change = list(changes(job, records, EPOCHS))[-1].estimate
    assert isinstance(change, RangeChanges)
    assert isinstance(estimate, SampledRanges)
    assert float(change.variances(0, 2)) == pytest.approx(2 * float(estimate.variances(0, 2)))
    assert change.item(0).standard_error == change.range(0, 1).standard_error
