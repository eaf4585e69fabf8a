"""The shuffled tree: how many messages a stream has at most, and the best shares of noise."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest

from aggregators.tree_smoothing import prefix_variances
from randomizers.accounting.cell_noise import NegativeBinomialNoise, PoissonNoise
from randomizers.accounting.counting_tree import (
    best_poisson,
    equal_poisson,
    interval_variances,
    online_error,
    order_messages,
    tree_shifts,
)
from randomizers.accounting.shifted_noise import delta_spent
from tests.support.dyadic_pieces import dyadic_pieces

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("last_epoch", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("changes", [1, 2, 3])
def test_no_stream_has_more_messages_of_an_order(last_epoch: int, changes: int) -> None:
    claimed = order_messages(last_epoch, changes)
    most = [0] * len(claimed)
    for stream in product((0, 1), repeat=last_epoch):
        steps = [after - before for before, after in pairwise((0, *stream))]
        if sum(map(abs, steps)) > changes:
            continue
        for order in range(len(claimed)):
            sums = np.add.reduceat(steps, np.arange(0, last_epoch, 1 << order))
            most[order] = max(most[order], int(np.count_nonzero(sums[: last_epoch >> order])))
    assert most == list(claimed)


@pytest.mark.parametrize("last_epoch", [1, 2, 3, 8, 64, 65, 170])
def test_every_prefix_is_made_of_intervals_that_are_sent(last_epoch: int) -> None:
    """Two halves stand for the one interval of all epochs, where that is a power of two."""
    orders = len(order_messages(last_epoch, 1))
    for epoch in range(1, last_epoch + 1):
        assert all(order < orders or epoch == last_epoch for order, _ in dyadic_pieces(epoch))
    assert order_messages(last_epoch, 2)[-1] == min(2, last_epoch >> (orders - 1)) >= 1


def test_horizons_that_are_no_power_of_two() -> None:
    assert sum(order_messages(170, 2)) == 15
    assert sum(order_messages(170, 4)) == 27


@pytest.mark.parametrize(("last_epoch", "changes"), [(64, 4), (170, 4), (256, 16)])
def test_no_other_shares_of_the_noise_are_better(last_epoch: int, changes: int) -> None:
    messages = order_messages(last_epoch, changes)
    best = best_poisson(1.0, 1e-6, last_epoch, changes)
    assert delta_spent(tree_shifts(best, messages), 1.0) <= 1e-6
    error = online_error(interval_variances(best, changes), last_epoch)
    equal = [equal_poisson(1.0, 1e-6, last_epoch, changes)] * len(messages)
    assert error < 0.98 * online_error(interval_variances(equal, changes), last_epoch)
    rng = np.random.default_rng(last_epoch)
    for size in (0.03, 0.3):
        for _ in range(20):
            other = [PoissonNoise(noise.mean * math.exp(size * rng.normal())) for noise in best]
            # As much less noise in all as leaves it private, by the same approximation.
            spent = sum(m / n.mean for m, n in zip(messages, other, strict=True))
            allowed = sum(m / n.mean for m, n in zip(messages, best, strict=True))
            scaled = [PoissonNoise(noise.mean * spent / allowed) for noise in other]
            assert online_error(interval_variances(scaled, changes), last_epoch) > error * (
                1 - 1e-5
            )


def test_privacy_is_spent_as_the_shares_are_optimised() -> None:
    """Exchanging noise between orders at a constant sum of messages over means costs nothing."""
    messages = order_messages(64, 4)
    best = best_poisson(1.0, 1e-6, 64, 4)
    equal = equal_poisson(1.0, 1e-6, 64, 4)
    spent = sum(m / noise.mean for m, noise in zip(messages, best, strict=True))
    assert spent == pytest.approx(sum(messages) / equal.mean, rel=0.002)


@pytest.mark.parametrize(("last_epoch", "changes"), [(64, 4), (170, 4)])
def test_online_errors_are_those_of_simulated_noise(last_epoch: int, changes: int) -> None:
    noises = best_poisson(1.0, 1e-6, last_epoch, changes)
    variances = interval_variances(noises, changes)
    rng = np.random.default_rng(5)
    runs = 2000
    combined: list[np.ndarray[tuple[int, int], np.dtype[np.float64]]] = []
    spread: list[float] = []
    for order, variance in enumerate(variances):
        means = noises[order].mean
        cells = rng.poisson(means, (2, runs, last_epoch >> order))
        own = (cells[0] - cells[1]).astype(np.float64)
        if order:
            halves = combined[-1][:, : 2 * own.shape[1]].reshape(runs, -1, 2).sum(axis=2)
            share = 2 * spread[-1] / (variance + 2 * spread[-1])
            own = share * own + (1 - share) * halves
            variance = share**2 * variance + (1 - share) ** 2 * 2 * spread[-1]
        combined.append(own)
        spread.append(variance)
    combined.append(combined[-1][:, ::2] + combined[-1][:, 1::2] if last_epoch == 64 else own)
    squares = [
        np.square(sum(combined[order][:, index - 1] for order, index in dyadic_pieces(epoch)))
        for epoch in range(1, last_epoch + 1)
    ]
    error = online_error(variances, last_epoch)
    assert math.sqrt(np.mean(squares)) == pytest.approx(error, rel=0.03)


# Printed errors of the reference; those of the full least squares are 5 to 8 % smaller.
@pytest.mark.parametrize(
    ("last_epoch", "changes", "equal", "best"),
    [(64, 4, 44.3, 43.3), (256, 2, 40.1, 39.9), (256, 4, 54.9, 53.6), (170, 4, 48.6, math.inf)],
)
def test_offline_errors_are_at_most_those_of_the_reference(
    last_epoch: int, changes: int, equal: float, best: float
) -> None:
    orders = len(order_messages(last_epoch, changes))
    same = [equal_poisson(1.0, 1e-6, last_epoch, changes)] * orders
    optimised = best_poisson(1.0, 1e-6, last_epoch, changes)
    for noises, printed in ((same, equal), (optimised, best)):
        own = interval_variances(noises, changes)
        own += [math.inf] * (last_epoch.bit_length() - orders)
        variances, _ = prefix_variances(
            [np.full(last_epoch >> order, each) for order, each in enumerate(own)]
        )
        error = math.sqrt(variances.mean())
        assert error < printed
        assert error < online_error(interval_variances(noises, changes), last_epoch)


def test_one_change_needs_no_minus_cells() -> None:
    noises = [PoissonNoise(10.0), NegativeBinomialNoise(10.0, 10.0)]
    assert interval_variances(noises, 1) == [10.0, 20.0]
    assert interval_variances(noises, 2) == [20.0, 40.0]


@pytest.mark.parametrize(("last_epoch", "changes"), [(0, 1), (1, 0), (2.0, 1), (1, -1)])
def test_there_must_be_epochs_and_changes(last_epoch: int, changes: int) -> None:
    with pytest.raises(ValueError, match="must be a whole number, at least 1"):
        order_messages(last_epoch, changes)
