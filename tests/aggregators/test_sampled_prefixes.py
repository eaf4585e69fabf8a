"""Searches in answers from several epochs: sums, errors, windows, and what is stated of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import INCOMPLETE, Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.sampled_prefixes import PrefixWindow, SampledPrefixesAggregator
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import SampledResponseLaw, SampledResponseParameters
from dpstream.randomizers.sampled_response.leveled_response import (
    LeveledResponse,
    LeveledResponseLaw,
)
from dpstream.topics.manifests import WindowStatus

CODE = PrefixCells((PrefixLevel(4, 16), PrefixLevel(12, 600)), "example")
SPACES = PointSpace(5, 5), PointSpace(5, 5)


AGGREGATION = PROTOCOLS["sampled_response"].aggregation


def law_of(last_epoch: int, epsilon: float = 4.0) -> LeveledResponseLaw:
    odds = optimal(1, epsilon)
    return LeveledResponseLaw(
        CODE,
        tuple(
            SampledResponseLaw(last_epoch, epsilon, odds, space, level.buckets, False, 1)
            for space, level in zip(SPACES, CODE.levels, strict=True)
        ),
    )


def answers(
    law: LeveledResponseLaw, values: NDArray[np.int64], seed: int
) -> list[NDArray[np.unsignedinteger]]:
    devices, rng = LeveledResponse(law), seeded_generator(seed)
    devices.enroll(len(values), rng)
    return [devices.report(epoch, values, None, rng) for epoch in range(1, law.last_epoch + 1)]


def values_of(users: int) -> NDArray[np.int64]:
    """Return the items of users: a third has item 77, a sixth 4000, a tenth 9, others any."""
    items = np.random.default_rng(3).integers(0, 1 << 12, users)
    for first, end, item in ((0, 1 / 3, 77), (1 / 3, 1 / 2, 4_000), (1 / 2, 0.6, 9)):
        items[int(users * first) : int(users * end)] = item
    return items


def window_of(
    law: LeveledResponseLaw, sent: list[NDArray[np.unsignedinteger]], users: int
) -> PrefixWindow:
    aggregator = SampledPrefixesAggregator(law)
    for epoch, words in enumerate(sent, 1):
        aggregator.add(epoch, words, None)
    window = aggregator.window(
        range(1, len(sent) + 1), Participation.constant(law.last_epoch, users)
    )
    assert window is not None
    return window


def test_constant_values_are_found_as_if_all_users_had_answered_in_one_epoch() -> None:
    users, law = 6_000, law_of(6)
    sent = answers(law, values_of(users), 1)
    spread, at_once = window_of(law, sent, users), SampledPrefixesAggregator(law_of(1))
    at_once.add(1, np.concatenate(sent), None)
    together = at_once.window([1], Participation.constant(1, users))
    assert together is not None
    assert spread.estimates.cells.tolist() == together.estimates.cells.tolist()
    # Without a correction for a finite population, the stated error is only a little larger.
    assert together.estimates.noise_variance == spread.estimates.noise_variance
    assert together.estimates.held_variance < spread.estimates.held_variance
    for counts in (spread.estimates, together.estimates):
        found = counts.top(8)
        assert found.items.tolist()[:2] == [77, 4_000]
        assert (found.reports, found.population) == (users, users)


@pytest.mark.parametrize("persists", [True, False])
def test_errors_of_a_window_are_at_most_the_stated_errors(persists: bool) -> None:
    """With half of the noise, the errors of cells without users would not match."""
    users, law, runs = 1_200, law_of(4, 2.0), 60
    values = np.where(np.arange(users) % 3, 77, 4_000)
    moved = np.where(np.arange(users) % 2, values, 0), np.where(np.arange(users) % 2, 0, values)
    counted, other = CODE.level_buckets(1, np.array([77, 4_000]) - 1).tolist()
    full, empty, stated = [], [], []
    for seed in range(runs):
        devices, rng = LeveledResponse(law), seeded_generator(seed, 7)
        devices.enroll(users, rng)
        aggregator = SampledPrefixesAggregator(law)
        for epoch in range(1, 5):
            now = values if persists else moved[epoch % 2]
            aggregator.add(epoch, devices.report(epoch, now, None, rng), None)
        window = aggregator.window(range(1, 5), Participation.constant(4, users))
        assert window is not None
        counts = window.estimates
        cells = counts.cells[CODE.starts[1] :]
        held = users * 2 / 3 / (1 if persists else 2)
        full.append((float(cells[counted]) - held) ** 2)
        empty.append(float(np.square(np.delete(cells, [counted, other])).mean()))
        stated.append((counts.noise_variance, counts.held_variance))
    noise, users_of_cell = np.mean(stated, axis=0).tolist()
    assert np.mean(empty) == pytest.approx(noise, rel=0.08)
    assert np.mean(full) < (1 + 5 * math.sqrt(2 / runs)) * (noise + users_of_cell)


def test_windows_grow_to_their_maximum_length_and_state_their_current_length() -> None:
    users, law = 3_000, law_of(5)
    sent = answers(law, values_of(users), 2)
    participation = Participation.constant(5, users)
    for length, averaged in ((None, [1, 2, 3, 4, 5]), (2, [1, 2, 2, 2, 2]), (1, [None] * 5)):
        requested = SampledResponseParameters(4.0, domain=Bits(24), window=length)
        aggregator = AGGREGATION.make(law, requested)
        for epoch, words in enumerate(sent, 1):
            aggregator.add(epoch, words, None)
        restored = AGGREGATION.read(law, requested, aggregator.to_bytes())
        for epoch, expected in enumerate(averaged, 1):
            found = aggregator.estimate(epoch, participation)
            again = restored.estimate(epoch, participation)
            assert found is not None
            assert again is not None
            assert isinstance(found, HeavyHitters)
            assert found.to_json() == again.to_json()
            assert found.averaged == expected
            first = epoch - (expected or 1)
            assert found.reports == sum(map(len, sent[first:epoch]))
            assert found.flags == ()


def test_estimates_omit_epochs_without_answers_and_are_flagged() -> None:
    users, law = 3_000, law_of(4)
    sent = answers(law, values_of(users), 2)
    aggregator = SampledPrefixesAggregator(law)
    for epoch in (1, 3):
        aggregator.add(epoch, sent[epoch - 1], None)
    participation = Participation.constant(4, users)
    assert aggregator.estimate(2, participation) is None
    assert aggregator.window([1, 2], participation) is None
    found = aggregator.estimate(3, participation)
    assert found is not None
    assert (found.averaged, found.flags) == (2, (INCOMPLETE,))
    other = SampledPrefixesAggregator(law)
    for epoch in (1, 2):
        other.add(epoch, sent[(0, 2)[epoch - 1]], None)
    same = other.estimate(2, participation)
    assert same is not None
    assert found.values.tolist() == same.values.tolist()


def test_mean_counts_are_scaled_to_a_growing_population() -> None:
    users, law = 4_000, law_of(2)
    sent = answers(law, values_of(users), 5)
    aggregator, participation = SampledPrefixesAggregator(law), Participation.empty(2)
    for epoch, words in enumerate(sent, 1):
        aggregator.add(epoch, words, None)
        participation.set(epoch, len(words), users * epoch)
    window = aggregator.window([1, 2], participation)
    assert window is not None
    assert window.estimates.population == 1.5 * users
    constant = aggregator.window([1, 2], Participation.constant(2, users))
    assert constant is not None
    ratio = window.estimates.cells / constant.estimates.cells
    assert ratio.tolist() == pytest.approx([1.5] * CODE.cells)
    halves = [aggregator.window([epoch], participation) for epoch in (1, 2)]
    assert halves[0] is not None
    assert halves[1] is not None
    assert halves[0].plus(halves[1]).estimates.cells.tolist() == window.estimates.cells.tolist()


def test_estimate_record_states_the_number_of_averaged_epochs() -> None:
    errors = 5.0, 10.0, 20.0
    found = HeavyHitters(np.array([3]), np.array([70.0]), *errors, 90, 100, averaged=3)
    record = EstimateRecord(bytes(16), 5, WindowStatus.RELEASED, 0, 90, 100, found, {"epsilon": 1})
    again = EstimateRecord.from_bytes(record.to_bytes())
    assert again.estimate is not None
    assert again.estimate.averaged == 3
    assert record.to_json()["estimate"]["averaged_epochs"] == 3
    assert again.notes == ["mean of 3 epochs"]


def test_messages_beyond_the_last_level_are_rejected() -> None:
    law = law_of(1)
    aggregator = SampledPrefixesAggregator(law)
    last = law.first_words[-1]
    with pytest.raises(ValueError, match=f"message at epoch 1 is {last}; expected 0 to {last - 1}"):
        aggregator.add(1, np.array([[last]], law.message_format.dtype), None)
