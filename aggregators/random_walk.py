"""Estimates of value_stream, shrunk: biased, and nearer the truth where little changes.

The unbiased recursion believes every step that the letters tell of. Here the count is taken to walk
at random instead, by steps of one variance: a Kalman filter weighs what an epoch says against what
the ones before have said, and a smoother also what later ones say. How large the steps are is told
by what has come in: a grid of variances is followed at once, each weighted by how likely it makes
what has come in so far (empirical Bayes). Before anything has, variances up to that of the noise
are all alike likely, so that little is shrunk while little is known.

A sudden change is not believed in full. So these are shown beside the unbiased estimates, labelled,
and without intervals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Variances of a step, as multiples of the smallest variance of the noise of an epoch.
_GRID = np.logspace(-6, 2, 41)
# A density that is flat below 1, on points that lie the denser the smaller they are.
_PRIOR = np.log(np.minimum(_GRID, 1.0))


class Shrunk(NamedTuple):
    """Biased estimates in users, shape (epochs,) each.

    Attributes:
        online: from what had come in up to each epoch.
        offline: from everything.
    """

    online: Array
    offline: Array


def random_walk(
    received: Array, variances: Array, first_variance: float, *, boost: float, decay: float
) -> Shrunk:
    """Filter and smooth counts of devices that add a boost for each change, and let it decay.

    The count x and what devices add to it, F, go on as x + d and decay F + boost d, where d is the
    step; x + F is received. Both are 0 before the first epoch, whose step is not one of the walk.
    The smoother is that of de Jong (1988), which inverts nothing.

    Args:
        received: x + F in users, shape (epochs,); anything where nothing has come in.
        variances: of its noise, shape (epochs,); inf where nothing has come in.
        first_variance: of the step to the first epoch: so large that it says next to nothing.
        boost: a.
        decay: b.
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
        # What this epoch and later ones say beyond the prediction: h e / S + (I - K h')' later.
        told = surprises[epoch] / totals[epoch] - (gains[epoch] * later).sum(axis=1)
        later = later + told[:, None]
        values = predicted[epoch, :, 0] + (spreads[epoch, :, 0] * later).sum(axis=1)
        offline[epoch] = weights @ values
        later = later @ moves
    return Shrunk(online, offline)


def _shares(likelihoods: Array) -> Array:
    """Weights from logarithms of likelihoods, shape (grid,), that add up to 1."""
    weights: Array = np.exp(likelihoods - likelihoods.max())
    weights /= weights.sum()
    return weights
