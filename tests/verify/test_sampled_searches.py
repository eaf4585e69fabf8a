"""Words found in the answers of several epochs: as many as if all users were asked at one epoch."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.sampled_prefixes import SampledPrefixesAggregator
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import SampledResponseParameters
from dpstream.randomizers.sampled_response.calibration import calibrate_prefixes
from dpstream.randomizers.sampled_response.leveled_response import LeveledResponse
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

USERS, EPOCHS, WORDS, MOST = 300_000, 10, 2_000, 32
SEEDS = 3

REFERENCE = {1.0: (7, 6, 1), 4.0: (31, 29, 16)}
"""Number of the most frequent words that are found, by epsilon: in a window of all epochs, if all
users are asked in one epoch, and in a single one of the epochs; one draw each."""


def words_of(seed: int) -> NDArray[np.int64]:
    """Return the users' words, as frequent as Zipf's law with exponent 1.1 says."""
    rng = np.random.default_rng(seed)
    shares = np.arange(1, WORDS + 1) ** -1.1
    words = 1 + rng.choice(1 << 24, WORDS, replace=False)
    return np.asarray(words[rng.choice(WORDS, USERS, p=shares / shares.sum())], np.int64)


def found(epsilon: float, epochs: int, values: NDArray[np.int64], seed: int) -> list[HeavyHitters]:
    """Return what the last epoch publishes, for windows of all epochs and of one epoch."""
    law = calibrate_prefixes(SampledResponseParameters(epsilon, domain=Bits(24)), epochs)
    devices, rng = LeveledResponse(law), seeded_generator(seed, 3)
    devices.enroll(USERS, rng)
    every, single = (SampledPrefixesAggregator(law, window) for window in (None, 1))
    for epoch in range(1, epochs + 1):
        words = devices.report(epoch, values, None, rng)
        every.add(epoch, words, None)
        single.add(epoch, words, None)
    estimates = [
        each.estimate(epochs, Participation.constant(epochs, USERS)) for each in (every, single)
    ]
    return [each for each in estimates if each is not None]


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_words_that_users_keep_are_found_in_a_window_over_all_epochs(epsilon: float) -> None:
    rows, by_way = [], []
    for seed in range(1, 1 + SEEDS):
        values = words_of(seed)
        held, counts = np.unique(values, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        together, alone = found(epsilon, EPOCHS, values, seed)
        at_once, _ = found(epsilon, 1, values, seed)
        numbers = []
        for each in (together, at_once, alone):
            # No word is named that no user has, and none above the threshold is missed.
            assert np.isin(each.items, held).all()
            above = held[counts > each.detection_threshold]
            assert np.isin(above, each.items).all()
            true = counts[np.searchsorted(held, each.items)]
            assert (np.abs(each.values - true) < 6 * each.standard_error).all()
            numbers.append(int(np.isin(held[order[:MOST]], each.items).sum()))
        by_way.append(numbers)
        rows.append([f"{seed}", *map(str, numbers), f"{together.detection_threshold:,.0f}"])
    print_table(
        f"epsilon {epsilon:g}: of the {MOST} most frequent words of {USERS:,} users",
        ["seed", f"{EPOCHS} epochs", "asked at once", "1 epoch of 10", "found above"],
        [*rows, ["reference", *map(str, REFERENCE[epsilon]), "-"]],
    )
    means = np.mean(by_way, axis=0)
    # The counts of words near the threshold decide; a draw differs by a few of them.
    assert np.abs(means - REFERENCE[epsilon]).max() <= 4
    assert abs(means[0] - means[1]) <= 2
    assert means[0] > 1.5 * means[2]
