"""How much noise the cells of a shuffled frequency oracle need.

A user holds up to k items, and sends one message for every item and row: it raises one cell. Two
neighbours differ in all items of one user, so that in each row and for each item one cell has one
message less and another one has one more: 2 tau k shifted cells (Algorithm 2 of "On the Power of
Multiple Anonymous Messages", Ghazi, Golowich, Kumar, Pagh, Velingker 2019, where the constants are
31 to 874 times larger). The noise must be there without those who are absent or do not take part,
so it is sized on the least number of contributors.

Some cells may be raised by every item, whichever it is. Exchanging a user's items for others does
not shift such cells; only exchanging them for none does, and then all shifts have one direction. So
there are two kinds of neighbours to guard against, and neither is always the worse one: with large
epsilon all that matters is that a cell may be left without a dummy, and one direction has one cell
more.
"""

from __future__ import annotations

import math

from dpstream.randomizers.accounting.cell_noise import (
    BinomialNoise,
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.clustered_noise import fewest_dummies
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    check_target,
    epsilon_spent,
    least_mean,
)

VARIANCE_FACTOR = 1.2
"""How much more variance than Poisson noise negative-binomial noise may have by default."""


def row_shifts(noise: CellNoise, rows: int, items: int = 1, epochs: int = 1) -> list[ShiftedCells]:
    """The cells in which a user's items can be told apart.

    Args:
        noise: of every cell.
        rows: tau, each of which has a message for every item.
        items: k, the most that a user holds.
        epochs: in how many the user takes part, with new noise in each.

    Raises:
        ValueError: one of these is below 1.

    >>> [part.shift for part in row_shifts(PoissonNoise(50.0), rows=5)]
    [1, -1]
    """
    return [ShiftedCells(noise, shift, _messages(rows, items, epochs)) for shift in (1, -1)]


def poisson_for_rows(
    epsilon: float, delta: float, rows: int, items: int = 1, epochs: int = 1
) -> PoissonNoise:
    """The least Poisson noise that is (epsilon, delta)-private; its mean is lambda.

    Raises:
        ValueError: something is out of range.

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
    """The least noise of dummies that every contributor sends to each cell with a probability.

    Args:
        epsilon: wanted.
        delta: wanted.
        contributors: how many there are at least.
        rows: tau.
        items: k, the most that a user holds.
        epochs: in how many the user takes part.

    Raises:
        ValueError: something is out of range, or even dummies with probability 1/2, which hide
            most, are not enough; the message says what is.

    >>> noise = binomial_for_rows(1.0, 1e-6, contributors=1000, rows=5)
    >>> round(noise.mean, 1), round(noise.variance, 1)
    (233.8, 179.2)
    """
    messages = _messages(rows, items, epochs)
    most = BinomialNoise(contributors, 0.5)
    if epsilon_spent(row_shifts(most, rows, items, epochs), delta) > epsilon:
        needed = math.ceil(4 * poisson_for_rows(epsilon, delta, rows, items, epochs).mean)
        raise ValueError(
            f"{contributors} contributors are too few for at most one dummy of each in a cell: "
            f"about {needed} are needed, or Poisson dummies"
        )

    def parts(odds: float) -> list[ShiftedCells]:
        # Runs from no noise at 0 to the most there can be at infinity.
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
    """Negative-binomial noise with the fewest dummies for a bounded loss of accuracy.

    Args:
        epsilon: wanted.
        delta: wanted.
        rows: tau.
        items: k, the most that a user holds.
        epochs: in how many the user takes part.
        variance_factor: how much more variance than that of `poisson_for_rows` is allowed.

    Raises:
        ValueError: something is out of range.

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
    """Lambda as published: gamma n >= 90 tau^2 k^2 ln(2 tau k / delta) / epsilon^2.

    Also k <= epsilon gamma n / (6 tau k) (Lemma 4.10).

    Raises:
        ValueError: something is out of range.

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
    """Gamma of Algorithm 2: with which everybody sends a dummy to a cell.

    Raises:
        ValueError: it would be above 1; the message says how many contributors it takes.

    >>> round(published_probability(1.0, 1e-6, contributors=100_000, rows=5), 4)
    0.3627
    """
    mean = published_mean(epsilon, delta, rows, items)
    if mean > contributors:
        raise ValueError(
            f"the published calibration sends dummies with a probability of "
            f"{mean / contributors:.3g}, above 1: it needs at least {math.ceil(mean)} contributors"
        )
    return mean / contributors


def _messages(rows: int, items: int, epochs: int) -> int:
    for name, number in (("rows", rows), ("items", items), ("epochs", epochs)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} is {number!r}, must be a whole number, at least 1")
    return rows * items * epochs


def _normal_guess(epsilon: float, delta: float, messages: int) -> float:
    check_target(epsilon, delta)
    return 2 * messages * (math.log(1 / delta) / epsilon**2 + 1 / epsilon)


def poisson_for_code(
    epsilon: float, delta: float, messages: int, shared: int, items: int = 1
) -> PoissonNoise:
    """The least Poisson noise with which one epoch of a cell code is (epsilon, delta)-private.

    Over several epochs a user may do now the one and now the other; for these
    `dpstream.randomizers.accounting.shuffled_oracles.row_shifts` with all messages as rows is a
    bound.

    Args:
        epsilon: wanted.
        delta: wanted.
        messages: the most cells of an item.
        shared: how many of them are those of every item, and sent once by whoever holds any.
        items: k, the most that a user holds.

    Raises:
        ValueError: something is out of range.

    >>> round(poisson_for_code(1.0, 1e-6, messages=6, shared=1).mean, 1)  # as for 5 rows
    180.3
    >>> round(poisson_for_code(4.0, 1e-6, messages=3, shared=1).mean, 1)  # 2 rows: 14.5
    14.9
    """
    if not 0 <= shared < messages:
        raise ValueError(f"{shared} of {messages} messages are shared, must be some but not all")
    exchanged = poisson_for_rows(epsilon, delta, messages - shared, items).mean
    if not shared:
        return PoissonNoise(exchanged)
    most = (messages - shared) * items + shared

    def without_items(mean: float) -> list[ShiftedCells]:
        return [ShiftedCells(PoissonNoise(mean), 1, most)]

    return PoissonNoise(max(exchanged, least_mean(epsilon, delta, without_items, exchanged)))
