"""Set systems: sizes, common points, and a uniform draw inside or outside the set of a value."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.conformance.laws.sampled_response import sets_of
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.set_systems import SetSystem, Subsets

SYSTEMS = [Subsets(2, 1), Subsets(6, 1), Subsets(6, 3), Subsets(7, 5), PointSpace(3, 2)]


def chosen(system: SetSystem, value: int, numbers: range, *, inside: bool) -> list[int]:
    among = np.array(numbers, np.uint32)
    values = np.full(len(among), value, np.uint32)
    points = system.choose(values, np.full(len(among), inside), among, among)
    return [int(point) for point in points]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_each_point_of_a_set_and_of_its_complement_is_chosen_once(
    system: Subsets | PointSpace,
) -> None:
    sets = sets_of(system)
    assert {len(each) for each in sets} == {system.block}
    assert {len(one & two) for one, two in combinations(sets, 2)} == {system.common}
    for value, own in enumerate(sets):
        inside = chosen(system, value, range(system.block), inside=True)
        outside = chosen(system, value, range(system.outside), inside=False)
        assert sorted(inside) == sorted(own)
        assert sorted(inside + outside) == list(range(system.points))


@given(data=st.data(), values=st.integers(2, 20))
def test_each_point_is_the_rank_of_a_subset(data: st.DataObject, values: int) -> None:
    system = Subsets(values, data.draw(st.integers(1, values - 1)))
    value = data.draw(st.integers(0, values - 1))
    for inside, among in ((True, system.block), (False, system.outside)):
        number = data.draw(st.integers(0, among - 1))
        (point,) = chosen(system, value, range(number, number + 1), inside=inside)
        assert system.members()[point, value] == inside
        assert np.count_nonzero(system.members()[point]) == system.size


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_probability_of_another_set_is_the_sum_over_its_points(
    system: Subsets | PointSpace,
) -> None:
    own = Fraction(2, 3)
    one, other, *_ = sets_of(system)
    inside, outside = own / system.block, (1 - own) / system.outside
    assert system.elsewhere(own) == sum(inside if y in one else outside for y in other)


@pytest.mark.parametrize(("values", "size"), [(1, 1), (21, 3), (5, 0), (5, 5), (True, 1)])
def test_impossible_subsets_are_rejected(values: int, size: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        Subsets(values, size)
