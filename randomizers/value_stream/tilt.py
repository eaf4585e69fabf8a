"""Draw symbols that are tilted by a device's stream.

An input-dependent device draws as if a Brownian motion ended above a threshold far above its start.
The time of the motion is the squared norm of the device's stream. `reach` is the probability of
that event, a martingale in the previous draws. So for any stream, the product of all tilts is at
most 1 divided by the first probability.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.value_stream.lattice import (
    NOWHERE,
    STEP,
    TAIL,
    WEIGHT_BITS,
    symbols_at,
    tail_box,
    tail_symbols_at,
)
from dpstream.randomizers.value_stream.normal import distribution_function

FLOOR = 2.0**-20
"""Minimum of `reach`, which bounds the number of redraws of symbols."""
# Maximum number of tries of a device in one round.
_MOST_TRIES = 64
_TAIL_STEPS = round(TAIL / STEP)


def reach(sums: NDArray[np.float64], left: NDArray[np.float64], goal: float) -> NDArray[np.float64]:
    """Return the probability of ending above the goal: psi = max(Phi((s - goal) / sqrt R), 2^-20).

    `sums` has the positions s of devices and `left` their remaining squared-norm budgets R, which
    must be positive; both have shape (devices,). `goal` is theta times the whole budget's root.
    """
    return np.maximum(distribution_function((sums - goal) / np.sqrt(left)), FLOOR)


def draw_symbols(count: int, rng: np.random.Generator) -> NDArray[np.int16]:
    """Draw symbols of the base distribution, minus 80."""
    return symbols_at(_words(count, rng))


def draw_tilted_symbols(
    steps: NDArray[np.float64],
    sums: NDArray[np.float64],
    left: NDArray[np.float64],
    goal: float,
    rng: np.random.Generator,
) -> NDArray[np.int16]:
    """Draw symbols z with probability proportional to q(z) psi(s + u z, R), by rejection.

    For symbols of the body (z sign(u) <= 4), psi is at most the bound B = psi(s + 4|u|, R). For
    symbols of the tail it is at most 1. Let Q be `lattice.tail_box` over the sum of all weights.
    With probability Q / (Q + B), a position in the tail box is proposed. Otherwise a position among
    the weights of all symbols is proposed, and rejected if its symbol is in the tail. A proposal is
    accepted with probability psi divided by its bound. These probabilities are rounded down to
    multiples of 2^-64.

    Random 64-bit integers are drawn in rounds, for all devices without a symbol. The first round
    has one try for each device; each later round has twice as many as the previous one, up to 64. A
    round first draws all integers that choose between body and tail, then all positions, then all
    integers that decide acceptance. Within each group, those of a device are consecutive. A device
    uses its first accepted try.

    `steps` are the displacements u of devices per unit of z, shape (devices,). `left` are the
    squared-norm budgets R after this epoch, which must be positive. Symbols are returned minus 80.
    """
    bounds = reach(sums + TAIL * np.abs(steps), left, goal)
    choices = tail_thresholds(bounds)
    symbols = np.zeros(len(steps), np.int16)
    pending, tries = np.arange(len(steps)), 1
    while len(pending):
        tried = np.repeat(pending, tries)
        in_tail = _words(len(tried), rng) < choices[tried]
        pulls = steps[tried]
        proposed, possible = _proposed(in_tail, _words(len(tried), rng), pulls)
        shares = reach(sums[tried] + pulls * (proposed * STEP), left[tried], goal)
        shares /= np.where(in_tail, 1.0, bounds[tried])
        accepted = (possible & accepts(shares, _words(len(tried), rng))).reshape(-1, tries)
        first = accepted.argmax(axis=1)
        taken = np.flatnonzero(accepted[np.arange(len(pending)), first])
        symbols[pending[taken]] = proposed[taken * tries + first[taken]]
        pending = np.delete(pending, taken)
        tries = min(2 * tries, _MOST_TRIES)
    return symbols


def tail_thresholds(bounds: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return 64-bit thresholds for proposing the tail: 2^64 Q / (Q + B), rounded down."""
    box = tail_box() / (1 << WEIGHT_BITS)
    return np.ldexp(box / (box + bounds), 64).astype(np.uint64)


def accepts(shares: NDArray[np.float64], words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    certain = shares >= 1
    thresholds = np.ldexp(np.where(certain, 0.0, shares), 64).astype(np.uint64)
    return certain | (words < thresholds)


def _proposed(
    in_tail: NDArray[np.bool_], places: NDArray[np.uint64], steps: NDArray[np.float64]
) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """Return the proposals, and whether each is in its intended part (body or tail)."""
    towards = np.where(steps < 0, -1, 1).astype(np.int16)
    symbols = symbols_at(places)
    possible = symbols * towards <= _TAIL_STEPS
    tail = np.flatnonzero(in_tail)
    symbols[tail] = towards[tail] * tail_symbols_at(places[tail])
    possible[tail] = symbols[tail] != NOWHERE
    return symbols, possible


def _words(count: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    return rng.integers(0, 1 << 64, count, dtype=np.uint64)
