"""Test windows of cells: sums over epochs with varying participation, and their queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.count_min import CountMinAggregator
from dpstream.aggregators.estimate import Participation
from dpstream.randomizers.count_min import CountMin, CountMinLaw, CountMinParameters
from dpstream.randomizers.count_min.calibration import calibrate
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator

LABELS = tuple("abcd")


def law_of(epochs: int, **changes: Any) -> CountMinLaw:
    requested = replace(CountMinParameters(2.0, 1e-3, LABELS, rows=1), **changes)
    return calibrate(requested, epochs, 100)


def run(
    law: CountMinLaw, shares: list[float], key: int
) -> tuple[CountMinAggregator, Participation]:
    aggregator, devices = CountMinAggregator(law), CountMin(law)
    participation, rng = Participation.empty(len(shares)), seeded_generator(1, key)
    devices.enroll(400, rng)
    held = np.repeat([1, 2, 3, 4], 100)[:, None]
    for epoch, share in enumerate(shares, start=1):
        present = np.arange(400) % 100 < 100 * share
        words = written_out(devices.report(epoch, held, present, rng))
        aggregator.add(epoch, words.astype(np.uint32), None)
        participation.set(epoch, int(present.sum()), 400)
    return aggregator, participation


@pytest.mark.slow
@pytest.mark.parametrize(
    "dummies", ["poisson", "bernoulli", pytest.param("negative_binomial", marks=pytest.mark.verify)]
)
def test_window_sums_have_the_right_mean_and_variance(dummies: str) -> None:
    law, shares, runs = law_of(3, dummies=dummies), [1.0, 0.5, 0.25], 2_000
    found, stated = np.empty((runs, 4)), 0.0
    for key in range(runs):
        window = CountMinAggregator.window(*_of(run(law, shares, key), [1, 2, 3]))
        assert window is not None
        found[key], stated = window.cells, window.noise_variance
    error = np.sqrt(stated / runs)
    assert np.abs(found.mean(axis=0) - 300).max() < 6.5 * error
    variances = found.var(axis=0) / stated
    assert np.abs(variances - 1).max() < 6.5 * np.sqrt(3 / runs)
    # Without scaling for absent users the result would differ.
    unscaled = sum(law.noise.moments(int(400 * share))[1] for share in shares)
    assert abs(variances.mean() * stated / unscaled - 1) > 6.5 * np.sqrt(3 / runs)


def _of(
    received: tuple[CountMinAggregator, Participation], epochs: list[int]
) -> tuple[CountMinAggregator, list[int], Participation]:
    return received[0], epochs, received[1]
