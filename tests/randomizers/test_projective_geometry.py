from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.accounting.amplification import (
    HiddenCoin,
    amplified_delta,
    of_any_randomizer,
    of_randomizer_of_sets,
)
from dpstream.randomizers.accounting.best_spaces import best_space, relative_variance
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.affine_hashes import is_prime
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.item_domains import Bits, Numbers
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.projective_geometry import (
    ProjectiveGeometry,
    ProjectiveGeometryLaw,
    ProjectiveGeometryParameters,
)
from dpstream.randomizers.projective_geometry.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator
from tests.support.projective_points import item_vector, orthogonal, word_vector

FALSE_ALARM = 1e-10
SMALL = [(2, 2), (2, 3), (2, 5), (3, 2), (3, 3), (3, 4), (5, 3), (7, 2), (7, 3)]
LARGE = [(2, 21), (3, 14), (7, 7), (11, 7), (37, 5), (101, 2), (503, 3)]
ODDS = ComposedLaw((5, 2))

BOUND = 1.05
"""Maximum variance, relative to that of the best local protocol for large domains."""


def law_of(
    order: int = 3,
    coordinates: int = 3,
    slots: int = 1,
    odds: ComposedLaw = ODDS,
    items: int | None = None,
) -> ProjectiveGeometryLaw:
    points = PointSpace(order, coordinates).points
    return ProjectiveGeometryLaw(
        items or points - 1, slots, order, coordinates, 10, 3, odds, 0.5, 0.9, 1e-6
    )


def sets_of(order: int, coordinates: int) -> list[set[int]]:
    points = PointSpace(order, coordinates).points
    words = [word_vector(number, order, coordinates) for number in range(points)]
    return [
        {place for place, word in enumerate(words) if orthogonal(item, word, order)}
        for item in (item_vector(number, order, coordinates) for number in range(points))
    ]


def chosen(space: PointSpace, item: int, numbers: NDArray[np.uint32], inside: bool) -> list[int]:
    size, unused = len(numbers), np.zeros(len(numbers), np.uint32)
    words = space.choose(
        np.full(size, item, np.uint32),
        np.full(size, inside),
        numbers if inside else unused,
        unused if inside else numbers,
    )
    return [int(word) for word in words]


@pytest.mark.parametrize(("order", "coordinates"), SMALL)
def test_points_and_their_numbers_correspond_one_to_one(order: int, coordinates: int) -> None:
    points = PointSpace(order, coordinates).points
    for vector_of in (word_vector, item_vector):
        vectors = [vector_of(number, order, coordinates) for number in range(points)]
        multiples = {
            tuple(factor * each % order for each in vector)
            for vector in vectors
            for factor in range(1, order)
        }
        assert len(multiples) == points * (order - 1) == order**coordinates - 1


@pytest.mark.parametrize(("order", "coordinates"), SMALL)
def test_each_point_inside_or_outside_the_set_of_an_item_is_chosen_once(
    order: int, coordinates: int
) -> None:
    space = PointSpace(order, coordinates)
    every = set(range(space.points))
    for item, own in enumerate(sets_of(order, coordinates)):
        inside = chosen(space, item, np.arange(space.block, dtype=np.uint32), True)
        outside = chosen(space, item, np.arange(space.outside, dtype=np.uint32), False)
        assert len(inside) == len(own)
        assert set(inside) == own
        assert len(outside) == len(every - own)
        assert set(outside) == every - own


@pytest.mark.parametrize(("order", "coordinates"), SMALL)
def test_any_two_hyperplanes_share_equally_many_points(order: int, coordinates: int) -> None:
    space, sets = PointSpace(order, coordinates), sets_of(order, coordinates)
    assert {len(own) for own in sets} == {space.block}
    met = {len(one & other) for one in sets for other in sets if one is not other}
    assert met == {space.common}


@settings(max_examples=60)
@given(data=st.data())
def test_points_of_large_spaces_are_distinct_and_orthogonal(data: st.DataObject) -> None:
    order, coordinates = data.draw(st.sampled_from(LARGE))
    space = PointSpace(order, coordinates)
    item = data.draw(st.integers(0, space.points - 1))
    inside = data.draw(st.booleans())
    among = space.block if inside else space.outside
    numbers = data.draw(st.lists(st.integers(0, among - 1), min_size=1, max_size=50, unique=True))
    words = chosen(space, item, np.array(numbers, np.uint32), inside)
    assert len(set(words)) == len(words)
    own = item_vector(item, order, coordinates)
    for word in words:
        assert 0 <= word < space.points
        assert orthogonal(own, word_vector(word, order, coordinates), order) == inside


