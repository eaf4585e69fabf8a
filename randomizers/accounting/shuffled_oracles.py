"""Noise for the cells of a shuffled frequency oracle.

A user has up to k items. For every item, the user sends one message in each of tau rows, and each
message raises a cell. Two neighbors differ in all items of one user. So for each row and item, one
cell has one message fewer and another has one more: 2 tau k shifted cells (Algorithm 2 of the
reference, whose constants are 31 to 874 times larger). The noise must suffice without the absent
users, so it is sized for the minimum number of contributors.

Some codes have cells that every item raises. Replacing a user's items does not shift these cells.
Removing all items does, and then all shifts have the same direction. So there are two kinds of
neighbors to protect, and neither is always the worst case: with a large epsilon the only risk is a
cell without dummies, and removal shifts more cells in one direction.

Reference: Ghazi, Golowich, Kumar, Pagh, Velingker, *On the Power of Multiple Anonymous Messages*,
2019.
"""

from __future__ import annotations

import math

from dpstream.randomizers.accounting.cell_noise import (
    BinomialNoise,
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    check_target,
    epsilon_spent,
    fewest_dummies,
    least_mean,
)

VARIANCE_FACTOR = 1.2
"""Default maximum variance of negative-binomial noise, relative to that of Poisson noise."""


def row_shifts(noise: CellNoise, rows: int, items: int = 1, epochs: int = 1) -> list[ShiftedCells]:
    """Return the cells that distinguish two sets of a user's items.

    Each of `rows` (tau) rows has a message for every item. A user has at most `items` (k) items and
    participates in `epochs` epochs, with new noise in each.

    >>> [part.shift for part in row_shifts(PoissonNoise(50.0), rows=5)]
    [1, -1]
    """
    return [ShiftedCells(noise, shift, _messages(rows, items, epochs)) for shift in (1, -1)]


def poisson_for_rows(
    epsilon: float, delta: float, rows: int, items: int = 1, epochs: int = 1
) -> PoissonNoise:
    """Return the least Poisson noise that makes a user's messages (epsilon, delta)-private.

    >>> round(poisson_for_rows(1.0, 1e-6, rows=5).mean, 1)
    180.3
    """
    return PoissonNoise(
        least_mean(
            epsilon,
            delta,
            lambda mean: row_shifts(PoissonNoise(mean), rows, items, epochs),
            guess=_normal_guess(epsilon, delta, _messages(rows, items, epochs)),
        )
    )


def binomial_for_rows(
    epsilon: float, delta: float, contributors: int, rows: int, items: int = 1, epochs: int = 1
) -> BinomialNoise:
    """Return the least sufficient binomial noise: at most one dummy per contributor and cell.

    `contributors` is the smallest allowed number; other arguments are as for `row_shifts`. Raises
    `ValueError` if even dummies with probability 1/2, which have the most variance, do not suffice.

    >>> noise = binomial_for_rows(1.0, 1e-6, contributors=1000, rows=5)
    >>> round(noise.mean, 1), round(noise.variance, 1)
    (233.8, 179.2)
    """
    messages = _messages(rows, items, epochs)
    most = BinomialNoise(contributors, 0.5)
    if epsilon_spent(row_shifts(most, rows, items, epochs), delta) > epsilon:
        needed = math.ceil(4 * poisson_for_rows(epsilon, delta, rows, items, epochs).mean)
        raise ValueError(
            f"got {contributors} contributors; expected at least about {needed}, because each "
            "adds at most one dummy to a cell. Use more contributors or Poisson dummies"
        )

    def parts(odds: float) -> list[ShiftedCells]:
        # The probability grows from 0, without noise, to 1/2, with the most noise.
        probability = odds / (1 + 2 * odds)
        return row_shifts(BinomialNoise(contributors, probability), rows, items, epochs)

    guess = _normal_guess(epsilon, delta, messages) / contributors
    odds = least_mean(epsilon, delta, parts, guess)
    return BinomialNoise(contributors, odds / (1 + 2 * odds))


def negative_binomial_for_rows(
    epsilon: float,
    delta: float,
    rows: int,
    items: int = 1,
    epochs: int = 1,
    variance_factor: float = VARIANCE_FACTOR,
) -> NegativeBinomialNoise:
    """Return the negative-binomial noise with the fewest dummies for a bounded loss of accuracy.

    >>> noise = negative_binomial_for_rows(1.0, 1e-6, rows=10)
    >>> noise.shape, round(noise.mean, 1)
    (26.0, 93.3)
    """
    return fewest_dummies(
        epsilon,
        delta,
        lambda noise: row_shifts(noise, rows, items, epochs),
        poisson_for_rows(epsilon, delta, rows, items, epochs).mean,
        variance_factor,
    )


def published_mean(epsilon: float, delta: float, rows: int, items: int = 1) -> float:
    """Return lambda as in the paper: gamma n >= 90 tau^2 k^2 ln(2 tau k / delta) / epsilon^2.

    The paper also requires k <= epsilon gamma n / (6 tau k) (Lemma 4.10).

    >>> round(published_mean(1.0, 1e-6, rows=5))
    36266
    """
    check_target(epsilon, delta)
    messages = _messages(rows, items, epochs=1)
    smooth = 90 * messages**2 * math.log(2 * messages / delta) / epsilon**2
    return max(smooth, 6 * messages * items / epsilon)


def published_probability(
    epsilon: float, delta: float, contributors: int, rows: int, items: int = 1
) -> float:
    """Return gamma of Algorithm 2, the probability that a contributor adds a dummy to a cell.

    >>> round(published_probability(1.0, 1e-6, contributors=100_000, rows=5), 4)
    0.3627
    """
    mean = published_mean(epsilon, delta, rows, items)
    if mean > contributors:
        raise ValueError(
            f"got {contributors} contributors; expected at least {math.ceil(mean)}, the minimum "
            "for the published calibration"
        )
    return mean / contributors


def _messages(rows: int, items: int, epochs: int) -> int:
    for name, number in (("rows", rows), ("items", items), ("epochs", epochs)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} is {number!r}; expected a positive integer")
    return rows * items * epochs


def _normal_guess(epsilon: float, delta: float, messages: int) -> float:
    check_target(epsilon, delta)
    return 2 * messages * (math.log(1 / delta) / epsilon**2 + 1 / epsilon)


def poisson_for_code(
    epsilon: float, delta: float, messages: int, shared: int, items: int = 1
) -> PoissonNoise:
    """Return the least (epsilon, delta)-private Poisson noise for one epoch of a cell code.

    `messages` is the maximum number of cells per item. Of these, `shared` are common to all items:
    a user with any item raises each of them once. A user has at most `items` (k) items. Over
    several epochs, users can replace items in some and remove them in others; `row_shifts` with all
    messages as rows bounds that loss.

    >>> round(poisson_for_code(1.0, 1e-6, messages=6, shared=1).mean, 1)  # as for 5 rows
    180.3
    >>> round(poisson_for_code(4.0, 1e-6, messages=3, shared=1).mean, 1)  # 2 rows: 14.5
    14.9
    """
    if not 0 <= shared < messages:
        raise ValueError(f"'shared' is {shared}; expected 0 to {messages - 1}")
    exchanged = poisson_for_rows(epsilon, delta, messages - shared, items).mean
    if not shared:
        return PoissonNoise(exchanged)
    most = (messages - shared) * items + shared

    def without_items(mean: float) -> list[ShiftedCells]:
        return [ShiftedCells(PoissonNoise(mean), 1, most)]

    return PoissonNoise(max(exchanged, least_mean(epsilon, delta, without_items, exchanged)))
