from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import hadamard

from dpstream.randomizers.accounting.overlapping_cells import poisson_for_overlapping
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.hadamard import Blanket, Hadamard, HadamardLaw, HadamardParameters
from experiments.protocols.hadamard.calibration import calibrate
from experiments.protocols.hadamard_matches import (
    matches_by_equations,
    matches_by_item,
)

FALSE_ALARM = 1e-10


def law_of(
    items: int = 5,
    slots: int = 2,
    rows: int = 2,
    blanket: float = 1.0,
    dummies: Blanket = "bernoulli",
) -> HadamardLaw:
    return HadamardLaw(items, slots, 2, 1, 3, blanket, dummies, 1.0, 0.1, 1.0)


def messages_of(law: HadamardLaw, values: NDArray[np.integer], seed: int) -> NDArray[np.integer]:
    devices, rng = Hadamard(law), seeded_generator(70, seed)
    devices.enroll(len(values), rng)
    return devices.report(1, values, None, rng)


def test_tuples_for_an_item_are_uniform_over_its_set() -> None:
    law = law_of()
    assert law.columns == 8
    users = 40_000
    matrix = hadamard(law.columns)
    for held in range(law.items + 1):
        values = np.full((users, 2), held)  # duplicate items count once
        messages = messages_of(law, values, held)
        real = messages[: 2 * users].reshape(users, 2, law.rows)
        first, second = (held or law.items + 1), law.items + 2
        for row, tuples in ((first, real[:, 0]), (second, real[:, 1])):
            assert (matrix[row, tuples] == 1).all()
            assert uniformity(tuples, law.columns, cells=4**law.rows) > FALSE_ALARM
            # The check would detect tuples from the set of another row.
            assert not (matrix[row % 7 + 1, tuples] == 1).all()
        assert uniformity(messages[2 * users :], law.columns, cells=8**law.rows) > FALSE_ALARM


def uniformity(tuples: NDArray[np.integer], columns: int, cells: int) -> float:
    codes = tuples.astype(np.int64) @ columns ** np.arange(tuples.shape[1])
    found = np.bincount(codes)
    found = found[found > 0]
    assert len(found) == cells
    return float(stats.chisquare(found).pvalue)


def test_present_devices_send_real_tuples_and_a_blanket() -> None:
    law = law_of(blanket=3.0)
    devices, rng = Hadamard(law), seeded_generator(71)
    devices.enroll(4, rng)
    values = np.array([[0, 0], [5, 0], [2, 1], [9, 9]])
    present = np.array([True, True, True, False])
    assert devices.report(1, values, present, rng).shape == (3 * (2 + 3), 2)
    with pytest.raises(ValueError, match="item 9 at epoch 2 is out of range: there are"):
        devices.report(2, values, None, rng)
    with pytest.raises(ValueError, match="epoch 1 is out of range; expected an epoch after"):
        devices.report(1, values, present, rng)
    again = Hadamard.restore(law, devices.state_arrays(), 1)
    assert (again.population, again.epoch) == (4, 1)
    with pytest.raises(ValueError, match=r"expected .* for Hadamard"):
        Hadamard.restore(law, {}, 0)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("dummies", ["poisson", "bernoulli"])
def test_window_spends_at_most_the_requested_delta(rows: int, dummies: Blanket) -> None:
    """Delta is computed from all possible windows; a third of the blanket is not enough."""
    epsilon, delta = 3.0, 0.05
    parameters = HadamardParameters(epsilon, delta, ("a", "b"), rows=rows, dummies=dummies)
    law = calibrate(parameters, last_epoch=1, minimum=1)
    assert exact_delta(law, law.blanket, epsilon) <= delta
    third = law.blanket // 3 if dummies == "bernoulli" else law.blanket / 3
    assert exact_delta(law, third, epsilon) > delta


