"""Test the division of messages among shufflers: uniform, independent, within capacity."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.counted_messages import CountedMessages, written_out
from dpstream.randomizers.division import (
    MOST_INSTANCES,
    REDRAW_PROBABILITY,
    chances_of_one_instance,
    divide,
    room_of_part,
)
from dpstream.randomizers.randomness import seeded_generator


def counted(counts: list[int]) -> CountedMessages:
    return CountedMessages.of_cells(np.array(counts), np.dtype("<u4"))


def tables(
    parts: list[NDArray[np.unsignedinteger] | CountedMessages], cells: int
) -> NDArray[np.int64]:
    return np.array([np.bincount(written_out(part)[:, 0], minlength=cells) for part in parts])


@pytest.mark.parametrize("instances", [1, 2, 3, 4])
def test_parts_sent_to_shufflers_sum_to_the_divided_reports(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpstream.randomizers.division._BLOCK", 7)
    for seed in range(50):
        rng = seeded_generator(seed)
        counts = rng.integers(0, 20, 9).tolist()
        rows = np.repeat(np.arange(9, dtype="<u4"), counts)[:, None]
        for reports in (counted(counts), rows):
            parts = divide(reports, instances, None, seeded_generator(seed, 1))
            assert len(parts) == instances
            assert tables(parts, 9).sum(axis=0).tolist() == counts
            for part in parts:
                words = written_out(part)[:, 0]
                assert (words[1:] >= words[:-1]).all(), "order is preserved"
                if isinstance(part, CountedMessages):
                    assert part.counts.all()
                    assert part.counts.dtype == np.uint32


@pytest.mark.parametrize("reports", [counted([2, 1]), np.array([[0], [0], [1]], "<u4")])
def test_every_message_goes_to_a_random_shuffler_independently(
    reports: CountedMessages | NDArray[np.unsignedinteger],
) -> None:
    rng, runs = seeded_generator(20261122), 6_000
    found: dict[bytes, int] = {}
    for _ in range(runs):
        key = tables(divide(reports, 3, None, rng), 2).tobytes()
        found[key] = found.get(key, 0) + 1
    expected: dict[bytes, int] = {}
    for labels in product(range(3), repeat=3):
        table = np.zeros((3, 2), np.int64)
        for word, label in zip((0, 0, 1), labels, strict=True):
            table[label, word] += 1
        expected[table.tobytes()] = expected.get(table.tobytes(), 0) + 1
    assert found.keys() == expected.keys()
    observed = [found[key] for key in expected]
    assert stats.chisquare(observed, [runs * n / 27 for n in expected.values()]).pvalue > 1e-11


@pytest.mark.parametrize("instances", range(2, MOST_INSTANCES + 1))
@pytest.mark.parametrize("most", [0, 1, 100, 150, 400, 2_000])
def test_part_of_a_shuffler_exceeds_capacity_with_at_most_the_stated_probability(
    most: int, instances: int
) -> None:
    """The probability, over all shufflers, is exact. Much less capacity would not suffice."""
    room = room_of_part(most, instances)

    def beyond(fits: int) -> Fraction:
        term, ways = math.comb(most, fits + 1) * (instances - 1) ** max(0, most - fits - 1), 0
        for messages in range(fits + 1, most + 1):
            ways += term
            term = term * (most - messages) // ((messages + 1) * (instances - 1))
        return instances * Fraction(ways, instances**most)

    assert beyond(room) <= Fraction(REDRAW_PROBABILITY)
    assert room <= most
    if most > 1_000:
        spare = room - most / instances
        assert beyond(math.ceil(most / instances + 0.8 * spare)) > REDRAW_PROBABILITY


@pytest.mark.parametrize("instances", range(2, MOST_INSTANCES + 1))
@pytest.mark.parametrize("most", [2_000, 10**6, 10**9])
def test_capacity_of_a_part_satisfies_the_bernstein_inequality(most: int, instances: int) -> None:
    """The capacity satisfies Bernstein's inequality, including its slack of a fifth."""
    spare = room_of_part(most, instances) - most / instances
    variance = most / instances * (1 - 1 / instances)
    rarity = math.log(instances) - math.log(REDRAW_PROBABILITY)
    assert spare**2 / (2 * variance + 2 * spare / 3) >= rarity


@pytest.mark.parametrize(("reports", "instances"), [(1, 2), (4, 3), (8, 4)])
def test_number_of_reports_at_one_shuffler_is_binomial(reports: int, instances: int) -> None:
    chances = chances_of_one_instance(reports, instances)
    assert sum(chances) == 1
    law = stats.binom(reports, 1 / instances)
    np.testing.assert_allclose([float(c) for c in chances], law.pmf(range(reports + 1)))
