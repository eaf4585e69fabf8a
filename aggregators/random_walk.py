"""Shrink estimates of value_stream: biased, but closer to the ground truth if counts change little.

The unbiased recursion fully accepts every step that the symbols suggest. Here the count is modeled
as a random walk whose steps all have the same variance. A Kalman filter weighs an epoch's reports
against earlier ones; a smoother also weighs them against later ones. The variance is estimated from
the reports: the filter runs for a grid of variances, each weighted by its likelihood given the
reports so far (empirical Bayes). At first, all variances up to that of the noise are equally
likely, so early estimates are shrunk little.

A sudden change is not fully accepted. These estimates are therefore shown alongside the unbiased
ones, labeled, and without intervals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Variances of a step, as multiples of the smallest variance of the noise of an epoch.
_GRID = np.logspace(-6, 2, 41)
# Logarithm of a prior density that is flat below 1, on logarithmically spaced points.
_PRIOR = np.log(np.minimum(_GRID, 1.0))


class Shrunk(NamedTuple):
    """Biased estimates in users, shape (epochs,) each.

    Attributes:
        online: Estimates from the reports up to each epoch.
        offline: Estimates from all reports.
    """

    online: Array
    offline: Array


def random_walk(
    received: Array, variances: Array, first_variance: float, *, boost: float, decay: float
) -> Shrunk:
    """Filter and smooth counts to which devices add a decaying boost for each change.

    A step d turns the count x into x + d, and the sum of boosts F into decay F + boost d. The
    reports estimate x + F. Both x and F are 0 before the first epoch, whose step is not part of the
    walk. The smoother is that of de Jong (1988), which inverts no matrix.

    Args:
        received: x + F in users, shape (epochs,); ignored in epochs without reports.
        variances: Variance of the received noise, shape (epochs,); inf in epochs without reports.
        first_variance: Variance of the step to epoch 1: large enough to be almost uninformative.
        boost: a, the boost at the epoch of a change.
        decay: b, the fraction of a boost left one epoch later.
    """
    epochs, known = len(received), np.isfinite(variances)
    if not known.any():
        return Shrunk(np.zeros(epochs), np.zeros(epochs))
    steps = _GRID * float(variances[known].min())
    kernel = np.array([1.0, boost])
    moves = np.diag([1.0, decay])
    state = np.zeros((len(steps), 2))
    covariance = np.zeros((len(steps), 2, 2))
    likelihoods = _PRIOR.copy()
    predicted, spreads = np.zeros((epochs, *state.shape)), np.zeros((epochs, *covariance.shape))
    surprises, gains = np.zeros((epochs, len(steps))), np.zeros((epochs, *state.shape))
    totals = np.full((epochs, len(steps)), np.inf)
    online = np.zeros(epochs)
    for epoch in range(epochs):
        step = np.full(len(steps), first_variance) if epoch == 0 else steps
        state = state @ moves
        covariance = moves @ covariance @ moves + step[:, None, None] * np.outer(kernel, kernel)
        predicted[epoch], spreads[epoch] = state, covariance
        if known[epoch]:
            towards = covariance.sum(axis=2)
            totals[epoch] = towards.sum(axis=1) + variances[epoch]
            surprises[epoch] = received[epoch] - state.sum(axis=1)
            gains[epoch] = towards / totals[epoch][:, None]
            state = state + gains[epoch] * surprises[epoch][:, None]
            covariance = covariance - gains[epoch][:, :, None] * towards[:, None, :]
            squares = np.square(surprises[epoch]) / totals[epoch]
            likelihoods -= 0.5 * (np.log(totals[epoch]) + squares)
        weights = _shares(likelihoods)
        online[epoch] = weights @ state[:, 0]
    offline = np.zeros(epochs)
    later = np.zeros_like(state)
    for epoch in reversed(range(epochs)):
        # Information of this and later epochs beyond the prediction: h e / S + (I - K h')' later.
        information = surprises[epoch] / totals[epoch] - (gains[epoch] * later).sum(axis=1)
        later = later + information[:, None]
        values = predicted[epoch, :, 0] + (spreads[epoch, :, 0] * later).sum(axis=1)
        offline[epoch] = weights @ values
        later = later @ moves
    return Shrunk(online, offline)


def _shares(likelihoods: Array) -> Array:
    """Return normalized weights from log likelihoods, shape (grid,)."""
    weights: Array = np.exp(likelihoods - likelihoods.max())
    weights /= weights.sum()
    return weights
