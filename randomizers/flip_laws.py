"""Number of flips in a tracked Boolean while a user's item or number changes.

When an item changes, the Boolean (`dpstream.randomizers.hadamard_rows`) flips for only half of the
rows. So a device tracks fewer flips than its item has changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.hadamard_rows import rows_for


def flip_law(items: int, values: int) -> NDArray[np.float64]:
    """Return the distribution of the number of flips, for users with `values` items in succession.

    The first item and the row are uniform, and each later item is uniform among the others. For a
    large domain the distribution is close to Binomial(values, 1/2). In a domain of two items, users
    alternate: 0, 1, `values` - 1 and `values` flips each occur for a quarter of the rows. The
    result is float64, shape (values + 1,).

    >>> flip_law(2, 5).tolist(), flip_law(3, 2).tolist()
    ([0.25, 0.25, 0.0, 0.0, 0.25, 0.25], [0.25, 0.5, 0.25])
    """
    rows = rows_for(items)
    numbers = np.arange(rows, dtype=np.uint16)
    positive = np.zeros(rows, np.int64)
    for item in range(1, items + 1):
        positive += 1 - (np.bitwise_count(numbers & np.uint16(item)) & 1)
    distinct, times = np.unique(positive, return_counts=True)
    return _mean_flip_law(distinct, times / rows, items, values)


def level_flip_law(level: int, levels: int, values: int) -> NDArray[np.float64]:
    """Return the distribution of the number of flips in the Boolean tracked on one level.

    A user's first value is uniform over all buckets, and each later value over the other buckets.
    Unlike in `flip_law`, a changed value can stay in the same node, without a flip.

    >>> bool(np.allclose(level_flip_law(3, 3, 5), flip_law(8, 5)))
    True
    """
    nodes, width = 1 << level, 1 << (levels - level)
    buckets = nodes * width
    positive = np.array([nodes, nodes - 1, nodes // 2, nodes // 2 - 1]) * width
    shares = np.array([1, 1, nodes - 1, nodes - 1]) / (2 * nodes)
    return _mean_flip_law(positive, shares, buckets, values)


def _mean_flip_law(
    positive: NDArray[np.int64], shares: NDArray[np.float64], items: int, values: int
) -> NDArray[np.float64]:
    """Return the distribution of the number of flips, averaged over kinds of rows.

    Given the row, the Boolean is a Markov chain with two states. Its transitions depend only on the
    number of items for which the row has +1: `positive`, with the probabilities `shares`, both of
    shape (kinds,).
    """
    up, down = positive[:, None] / (items - 1), (items - positive[:, None]) / (items - 1)
    # Probability of the current Boolean and the number of flips so far, for each kind of row.
    zero, one = np.zeros((2, len(positive), values + 1))
    zero[:, 0], one[:, 1] = 1 - positive / items, positive / items
    for _ in range(values - 1):
        fallen, risen = down * one, up * zero
        zero, one = zero - risen, one - fallen
        zero[:, 1:] += fallen[:, :-1]
        one[:, 1:] += risen[:, :-1]
    law: NDArray[np.float64] = shares @ (zero + one)
    return law
