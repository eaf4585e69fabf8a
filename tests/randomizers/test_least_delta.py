"""Test the devices' lower bound on delta, for calibrated noise and for too little noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.randomizers import least_delta
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.count_min import CountMin, CountMinParameters
from dpstream.randomizers.count_min.calibration import calibrate as count_min
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.one_device import OneDevice
from dpstream.randomizers.shuffled_counts import ShuffledCounts, ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.calibration import calibrate as shuffled_counts
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCounts
from dpstream.randomizers.shuffled_counts.shuffled_item_counts.calibration import (
    calibrate as item_counts,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import ShuffledValueStream
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate as value_stream,
)
from dpstream.randomizers.single_message import SingleMessage, SingleMessageParameters
from dpstream.randomizers.single_message.calibration import calibrate as single_message
from tests.support.thinned import thinned

EPSILON, DELTA, MINIMUM = 1.0, 1e-6, 1000


def counts(last_epoch: int, **more: Any) -> Devices[Any]:
    requested = ShuffledCountsParameters(EPSILON, DELTA, **more)
    return ShuffledCounts(shuffled_counts(requested, last_epoch, MINIMUM))


def items(last_epoch: int, **more: Any) -> Devices[Any]:
    requested = ShuffledCountsParameters(EPSILON, DELTA, domain=tuple("abc"), **more)
    return ShuffledItemCounts(item_counts(requested, last_epoch, MINIMUM))


def sums(last_epoch: int) -> Devices[Any]:
    requested = ShuffledCountsParameters(EPSILON, DELTA, max_changes=4, dummies="shuffle")
    return ShuffledValueStream(value_stream(requested, last_epoch, MINIMUM))


def cells(**more: Any) -> Devices[Any]:
    requested = CountMinParameters(EPSILON, DELTA, tuple("abcd"), **more)
    return CountMin(count_min(requested, 1, MINIMUM))


def messages(**more: Any) -> Devices[Any]:
    requested = SingleMessageParameters(EPSILON, DELTA, tuple("abcd"), **more)
    return SingleMessage(single_message(requested, 1, MINIMUM))


HONEST: list[Callable[[], Devices[Any]]] = [
    lambda: counts(1),
    lambda: counts(170),
    lambda: counts(170, dummies="shuffle"),
    lambda: counts(170, dummies="negative_binomial"),
    lambda: counts(170, max_changes=4),
    lambda: items(170),
    lambda: items(40, cells="count_min", max_changes=3),
    lambda: sums(1),
    lambda: sums(170),
    lambda: cells(),
    lambda: cells(items=2),
    lambda: cells(dummies="bernoulli"),
    lambda: cells(dummies="negative_binomial"),
    lambda: cells(rows=2, buckets=64),
    lambda: cells(calibration="published"),
    lambda: messages(response="randomized_response"),
    lambda: messages(response="rappor"),
    lambda: messages(response="rappor", items=2),
]


@cache
def honest(number: int) -> Devices[Any]:
    """Return calibrated devices; cached, since calibration takes most of a test's time."""
    return HONEST[number]()


TIGHT = {0, 1, 2, 7, 8}


@pytest.mark.parametrize("number", range(len(HONEST)))
def test_lower_bound_is_at_most_the_delta_of_calibrated_noise(number: int) -> None:
    devices = honest(number)
    least = devices.least_delta()
    assert 0 <= least <= DELTA * least_delta.SLACK
    assert number not in TIGHT or least > 0.98 * DELTA


NUMBERS = {"low": 0, "high": 64, "buckets": 64}


@pytest.mark.parametrize(
    ("protocol", "parameters"),
    thinned(
        [
            ("shuffled_counts", {"domain": NUMBERS}),
            ("shuffled_counts", {"domain": NUMBERS, "max_changes": 2}),
            ("count_min", {"domain": NUMBERS, "queries": "published_ranges"}),
            ("count_min", {"domain": {"bits": 24}, "queries": "top", "items": 3}),
            ("count_min", {"domain": [f"item {n}" for n in range(400)], "items": 5, "rows": 3}),
        ]
    ),
)
def test_lower_bound_on_delta_accepts_jobs_with_trees_and_hashes(
    protocol: str, parameters: dict[str, Any]
) -> None:
    body = {"name": "honest", "protocol": protocol, "epochs": {"count": 30}}
    requested = {"epsilon": EPSILON, "delta": DELTA, **parameters}
    file = {**body, "parameters": requested, "shuffle": {"minimum": 2000}}
    job = deploy_job(make_job(file), deployed_at=1)
    devices = OneDevice(protocol, job.constants).devices
    assert 0 < devices.least_delta() <= DELTA
    assert devices.assumed_contributors == 2000


def quieter(law: Any, factor: float) -> Any:
    if hasattr(law, "deviation"):
        return replace(law, deviation=math.ceil(law.deviation * factor))
    field = "noise" if hasattr(law, "noise") else "held"
    noise: CellNoiseLaw = getattr(law, field)
    shape = noise.shape and noise.shape * factor
    return replace(law, **{field: replace(noise, mean=noise.mean * factor, shape=shape)})


@pytest.mark.parametrize("number", range(14))
def test_lower_bound_exceeds_the_stated_delta_when_noise_is_too_small(number: int) -> None:
    devices = honest(number)
    factor = 0.9 if number in TIGHT else 0.15
    assert type(devices)(quieter(devices.law, factor)).least_delta() > 1.5 * DELTA


def test_lower_bound_equals_the_delta_of_enumerated_counts() -> None:
    epsilon, support = 0.7, np.arange(-5, 4000)
    laws = {
        CellNoiseLaw("poisson", 6.0, 10): stats.poisson(12.0),
        CellNoiseLaw("shuffle", 300.0, 10): stats.poisson(600.0),
        CellNoiseLaw("bernoulli", 3.0, 10): stats.binom(20, 0.3),
        CellNoiseLaw("negative_binomial", 6.0, 10, 0.4): stats.nbinom(0.8, 0.4 / 6.4),
    }
    for noise, law in laws.items():
        for shift in (1, 2, 9, 5000):
            one, two = law.pmf(support), law.pmf(support - shift)
            exact = max(
                np.maximum(x - math.exp(epsilon) * y, 0).sum() for x, y in ((one, two), (two, one))
            )
            exact = max(exact, 0.0) if shift < 5000 else 1.0
            assert least_delta.of_cells(noise, 2, shift, epsilon) == pytest.approx(exact, rel=1e-9)