def exact_delta(law: HadamardLaw, blanket: float, epsilon: float) -> float:
    """Return the larger delta of both directions, for items 1 and 2.

    Tuples are of four kinds, given by the sets that contain them, and uniform within each kind for
    any item. So the counts of the kinds are a sufficient statistic of a window.
    """
    positive = hadamard(law.columns)[1:3] == 1
    tuples = list(product(range(law.columns), repeat=law.rows))
    kinds = [tuple(positive[:, each].all(axis=1)) for each in np.array(tuples)]
    only, other, both = (
        kinds.count(kind) / len(kinds) for kind in [(True, False), (False, True), (True, True)]
    )
    assert only == other
    most = int(blanket) if law.dummies == "bernoulli" else 30
    counts = np.indices((most + 2,) * 3)
    if law.dummies == "bernoulli":
        rest = most - counts.sum(axis=0)
        every = np.moveaxis(np.stack([*counts, np.maximum(rest, 0)]), 0, -1)
        shares = [only, other, both, 1 - only - other - both]
        dummies = np.where(rest >= 0, stats.multinomial.pmf(every, most, shares), 0.0)
    else:
        means = np.array([only, other, both])[:, None, None, None] * blanket
        dummies = stats.poisson.pmf(counts, means).prod(axis=0)
    left_out = 1 - float(dummies.sum())
    assert left_out < 1e-6
    shared = both / (only + both)
    with_first, with_second = (
        (1 - shared) * np.roll(dummies, 1, axis=axis) + shared * np.roll(dummies, 1, axis=2)
        for axis in (0, 1)
    )
    factor = math.exp(epsilon)
    directions = [(with_first, with_second), (with_second, with_first)]
    return left_out + max(float(np.maximum(p - factor * q, 0).sum()) for p, q in directions)


@pytest.mark.parametrize("minimum", [7, 1000, 123_457])
def test_contributors_together_add_the_required_blanket(minimum: int) -> None:
    parameters = HadamardParameters(1.0, 1e-6, tuple("abcde"), dummies="poisson", rows=3)
    needed = poisson_for_overlapping(1.0, 1e-6, 0.5**3, 1)
    law = calibrate(parameters, 1, minimum)
    assert needed <= law.blanket * minimum * 0.5**3 <= 1.001 * needed


@st.composite
def windows(
    draw: st.DrawFn,
) -> tuple[int, NDArray[np.unsignedinteger], NDArray[np.uint32] | None]:
    bits = draw(st.integers(1, 9))
    width = draw(st.integers(1, 14))
    # With a few columns, most tuples have equal or dependent ones.
    columns = st.one_of(st.integers(0, 3), st.integers(0, (1 << bits) - 1))
    column = columns.map(lambda column: column % (1 << bits))
    rows = draw(st.lists(st.lists(column, min_size=width, max_size=width), max_size=30))
    dtype = draw(st.sampled_from([np.uint16, np.uint32] if bits > 8 else [np.uint8, np.uint16]))
    tuples = np.array(rows, dtype).reshape(-1, width)
    counted = draw(st.booleans())
    counts = draw(st.lists(st.integers(1, 2**32 - 1), min_size=len(rows), max_size=len(rows)))
    return bits, tuples, np.array(counts, np.uint32) if counted else None


@given(windows())
def test_both_matching_methods_agree_with_the_hadamard_matrix(
    window: tuple[int, NDArray[np.unsignedinteger], NDArray[np.uint32] | None],
) -> None:
    bits, tuples, counts = window
    positive = hadamard(1 << bits)[:, tuples] == 1
    inside = positive.all(axis=2)
    expected = inside @ (np.ones(len(tuples), np.int64) if counts is None else counts.astype(int))
    by_item = matches_by_item(tuples, counts, np.arange(1 << bits))
    by_equations = matches_by_equations(tuples, counts, bits)
    assert by_item.dtype == by_equations.dtype == np.int64
    assert by_item.tolist() == by_equations.tolist() == expected.tolist()
