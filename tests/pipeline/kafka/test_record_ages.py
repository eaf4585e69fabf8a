"""How old records are, told from questions about all of them at once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.kafka.record_ages import FINEST_AGE_MS, record_ages

NOW = 1_700_000_000_000
DAY = 86_400_000


class Asked:
    """Answers of a log, and how often it was asked."""

    def __init__(self, ages: Mapping[int, int]) -> None:
        self._ages = ages
        self.rounds: list[dict[int, int]] = []

    def __call__(self, ages: Mapping[int, int]) -> set[int]:
        self.rounds.append(dict(ages))
        return {place for place, age in ages.items() if self._ages[place] > age}


@given(st.lists(st.integers(0, 400 * DAY) | st.integers(0, 3_000), max_size=5))
def test_ages_are_right_to_within_a_second_or_a_twentieth(ages: list[int]) -> None:
    real = dict(enumerate(ages))
    for place, found in record_ages(real, NOW, Asked(real)).items():
        assert found <= real[place] <= found + max(FINEST_AGE_MS, found // 19 + 1)


@pytest.mark.parametrize("oldest", [0, FINEST_AGE_MS])
def test_of_a_moment_so_early_nothing_is_asked(oldest: int) -> None:
    asked = Asked({0: 0})
    assert record_ages([0], oldest, asked) == {0: 0}
    assert asked.rounds == []
