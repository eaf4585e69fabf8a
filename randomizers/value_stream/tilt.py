"""How a device's stream tilts the letters that it draws.

A device that is not noise draws as if Brownian motion, run by a clock that its stream drives, were
to end far above where it began. `reach` is the probability that it does, a martingale in what was
drawn so far: so the product of all tilts is at most 1 over the first one, whatever the stream.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.value_stream.lattice import (
    NOWHERE,
    STEP,
    TAIL,
    WEIGHT_BITS,
    letters_at,
    tail_box,
    tail_letters_at,
)
from dpstream.randomizers.value_stream.normal import distribution_function

FLOOR = 2.0**-20
"""The least that `reach` is taken for, which bounds how often letters have to be drawn again."""

# Of a device, in a round.
_MOST_TRIES = 64

_TAIL_STEPS = round(TAIL / STEP)


def reach(sums: NDArray[np.float64], left: NDArray[np.float64], goal: float) -> NDArray[np.float64]:
    """The probability of ending above the goal: psi(s, R) = max(Phi((s - goal) / sqrt R), 2^-20).

    Args:
        sums: where devices are, shape (devices,).
        left: of their clocks, positive, the same shape.
        goal: theta times the square root of the whole clock.
    """
    return np.maximum(distribution_function((sums - goal) / np.sqrt(left)), FLOOR)


def draw_letters(count: int, rng: np.random.Generator) -> NDArray[np.int16]:
    """Letters of the base law, less 80, shape (count,); a random word is spent on each."""
    return letters_at(_words(count, rng))


def draw_tilted_letters(
    steps: NDArray[np.float64],
    sums: NDArray[np.float64],
    left: NDArray[np.float64],
    goal: float,
    rng: np.random.Generator,
) -> NDArray[np.int16]:
    """Letters z with probability in proportion to q(z) psi(s + u z, R), by rejection.

    Letters of the body, z sign(u) <= 4, are weighed against the bound B = psi(s + 4|u|, R), those
    of the tail against 1. So a place among the weights of the tail is proposed with probability
    Q / (Q + B), where Q is the box around them (`lattice.tail_box`) over all weights; and else one
    among those of all letters, of which those in the tail are not taken. What is proposed is
    accepted with probability psi over its bound. These probabilities are whole numbers over 2^64,
    rounded down.

    Random words are spent in rounds, on all devices that have no letter yet: in the first round on
    one try of each, and in every other on twice as many as in the one before, up to 64. All words
    of a round that choose between body and tail come first, then all places of letters, then all
    that accept; of each kind, those of a device stand together. A device takes its first try that
    is accepted.

    Args:
        steps: u, by how much a letter moves a device, shape (devices,).
        sums: s, where devices are.
        left: R, of their clocks after this epoch, positive.
        goal: as of `reach`.
        rng: the randomness.

    Returns:
        letters less 80, shape (devices,).
    """
    bounds = reach(sums + TAIL * np.abs(steps), left, goal)
    choices = tail_thresholds(bounds)
    letters = np.zeros(len(steps), np.int16)
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
        letters[pending[taken]] = proposed[taken * tries + first[taken]]
        pending = np.delete(pending, taken)
        tries = min(2 * tries, _MOST_TRIES)
    return letters


def tail_thresholds(bounds: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Below which of 2^64 words the tail is proposed: 2^64 Q / (Q + B), rounded down."""
    box = tail_box() / (1 << WEIGHT_BITS)
    return np.ldexp(box / (box + bounds), 64).astype(np.uint64)


def accepts(shares: NDArray[np.float64], words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether words accept proposals: with probability 2^64 share, rounded down, over 2^64."""
    certain = shares >= 1
    thresholds = np.ldexp(np.where(certain, 0.0, shares), 64).astype(np.uint64)
    return certain | (words < thresholds)


def _proposed(
    in_tail: NDArray[np.bool_], places: NDArray[np.uint64], steps: NDArray[np.float64]
) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """What is proposed, and whether it lies where it was to be proposed from."""
    towards = np.where(steps < 0, -1, 1).astype(np.int16)
    letters = letters_at(places)
    possible = letters * towards <= _TAIL_STEPS
    tail = np.flatnonzero(in_tail)
    letters[tail] = towards[tail] * tail_letters_at(places[tail])
    possible[tail] = letters[tail] != NOWHERE
    return letters, possible


def _words(count: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    return rng.integers(0, 1 << 64, count, dtype=np.uint64)
