"""How much noise cells need when some of them are raised by every item, whichever it is.

Exchanging a user's items for others does not shift such cells; only exchanging them for none does,
and then all shifts have one direction. So there are two kinds of neighbours to guard against, and
neither is always the worse one: with large epsilon all that matters is that a cell may be left
without a dummy, and one direction has one cell more.
"""

from __future__ import annotations

from dpstream.randomizers.accounting.cell_noise import PoissonNoise
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells, least_mean
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_rows


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
