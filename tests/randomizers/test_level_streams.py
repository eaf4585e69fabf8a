"""Test numbers over time: exact deltas of every pair of streams of two epochs and four values.

Messages are drawn by devices without dummies, which the shuffler adds; only the noise comes from
the accounting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.accounting.item_streams import ItemReports, noise_for_items
from dpstream.randomizers.accounting.level_streams import (
    epsilon_for_levels,
    poisson_for_levels,
    shifted_up_and_down,
)
from dpstream.randomizers.accounting.shifted_noise import delta_of_tables
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_code
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.item_domains import Bits, Numbers
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCounts
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_level_counts.calibration import (
    LevelJob,
    calibrate,
    range_error,
)
from tests.support.divergences import Pair, hockey_stick
from tests.support.thinned import thinned

TAIL = 1e-12
STAGE = CellNoiseLaw("shuffle", 1e-9, 1)
TREES = [Levels(4, (2, 2)), Levels(4, (4,))]


def messages(levels: Levels, changes: int, boost: int, epochs: int) -> list[Counter[int]]:
    law = ShuffledLevelCountsLaw(
        epochs, levels, 1.0, 1e-6, changes, boost, STAGE, STAGE if boost else None
    )
    found = []
    for stream in product(range(levels.size + 1), repeat=epochs):
        device, sent = ShuffledItemCounts(law), Counter[int]()
        device.enroll(1, seeded_generator(1))
        for epoch, value in enumerate(stream, 1):
            words = device.report(epoch, np.array([value]), None, seeded_generator(2))
            sent.update((written_out(words)[:, 0].astype(int) + 1000 * epoch).tolist())
        found.append(sent)
    return found


@pytest.mark.parametrize("levels", TREES, ids=str)
@pytest.mark.parametrize(("epsilon", "delta"), [(4.0, 1e-3), (3.0, 0.02), (8.0, 1e-4)])
def test_no_pair_of_streams_exceeds_the_stated_loss(
    levels: Levels, epsilon: float, delta: float
) -> None:
    streams = messages(levels, 0, 0, epochs=2)
    mean = poisson_for_levels(epsilon, delta, 2, len(levels.branching))
    assert epsilon_for_levels(mean, delta, 2, len(levels.branching)) <= epsilon
    claimed = delta + delta_of_tables(epsilon, TAIL, 14)
    assert 0.5 * delta < worst(streams, mean, mean, epsilon) <= claimed
    assert worst(streams, mean / 2, mean / 2, epsilon) > claimed


def test_no_pair_of_boosted_streams_exceeds_the_stated_loss() -> None:
    epsilon, delta, words = 4.0, 0.02, 6
    streams = messages(TREES[0], 1, 1, epochs=2)
    held, left = noise_for_items(epsilon, delta, ItemReports(2, 1, 1, 0.0, levels=2))
    assert left is not None
    claimed = delta + delta_of_tables(epsilon, TAIL, 4 * words)
    assert 0.5 * delta < worst(streams, held, left, epsilon) <= claimed
    assert worst(streams, held / 2, left / 2, epsilon) > claimed


@pytest.mark.parametrize("levels", TREES, ids=str)
@pytest.mark.parametrize(("changes", "boost"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_messages_of_boosted_streams_differ_by_at_most_the_assumed_shifts(
    levels: Levels, changes: int, boost: int
) -> None:
    epochs, words = 3, levels.cells - 1
    reports = ItemReports(epochs, changes, boost, 0.0, len(levels.branching))
    bounds = [
        sorted((n for n, cells in stated.items() for _ in range(cells)), reverse=True)
        for stated in (reports.plus, reports.minus)
    ]
    streams = {frozenset(each.items()): each for each in messages(levels, changes, boost, epochs)}
    for one, other in product(list(streams.values()), repeat=2):
        for kind, bound in enumerate(bounds):
            shifts = sorted(
                (n for word, n in (one - other).items() if word % 1000 // words == kind),
                reverse=True,
            )
            assert len(shifts) <= len(bound)
            assert all(found <= stated for found, stated in zip(shifts, bound, strict=False))


@pytest.mark.parametrize(("last_epoch", "levels"), [(1, 1), (2, 3), (7, 2), (40, 1), (40, 4)])
def test_charged_shifts_bound_every_pair_of_streams(last_epoch: int, levels: int) -> None:
    charged = list(shifted_up_and_down(last_epoch, levels))
    for first, second in product(range(last_epoch + 1), repeat=2):
        exchanged = last_epoch - first - second
        if exchanged < 0:
            continue
        up = exchanged * levels + first * (levels + 1)
        down = exchanged * levels + second * (levels + 1)
        assert any(most >= max(up, down) and other >= min(up, down) for most, other in charged), (
            first,
            second,
        )


def test_noise_for_levels_at_one_epoch_equals_the_noise_for_shared_cells() -> None:
    for epsilon, levels in ((1.0, 1), (1.0, 5), (4.0, 2)):
        expected = poisson_for_code(epsilon, 1e-6, levels + 1, 1).mean
        assert poisson_for_levels(epsilon, 1e-6, 1, levels) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "last_epoch"), thinned([(6.0, 1), (1.0, 8)], 2))
def test_chosen_tree_has_the_least_range_error(epsilon: float, last_epoch: int) -> None:
    requested = ShuffledCountsParameters(epsilon, 1e-6, domain=Numbers(0, 80, 32))
    best = calibrate(requested, last_epoch, minimum=1000)
    job = LevelJob(requested, last_epoch, 1000, 1e-6)
    for branching in ((32,), (16, 2), (8, 4), (4, 8), (4, 4, 2), (2, 4, 4), (2,) * 5):
        other = job.law(0, Levels(32, branching))
        assert range_error(best) <= range_error(other) * (1 + 1e-4), branching


def worst(streams: Sequence[Counter[int]], held: float, left: float, epsilon: float) -> float:
    cells = {word % 1000 for sent in streams for word in sent}
    # The messages of values that were left follow those of current values.
    first_left = 6 if held != left else max(cells) + 1
    known: dict[tuple[tuple[int, int, float], ...], float] = {}
    for one, other in product(streams, repeat=2):
        kinds = tuple(
            sorted(
                (one[word], other[word], left if word % 1000 >= first_left else held)
                for word in one.keys() | other.keys()
                if one[word] != other[word]
            )
        )
        if kinds not in known:
            half = len(kinds) // 2
            known[kinds] = hockey_stick(joint(kinds[:half]), joint(kinds[half:]), epsilon)
    return max(known.values())


def joint(kinds: Sequence[tuple[int, int, float]]) -> Pair:
    p: NDArray[np.float64]
    q: NDArray[np.float64]
    p, q = np.ones((2, 1))
    for one, other, mean in kinds:
        most = int(stats.poisson.isf(TAIL, mean)) + 2
        noise = stats.poisson.pmf(np.arange(most + 1), mean)
        noise /= noise.sum()
        seen = np.zeros((2, most + 1 + max(one, other)))
        seen[0, one : one + most + 1] = seen[1, other : other + most + 1] = noise
        p, q = np.outer(p, seen[0]).ravel(), np.outer(q, seen[1]).ravel()
        possible = (p > 0) | (q > 0)
        p, q = p[possible], q[possible]
        with np.errstate(divide="ignore"):
            _, places = np.unique(np.round(np.log(p) - np.log(q), 9), return_inverse=True)
        p, q = (np.bincount(places, each).astype(np.float64) for each in (p, q))
    return p, q


DELTA = 1e-6
EPOCHS = 6
RNG = seeded_generator(0)
HOURS = Numbers(0, 80, 8)


def sent(law: ShuffledLevelCountsLaw, *values: int) -> list[list[int]]:
    device = ShuffledItemCounts(law)
    device.enroll(1, RNG)
    return [
        sorted(written_out(device.report(epoch, np.array([value]), None, RNG))[:, 0].tolist())
        for epoch, value in enumerate(values, 1)
    ]


def test_value_is_counted_in_all_nodes_on_the_path_from_the_root() -> None:
    """The root is cell 0, its children are cells 1 to 4, and values are cells 5 to 12."""
    law = ShuffledLevelCountsLaw(EPOCHS, Levels(8, (4, 2)), 1.0, DELTA, 0, 0, STAGE, None)
    assert sent(law, 0, 5, 5, 8, 0) == [[], [0, 3, 9], [0, 3, 9], [0, 4, 12], []]
    assert law.words == law.message_format.distinct == 13


@pytest.mark.parametrize(("values", "word_bytes"), [(255, 1), (256, 2)])
def test_message_width_fits_the_last_cell(values: int, word_bytes: int) -> None:
    law = ShuffledLevelCountsLaw(EPOCHS, Levels(values, (values,)), 1.0, DELTA, 0, 0, STAGE, None)
    assert law.message_format.dtype.itemsize == word_bytes
    assert sent(law, values) == [[0, values]]


def test_boosted_change_is_sent_on_every_level_except_the_root() -> None:
    """Children are cells 0 to 3, values cells 4 to 11; cells of left values start at 12."""
    law = ShuffledLevelCountsLaw(EPOCHS, Levels(8, (4, 2)), 1.0, DELTA, 2, 1, STAGE, STAGE)
    first, second, third, *_ = sent(law, 5, 8, 1)
    assert first == [2, 2, 8, 8]
    assert second == [3, 3, 11, 11, 14, 20]
    assert third == [0, 4], "a third change is not boosted"
    assert law.words == 12


@pytest.mark.parametrize("parameters", [{}, {"max_changes": 1, "boost": 2}])
def test_dummies_are_uniform_over_cells_of_each_kind(parameters: dict[str, Any]) -> None:
    requested = ShuffledCountsParameters(1.0, DELTA, domain=HOURS, **parameters)
    law = calibrate(requested, EPOCHS, minimum=500)
    devices = ShuffledItemCounts(law)
    devices.enroll(1_000, RNG)
    words = written_out(devices.report(1, np.zeros(1_000, np.int64), None, RNG))[:, 0]
    counts = np.bincount(words, minlength=len(law.noises) * law.words)
    means = 2 * np.repeat([noise.mean for noise in law.noises], law.words)
    assert (np.abs(counts - means) < 8 * np.sqrt(means)).all()
    assert len(words) / 1_000 == pytest.approx(law.dummies_per_user, rel=0.05)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"domain": Bits(13)}, "8,192 numbers; expected at most 4,096"),
        ({"cells": "balls_into_bins"}, "a domain of numbers supports only 'count_min'"),
        ({"buckets": 7}, "requires item labels with 'cells: balls_into_bins'"),
        ({"dummies": "negative_binomial"}, "dummies: poisson"),
    ],
)
def test_contradictory_parameters_are_rejected(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ShuffledCountsParameters(**{"epsilon": 1.0, "delta": DELTA, "domain": HOURS, **parameters})
