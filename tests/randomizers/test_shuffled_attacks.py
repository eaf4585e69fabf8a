"""Attacks on shuffled counts: what a window tells of one user, against what is promised.

An attacker knows everything but which of two items a user holds, and guesses from the cells in
which these differ. How often the guess is right, with one item and with the other, is a lower bound
on the delta that goes with epsilon; it must not exceed the one that is stated, and it must where
something is wrong with the devices.

There are many such users in one window here, each with cells of its own that nobody else raises:
as good as many windows, and drawn at once by the devices of the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.accounting.shuffled_oracles import negative_binomial_for_rows
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_noise_law import DummyLaw
from dpstream.randomizers.count_min import CountMin, CountMinLaw, CountMinParameters
from dpstream.randomizers.count_min.calibration import calibrate
from dpstream.randomizers.counted_words import written_out
from dpstream.randomizers.dummies import ClusteredDummies, Dummies
from dpstream.randomizers.randomness import seeded_generator

pytestmark = pytest.mark.slow

EPSILON, DELTA = 1.0, 5e-3
ROWS = 2
HASHES = 1024
CLUSTER_DELTA = 5e-3
TARGETS = 100_000
MINIMUM = 50
FALSE_ALARM = 1e-11
NEXT_TO_NONE = 1e-9

Counts: TypeAlias = NDArray[np.int64]
"""Of the cells of both items, shape (targets, 2 items, cells)."""

View: TypeAlias = Callable[[int, int], Counts]
"""What is seen of targets with the first item (0) or the second one (1), and a key of the draw."""


def law_of_targets(dummies: DummyLaw = "poisson", *, share: float = 1.0) -> CountMinLaw:
    """The law of a job of one user with either of two items, repeated for all targets.

    Args:
        dummies: by which law.
        share: of the contributors whose dummies are seen.
    """
    # Two items of a histogram are what one item is in two rows: so many messages, all apart.
    parameters = CountMinParameters(
        EPSILON, DELTA, ("a0", "a1", "b0", "b1"), ROWS, rows=1, dummies=dummies
    )
    law = calibrate(parameters, 2, MINIMUM)
    assert isinstance(law.code, HashedRows)
    assert law.code.direct
    # Whoever is a target here is a contributor, too: it takes all of them for the noise of a cell.
    noise = replace(law.noise, minimum=TARGETS, mean=law.noise.mean * share)
    return replace(law, code=HashedRows.histogram(2 * ROWS * TARGETS), noise=noise)


def sent(devices: CountMin, epoch: int, second: int, rng: np.random.Generator) -> Counts:
    """The counts of an epoch in which all targets hold the same of their two items."""
    first = 1 + 2 * ROWS * np.arange(TARGETS)[:, None] + ROWS * second
    words = written_out(devices.report(epoch, first + np.arange(ROWS), None, rng))
    return np.bincount(words[:, 0], minlength=2 * ROWS * TARGETS).reshape(TARGETS, 2, ROWS)


def enrolled(law: CountMinLaw) -> CountMin:
    devices = CountMin(law)
    devices.enrol(TARGETS, seeded_generator(0))
    return devices


def as_promised(second: int, key: int) -> Counts:
    return sent(enrolled(law_of_targets()), 1, second, seeded_generator(1, key))


def with_half_the_noise(second: int, key: int) -> Counts:
    return sent(enrolled(law_of_targets(share=0.5)), 1, second, seeded_generator(2, key))


def kept_by_sender(second: int, key: int) -> Counts:
    """Without a shuffle the dummies of the others hide nothing."""
    return sent(enrolled(law_of_targets(share=1 / MINIMUM)), 1, second, seeded_generator(3, key))


@dataclass(frozen=True, eq=False)
class RowForgotten(Dummies):
    """Dummies of which those to one row are lost."""

    whole: Dummies

    @property
    def mean(self) -> float:
        return self.whole.mean

    def rarity(self, number: float, contributors: int) -> float:
        return self.whole.rarity(number, contributors)

    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        drawn = self.whole.draw(contributors, cells, rng)
        kept: NDArray[np.uint32] = drawn[drawn % ROWS == 0]
        return kept

    def counts(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.bincount(self.draw(contributors, cells, rng), minlength=cells)


def with_a_row_forgotten(second: int, key: int) -> Counts:
    devices = enrolled(law_of_targets())
    assert devices._dummies is not None
    devices._dummies = RowForgotten(devices._dummies)
    return sent(devices, 1, second, seeded_generator(4, key))


def change_of(second: int, key: int, *, reused: bool) -> Counts:
    """By how much counts have changed since an epoch at which all targets held the first item."""
    devices = enrolled(law_of_targets())
    before = sent(devices, 1, 0, seeded_generator(5, key))
    after = sent(devices, 2, second, seeded_generator(5 if reused else 6, key))
    # As counts again: ten times the noise is more than ever comes.
    return after - before + 10_000


def with_new_noise_each_epoch(second: int, key: int) -> Counts:
    return change_of(second, key, reused=False)


def with_the_blanket_reused(second: int, key: int) -> Counts:
    return change_of(second, key, reused=True)


@pytest.mark.parametrize("view", [as_promised, with_new_noise_each_epoch])
def test_attacks_on_the_promised_noise_spend_at_most_delta(view: View) -> None:
    at_least, found = delta_of(view)
    assert at_least <= DELTA
    # As much as may be lost is lost, and seen: the attack is a good one.
    if view is as_promised:
        assert found > 0.75 * DELTA


@pytest.mark.parametrize(
    "view",
    [
        with_half_the_noise,
        with_a_row_forgotten,
        with_the_blanket_reused,
        kept_by_sender,
    ],
)
def test_attacks_on_wrong_noise_spend_more_than_delta(view: View) -> None:
    at_least, _ = delta_of(view)
    assert at_least > 1.5 * DELTA


def test_the_shuffle_stage_hides_as_much_as_contributors_do() -> None:
    def view(second: int, key: int) -> Counts:
        law, rng = law_of_targets("shuffle"), seeded_generator(7, key)
        real = sent(enrolled(law), 1, second, rng)
        stage = CountMin.stage_dummies(law)
        assert stage is not None
        dummies = written_out(stage(1, rng))[:, 0]
        return real + np.bincount(dummies, minlength=real.size).reshape(real.shape)

    at_least, found = delta_of(view)
    assert at_least <= DELTA
    assert found > 0.75 * DELTA


def test_clusters_are_seen_through_where_every_message_has_its_own_hash() -> None:
    """Real messages are single ones; copies of a dummy are not, and so hide nothing.

    The noise of either item is as large as it has to be. Nothing that is shown by how messages
    differ is allowed for.
    """
    noise = negative_binomial_for_rows(EPSILON, CLUSTER_DELTA, 1, variance_factor=4.0)

    def all_messages(second: int, key: int) -> Counts:
        rng = seeded_generator(8, key)
        words = TARGETS * 2 * HASHES
        clusters = ClusteredDummies(words, noise.shape / HASHES, noise.mean / HASHES)
        dummies = clusters.draw(1, words, rng).astype(np.int64)
        real = (2 * np.arange(TARGETS) + second) * HASHES + rng.integers(0, HASHES, TARGETS)
        return np.sort(np.concatenate([dummies, real]))

    def whatever_the_hash(second: int, key: int) -> Counts:
        seen = all_messages(second, key) // HASHES
        return np.bincount(seen, minlength=2 * TARGETS).reshape(TARGETS, 2, 1)

    def single_ones(second: int, key: int) -> Counts:
        seen, copies = np.unique(all_messages(second, key), return_counts=True)
        single = seen[copies == 1] // HASHES
        return np.bincount(single, minlength=2 * TARGETS).reshape(TARGETS, 2, 1)

    kept, found = delta_of(whatever_the_hash)
    assert kept <= CLUSTER_DELTA
    assert found > 0.5 * CLUSTER_DELTA
    caught, _ = delta_of(single_ones)
    assert caught > 1.5 * CLUSTER_DELTA


@cache
def delta_of(view: View) -> tuple[float, float]:
    """What goes with epsilon: a bound that is wrong with probability `FALSE_ALARM`, and a guess."""
    one, other = (evidence(view(second, 1)) for second in (0, 1))
    limits = np.unique(np.quantile(one, np.linspace(0, 1, 400), method="lower"))
    told = [float((one >= x).mean() - math.exp(EPSILON) * (other >= x).mean()) for x in limits]
    limit = limits[int(np.argmax(told))]
    # Where to draw the line was learned from one half, so the other half is what counts.
    right, wrong = (int(np.count_nonzero(evidence(view(second, 2)) >= limit)) for second in (0, 1))
    tail = FALSE_ALARM / 2
    least = float(stats.beta.ppf(tail, right, TARGETS - right + 1)) if right else 0.0
    most = float(stats.beta.isf(tail, wrong + 1, TARGETS - wrong)) if wrong < TARGETS else 1.0
    found = (right - math.exp(EPSILON) * wrong) / TARGETS
    return least - math.exp(EPSILON) * most, found


def evidence(counts: Counts) -> NDArray[np.float64]:
    """How much speaks for the first item; with Poisson noise of any mean, the likelihood ratio.

    A raised cell of count z is z / mean times as likely as one that is not.
    """
    logs = np.log(np.maximum(counts, NEXT_TO_NONE)).sum(axis=2)
    return np.asarray(logs[:, 0] - logs[:, 1], np.float64)