def test_each_slot_is_reported_equally_often() -> None:
    law, users = law_of(3, 3, slots=3, odds=ComposedLaw((10**30, 1))), 120_000
    words = reports(law, np.tile([5, 0, 9], (users, 1)), 7)
    sets = sets_of(3, 3)
    expected = np.zeros(13)
    for held in (5, 9, 0):
        expected[list(sets[held])] += users / 3 / 4
    found = np.bincount(words, minlength=13)
    assert (found[expected == 0] == 0).all()
    assert stats.chisquare(found[expected > 0], expected[expected > 0]).pvalue > FALSE_ALARM


def prefix_law() -> ProjectiveGeometryLaw:
    code = PrefixCells((PrefixLevel(1, 2), PrefixLevel(3, 5)), seed="small")
    return ProjectiveGeometryLaw(8, 1, 2, 3, 10, 3, ODDS, 0.5, 0.9, 1e-6, code)


def prefix_probabilities(held: int) -> NDArray[np.float64]:
    law, sets, found = prefix_law(), sets_of(2, 3), []
    code = law.prefixes
    assert code is not None
    for level in range(2):
        cell = code.level_buckets(level, np.array([held - 1 >> 3 - code.levels[level].length]))
        own = sets[1 + int(cell[0]) if held else 0]
        weights = np.array([5 if word in own else 2 for word in range(7)])
        found.append(weights / weights.sum() / 2)
    return np.concatenate(found)


@pytest.mark.parametrize("held", range(9))
def test_prefix_level_is_independent_of_the_item(held: int) -> None:
    law, users = prefix_law(), 200_000
    found = np.bincount(reports(law, np.full((users, 1), held), 20 + held), minlength=law.words)
    likely = prefix_probabilities(held)
    assert stats.chisquare(found, users * likely).pvalue > FALSE_ALARM
    ratios = [(likely / prefix_probabilities(other)).max() for other in range(9)]
    assert max(ratios) == pytest.approx(2.5)
    (furthest,) = [int(np.argmax(ratios))]
    other = users * prefix_probabilities(furthest)
    assert stats.chisquare(found, other).pvalue < FALSE_ALARM


@pytest.mark.parametrize(
    ("bits", "lengths"),
    [
        (21, [19, 21]),
        (24, [19, 24]),
        (30, [19, 30]),
        (31, [18, 24, 31]),
        (61, [18, 28, 39, 50, 61]),
    ],
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 6.0, 64.0])
def test_prefix_lengths_increase_by_few_bits(bits: int, lengths: list[int], epsilon: float) -> None:
    law = calibrate(ProjectiveGeometryParameters(epsilon, Bits(bits)), 1, 10)
    assert law.prefixes is not None
    assert [level.length for level in law.prefixes.levels] == lengths
    assert set(law.cells) == {1 << (19 if len(lengths) == 2 else 18)}
    assert law.words == len(lengths) * law.space.points
    assert law.prefixes.cells <= law.words <= 1 << 22
    body = json.loads(json.dumps(law.to_json()))
    assert ProjectiveGeometryLaw.from_json(body) == law
    with pytest.raises(ValueError, match=r"expected 2\^\d+, the number of"):
        ProjectiveGeometryLaw.from_json({**body, "items": 7})


def reports(law: ProjectiveGeometryLaw, values: NDArray[Any], seed: int) -> NDArray[Any]:
    devices, rng = ProjectiveGeometry(law), seeded_generator(90, seed)
    devices.enroll(len(values), rng)
    words: NDArray[Any] = devices.report(1, values, None, rng)[:, 0]
    return words


@pytest.mark.parametrize(("order", "coordinates"), [(2, 3), (3, 3), (5, 2), (2, 4)])
@pytest.mark.parametrize("slots", [1, 2])
def test_probabilities_and_variance_match_enumeration_of_points(
    order: int, coordinates: int, slots: int
) -> None:
    law = law_of(order, coordinates, slots)
    sets = sets_of(order, coordinates)
    own, other = ODDS.weights
    held, elsewhere = law.probabilities
    for item, wanted in product(range(len(sets)), repeat=2):
        weights = [own if word in sets[item] else other for word in range(len(sets))]
        inside = Fraction(sum(weights[word] for word in sets[wanted]), sum(weights))
        if item == wanted:
            assert held == (inside + (slots - 1) * elsewhere) / slots
        else:
            assert elsewhere == inside
    if slots == 1:
        # For one user without the item, the estimate is a coin divided by a - b.
        coin = (1 - elsewhere) ** 2 * elsewhere + elsewhere**2 * (1 - elsewhere)
        assert relative_variance(law.space, ODDS) == coin / (held - elsewhere) ** 2


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("items", [10, 100, 1024, 1 << 16, 1 << 20])
def test_variance_is_within_5_percent_of_the_best(epsilon: float, items: int) -> None:
    odds = optimal(1, epsilon)
    space = best_space(items, odds)
    assert float(relative_variance(space, odds)) <= BOUND * least_variance(epsilon)
    assert items < space.points <= 3 * items


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0])
def test_best_prime_costs_at_most_3_percent_in_a_large_space(epsilon: float) -> None:
    odds = optimal(1, epsilon)
    spaces = [
        PointSpace(order, next(k for k in (20, 12, 6, 4, 3, 2) if order**k < 1 << 21))
        for order in filter(is_prime, range(2, 300))
    ]
    least = min(relative_variance(space, odds) for space in spaces)
    assert float(least) <= 1.031 * least_variance(epsilon)


