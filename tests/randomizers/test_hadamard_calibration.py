"""The budget of signs: the law of flips, exactly, and what is made of it."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import hadamard

from randomizers.accounting.calibration import optimal
from randomizers.future_rand import FutureRandLaw
from randomizers.hadamard_stream import (
    HadamardStream,
    HadamardStreamLaw,
    HadamardStreamParameters,
    rows_for,
)
from randomizers.hadamard_stream.calibration import (
    REFERENCE_ERROR,
    best_signs,
    calibrate,
    flip_law,
)
from randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-10


def tracked(items: int, values: int) -> Counter[tuple[int, ...]]:
    """What devices track, over all rows and all ways to have so many items in turn."""
    matrix = (1 + hadamard(rows_for(items))) // 2
    return Counter(
        tuple(matrix[row, list(turn)].tolist())
        for turn in product(range(1, items + 1), repeat=values)
        if all(one != next_one for one, next_one in pairwise(turn))
        for row in range(len(matrix))
    )


def flips(stream: tuple[int, ...]) -> int:
    return sum(one != other for one, other in pairwise((0, *stream)))


@pytest.mark.parametrize(("items", "values"), [(2, 1), (2, 5), (3, 4), (4, 4), (5, 3), (6, 4)])
def test_the_law_of_flips_is_that_of_all_rows_and_all_ways_to_change(
    items: int, values: int
) -> None:
    streams = tracked(items, values)
    exact = [Fraction(0)] * (values + 1)
    for stream, times in streams.items():
        exact[flips(stream)] += Fraction(times, streams.total())
    assert flip_law(items, values) == pytest.approx([float(share) for share in exact], abs=1e-12)


def test_half_of_the_changes_are_flips_in_a_large_domain() -> None:
    binomial = stats.binom.pmf(np.arange(13), 12, 0.5)
    assert flip_law(4096, 12) == pytest.approx(binomial, abs=2e-3)
    assert flip_law(4, 12) != pytest.approx(binomial, abs=2e-2)


def test_who_goes_back_and_forth_flips_always_or_never() -> None:
    assert flip_law(2, 9) == pytest.approx([0.25, 0.25, *[0] * 6, 0.25, 0.25])


def test_what_frozen_devices_take_from_a_count_is_as_stated() -> None:
    """The bias that `best_signs` weighs: twice the share that has left out an odd number of flips.

    By enumeration: a device follows its stream up to so many flips and stays there. The estimate
    for the last item is the mean of 2 b H, which would be 1 without freezing.
    """
    items, values, signs = 5, 4, 2
    matrix = hadamard(rows_for(items))
    total, count = 0, 0
    for turn in product(range(1, items + 1), repeat=values):
        if any(one == next_one for one, next_one in pairwise(turn)):
            continue
        for row in range(len(matrix)):
            kept, used = 0, 0
            for item in turn:
                now = int(1 + matrix[row, item]) // 2
                if now != kept and used < signs:
                    kept, used = now, used + 1
            total += 2 * kept * int(matrix[row, turn[-1]])
            count += 1
    law = flip_law(items, values)
    assert 1 - total / count == pytest.approx(2 * law[signs + 1 :: 2].sum())


@pytest.mark.parametrize(
    ("items", "changes", "signs"),
    # Few changes leave nothing to save: a flip left out costs more than a sign.
    [(2, 8, 9), (3, 4, 5), (256, 2, 3), (256, 5, 6), (256, 8, 8), (256, 16, 13), (4096, 64, 42)],
)
def test_the_budget_grows_with_the_flips_to_expect_not_with_the_changes(
    items: int, changes: int, signs: int
) -> None:
    law = calibrate(HadamardStreamParameters(1.0, changes, labels(items)), 256)
    assert (law.signs, law.changes) == (signs, changes)
    assert law.frozen_share == pytest.approx(
        flip_law(items, changes + 1)[signs + 1 :].sum(), abs=1e-6
    )
    assert law.frozen_share < 0.02


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_no_other_budget_errs_less(epsilon: float) -> None:
    values = 17
    law = flip_law(256, values)
    gaps = {signs: optimal(signs, epsilon).c_gap for signs in range(1, values + 1)}
    errors = {
        signs: (REFERENCE_ERROR * gaps[values] / gap) ** 2 + (2 * law[signs + 1 :: 2].sum()) ** 2
        for signs, gap in gaps.items()
    }
    assert best_signs(law, epsilon) == min(errors, key=errors.__getitem__)


def test_a_budget_may_be_given() -> None:
    law = calibrate(HadamardStreamParameters(1.0, 2, labels(8), signs=2), 64)
    assert law.signs == 2
    assert law.frozen_share == pytest.approx(0.1295, abs=1e-4)


def test_no_more_changes_are_planned_for_than_there_are_epochs() -> None:
    law = calibrate(HadamardStreamParameters(1.0, 50, labels(8)), 3)
    assert (law.changes, law.signs) == (2, 3)


def test_as_many_devices_freeze_as_stated() -> None:
    """Those that see every change, of order 0; a new item at every epoch."""
    changes, devices = 8, 60_000
    law = calibrate(HadamardStreamParameters(1.0, changes, labels(8), signs=5), changes + 1)
    lowest = FutureRandLaw(
        law.future_rand.horizon,
        law.future_rand.epsilon,
        (1, *[0] * (len(law.future_rand.composed) - 1)),
        law.future_rand.composed,
    )
    population = HadamardStream(HadamardStreamLaw(law.items, law.changes, 0.0, lowest))
    population.enrol(devices, seeded_generator(1))
    for epoch, values in enumerate(random_items(8, changes + 1, devices), start=1):
        population.report(epoch, values, None, seeded_generator(2, epoch))
    assert 0.1 < law.frozen_share < 0.4

    def likely(share: float) -> bool:
        return bool(stats.binomtest(population.frozen, devices, share).pvalue > FALSE_ALARM)

    assert likely(law.frozen_share)
    assert not likely(0.9 * law.frozen_share)
    assert not likely(1.1 * law.frozen_share)


def labels(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def random_items(items: int, epochs: int, devices: int) -> NDArray[np.int64]:
    """Another item at every epoch, shape (epochs, devices)."""
    rng = np.random.default_rng(1)
    steps = rng.integers(1, items, (epochs, devices))
    steps[0] = rng.integers(0, items, devices)
    return np.cumsum(steps, axis=0) % items + 1
