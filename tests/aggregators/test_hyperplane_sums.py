from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpstream.aggregators.hyperplane_sums import hyperplane_sums
from dpstream.randomizers.point_spaces import PointSpace
from tests.support.projective_points import item_vector, word_vector

SPACES = [(2, 2), (2, 3), (2, 8), (3, 2), (3, 3), (3, 6), (5, 3), (5, 4), (11, 3), (101, 2)]


def by_pairs(space: PointSpace, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    numbers = range(space.points)
    of = (space.order, space.coordinates)
    items = np.array([item_vector(number, *of) for number in numbers])
    words = np.array([word_vector(number, *of) for number in numbers])
    inside: NDArray[np.bool_] = items @ words.T % space.order == 0
    return np.array([counts[row].sum() for row in inside])


@pytest.mark.parametrize(("order", "coordinates"), SPACES)
def test_hyperplane_sums_match_comparison_of_all_pairs(order: int, coordinates: int) -> None:
    space, rng = PointSpace(order, coordinates), np.random.default_rng(order)
    counts = rng.integers(0, 1000, space.points)
    expected = by_pairs(space, counts)
    for points in (1, 2, space.points // 2, space.points):
        assert (hyperplane_sums(space, counts, points) == expected[:points]).all()


@given(data=st.data())
def test_message_is_counted_for_every_item_whose_set_contains_it(data: st.DataObject) -> None:
    space = PointSpace(*data.draw(st.sampled_from([(2, 5), (3, 4), (5, 3), (7, 2)])))
    counts = np.zeros(space.points, np.int64)
    counts[data.draw(st.integers(0, space.points - 1))] = data.draw(st.integers(1, 1 << 62))
    found = hyperplane_sums(space, counts, space.points)
    assert found.tolist() == by_pairs(space, counts).tolist()
    assert np.count_nonzero(found) == space.block


def test_sums_beyond_float_precision_are_exact() -> None:
    space = PointSpace(3, 4)
    counts = np.arange(space.points, dtype=np.int64) + (1 << 56)
    assert (hyperplane_sums(space, counts, space.points) == by_pairs(space, counts)).all()