@pytest.mark.parametrize("items", [1, 2, 3, 5, 10, 200])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 3.0, 20.0])
def test_no_smaller_space_has_nearly_the_same_variance(items: int, epsilon: float) -> None:
    odds = optimal(1, epsilon)
    every = [
        (space, relative_variance(space, odds))
        for order in filter(is_prime, range(2, 512))
        for coordinates in range(2, 9)
        if items < (order**coordinates - 1) // (order - 1) < 20_000
        for space in [PointSpace(order, coordinates)]
    ]
    least = min(variance for _, variance in every)
    near = [space.points for space, variance in every if variance <= Fraction(103, 100) * least]
    assert best_space(items, odds).points == min(near)


def least_variance(epsilon: float) -> float:
    """Return the least variance per user of a rare item's count among local protocols."""
    return 4 * math.exp(epsilon) / math.expm1(epsilon) ** 2


def shuffled_deltas(law: ProjectiveGeometryLaw, devices: int, epsilon: float) -> list[float]:
    """Return the exact deltas for all neighbors and all values of other users."""
    own, other = law.odds.weights
    sets = sets_of(law.order, law.coordinates)
    total = sum(law.message_weights)
    likely = [
        [Fraction(own if word in held else other, total) for word in range(len(sets))]
        for held in sets
    ]
    factor, found = Fraction(math.exp(epsilon)), []
    for others in product(range(3), repeat=devices - 1):
        views = []
        for first in range(3):
            view: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
            for words in product(range(len(sets)), repeat=devices):
                mass = math.prod(
                    (
                        likely[item][word]
                        for item, word in zip((first, *others), words, strict=True)
                    ),
                    start=Fraction(1),
                )
                view[tuple(sorted(words))] += mass
            views.append(view)
        for one, two in product(views, repeat=2):
            excess = (likelihood - factor * two[seen] for seen, likelihood in one.items())
            found.append(float(sum(more for more in excess if more > 0)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("order", "coordinates", "devices"), [(2, 3, 3), (3, 2, 4)])
def test_exact_delta_is_at_most_the_shuffled_delta(
    order: int, coordinates: int, devices: int
) -> None:
    law = law_of(order, coordinates)
    elsewhere = Fraction(
        ODDS.weights[1] * (law.space.block - law.space.common), sum(law.message_weights)
    )
    coin = of_randomizer_of_sets(ODDS.loss, float(elsewhere))
    twice = HiddenCoin(coin.loss, min(0.99, 2 * coin.clone), coin.shown)
    noticed = False
    for epsilon in (0.1, 0.4, 0.7):
        exact = max(shuffled_deltas(law, devices, epsilon))
        for each in (coin, of_any_randomizer(ODDS.loss)):
            assert exact <= amplified_delta(each, devices, epsilon)
        noticed |= exact > amplified_delta(twice, devices, epsilon)
    assert noticed, "twice as many clones would not be detected"


def test_messages_use_the_narrowest_integer_type() -> None:
    sizes = {
        items: calibrate(
            ProjectiveGeometryParameters(1.0, Bits(bits)), 1, 10
        ).message_format.dtype.str
        for bits, items in ((3, 8), (6, 64), (10, 1024), (15, 1 << 15), (20, 1 << 20))
    }
    assert sizes == {8: "|u1", 64: "|u1", 1024: "<u2", 1 << 15: "<u4", 1 << 20: "<u4"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"delta": 1.0}, "delta is"),
        ({"items": 4}, "'items' is 4"),
        ({"domain": Numbers(0.0, 1.0, 1 << 21)}, "items; expected 1 to"),
    ],
)
def test_error_mentions_the_invalid_parameter(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProjectiveGeometryParameters(**{"epsilon": 1.0, "domain": ("a", "b", "c"), **changed})


def test_number_of_draws_is_independent_of_the_value() -> None:
    law, left = law_of(3, 4), Counter[str]()
    for held in range(law.items + 1):
        devices, rng = ProjectiveGeometry(law), seeded_generator(91)
        devices.enroll(3, rng)
        devices.report(1, np.full((3, 1), held), None, rng)
        left[repr(rng.bit_generator.state)] += 1
    assert len(left) == 1
