"""Test a device's guarantee by enumeration of all its draws and all its outputs.

The enumeration runs the code of devices on every stream, with a population in which each device has
one of the possible sign vectors and one of the possible sequences of coins. The probability of an
output is then a sum of integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise, product
from typing import Literal, TypeAlias, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate

pytestmark = pytest.mark.slow

Stream: TypeAlias = tuple[int, ...]
Output: TypeAlias = tuple[int, ...]
# Output -> probability times the integer 2^(horizon) * (sum of the law's weights).
Distribution: TypeAlias = dict[Output, int]
Calibration: TypeAlias = Literal["optimal", "published"]

CASES = [
    pytest.param(
        *(horizon, changes, epsilon, calibration),
        marks=[pytest.mark.verify] if horizon == 8 and changes > 1 else [],
    )
    for horizon, changes in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (8, 1), (8, 2), (8, 3))
    for epsilon in ((0.5, 2.0) if horizon < 8 else (1.0,))
    for calibration in ("optimal", "published")
]


class Coins:
    """Replace the generator of `report`: the coins of one epoch, one for each device."""

    def __init__(self, coins: NDArray[np.uint8]) -> None:
        self.coins = coins

    def integers(
        self, low: int, high: int, size: int, dtype: type[np.uint64]
    ) -> NDArray[np.uint64]:
        assert (low, high) == (0, 2**64)
        assert size in (0, -(-len(self.coins) // 64))
        padded = np.zeros(64 * size, np.uint8)
        padded[: len(self.coins)] = self.coins[: len(padded)]
        return np.packbits(padded).view("<u8").astype(np.uint64)


def output_distribution(
    law: FutureRandLaw, order: int, stream: Stream, absent_epochs: Iterable[int] = ()
) -> Distribution:
    composed, horizon = law.composed[order], law.horizon
    vectors = np.array(list(product((1, -1), repeat=composed.k)), np.int8)
    # Device number = (sign vector, one coin for every epoch).
    vector = np.repeat(np.arange(len(vectors)), 1 << horizon)
    coins = np.tile(np.arange(1 << horizon), len(vectors))
    empty = FutureRand(law).state_arrays()
    signs = np.zeros((len(vector), empty["signs"].shape[1]), np.uint8)
    packed = np.packbits(vectors[vector] > 0, axis=1, bitorder="little")
    signs[:, : packed.shape[1]] = packed
    devices = FutureRand.restore(
        law,
        {
            "order": np.full(len(vector), order, np.uint8),
            "signs": signs,
            "used": np.zeros(len(vector), empty["used"].dtype),
            "boundary": np.full(len(vector), 2, np.int8),
        },
        epoch=0,
    )
    columns = []
    for epoch, value in enumerate(stream, start=1):
        rng = cast(np.random.Generator, Coins((coins >> (epoch - 1) & 1).astype(np.uint8)))
        present = np.full(len(vector), epoch not in absent_epochs)
        words = devices.report(epoch, np.full(len(vector), value, np.int8), present, rng)
        if len(words):
            columns.append(words[:, 0])
    weights = [composed.weights[int((signs == -1).sum())] for signs in vectors]
    outputs = np.stack(columns, axis=1).tolist() if columns else [[]] * len(vector)
    distribution: Counter[Output] = Counter()
    for output, index in zip(map(tuple, outputs), vector.tolist(), strict=True):
        distribution[output] += weights[index]
    return dict(distribution)


def all_streams(horizon: int) -> list[Stream]:
    return list(product((0, 1), repeat=horizon))


def largest_ratio(distributions: Sequence[Distribution]) -> Fraction:
    assert len({frozenset(distribution) for distribution in distributions}) == 1
    assert len({sum(distribution.values()) for distribution in distributions}) == 1
    return max(
        Fraction(
            max(distribution[output] for distribution in distributions),
            min(distribution[output] for distribution in distributions),
        )
        for output in distributions[0]
    )


@pytest.mark.parametrize(("horizon", "changes", "epsilon", "calibration"), CASES)
def test_no_two_streams_exceed_the_guaranteed_loss(
    horizon: int,
    changes: int,
    epsilon: float,
    calibration: Calibration,
    exponential_below: Callable[[float], Fraction],
) -> None:
    """Compare all streams, including those whose devices become exhausted.

    The order is drawn independently of the stream, so each order can be tested separately.
    """
    law = calibrate(FutureRandParameters(epsilon, changes, calibration), horizon)
    guarantee = FutureRand(law).guarantee
    basis = "exact" if horizon >= 2 * changes else "bound"
    assert (guarantee.delta, guarantee.unit, guarantee.basis) == (0.0, "stream", basis)
    ratios = []
    for order, composed in enumerate(law.composed):
        ratio = largest_ratio(
            [output_distribution(law, order, stream) for stream in all_streams(horizon)]
        )
        assert ratio <= Fraction(max(composed.weights), min(composed.weights))
        assert ratio <= exponential_below(guarantee.epsilon)
        ratios.append(ratio)
    spent = max(Fraction(max(law.weights), min(law.weights)) for law in law.composed)
    if horizon >= 2 * changes:
        assert max(ratios) == spent
    if calibration == "optimal":
        assert guarantee.epsilon == epsilon
    else:
        assert guarantee.epsilon < 0.3 * epsilon


def test_enumeration_detects_a_loss_above_the_guarantee() -> None:
    law = calibrate(FutureRandParameters(2.0, 2), 4)
    wasteful = calibrate(FutureRandParameters(2.001, 2), 4)
    ratio = largest_ratio([output_distribution(wasteful, 0, stream) for stream in all_streams(4)])
    assert ratio > max(Fraction(max(one.weights), min(one.weights)) for one in law.composed)


@pytest.mark.parametrize("changes", [1, 2])
def test_absences_do_not_increase_the_loss(changes: int) -> None:
    """For every set of absent epochs, which is public, the guarantee is the same."""
    law = calibrate(FutureRandParameters(1.0, changes), 4)
    promised = Fraction(max(law.composed[0].weights), min(law.composed[0].weights))
    for pattern in product((False, True), repeat=4):
        absent_epochs = [epoch for epoch, absent in enumerate(pattern, start=1) if absent]
        for order in range(3):
            distributions = [
                output_distribution(law, order, stream, absent_epochs) for stream in all_streams(4)
            ]
            assert largest_ratio(distributions) <= promised


@pytest.mark.parametrize(
    ("horizon", "changes"), [(4, 2), pytest.param(8, 3, marks=pytest.mark.verify)]
)
@pytest.mark.parametrize("calibration", ["optimal", "published"])
def test_signs_have_equal_advantages_and_zeros_are_fair_coins(
    horizon: int, changes: int, calibration: Calibration
) -> None:
    """Check properties II and III: the mean sign of an interval is c_gap * partial sum.

    Once a device is exhausted, its partial sums count as 0.
    """
    law = calibrate(FutureRandParameters(1.0, changes, calibration), horizon)
    for order, composed in enumerate(law.composed):
        for stream in all_streams(horizon):
            distribution = output_distribution(law, order, stream)
            ends = (0, *stream)[:: 1 << order]
            partial_sums = [now - before for before, now in pairwise(ends)]
            followed = 0
            for index, partial_sum in enumerate(partial_sums):
                mean = Fraction(
                    sum(
                        p * (2 * output[index] - 4 * order - 1)
                        for output, p in distribution.items()
                    ),
                    sum(distribution.values()),
                )
                followed += abs(partial_sum)
                effective = partial_sum if followed <= composed.k else 0
                assert mean == composed.exact_c_gap * effective
