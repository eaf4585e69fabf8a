"""Count the reports y in S_x = {y: <x, y> = 0}, for all points x of a projective space.

Points are numbered as in `dpstream.randomizers.point_spaces`. Instead of comparing pairs of points,
sums are built up one coordinate at a time, in integers.

The first nonzero coordinate of y is 1; f is its position. The last nonzero coordinate of x is 1. So
the coordinates of x after f are all 0, or form a point z of a smaller space. Then <x, y> = 0 if the
product of z and the coordinates of y after f is -x_f. Given f, these coordinates of y can be any of
q^k vectors, with k = t - 1 - f. Counts are summed over the hyperplanes <z, y> = c for all z and c.

Reference: Feldman, Nelson, Nguyen and Talwar (2022), section 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.point_spaces import PointSpace


def hyperplane_sums(space: PointSpace, counts: NDArray[np.int64], points: int) -> NDArray[np.int64]:
    """Return the sum of counts in S_x for the first `points` points x, int64, shape (points,).

    `counts` is the count of every y, int64, shape (N,).

    >>> space = PointSpace(2, 3)
    >>> hyperplane_sums(space, np.array([1, 10, 0, 0, 0, 0, 100]), 4).tolist()
    [11, 1, 101, 10]
    """
    order = space.order
    sums, below = np.zeros(0, np.int64), 0
    for free in range(space.coordinates):
        begin = space.first(free)
        block = counts[begin : begin + order**free]
        rest = affine_sums(block, order, free)
        longer = np.empty(1 + order * len(sums), np.int64)
        # For x = (1, 0, ..., 0): all y whose first coordinate is 0.
        longer[0] = below
        by_first = longer[1:].reshape(order, -1)
        for first in range(order):
            np.add(sums, rest[-first % order], out=by_first[first])
        sums, below = longer, below + int(block.sum())
    return sums[places(space, points)]


def affine_sums(block: NDArray[np.int64], order: int, free: int) -> NDArray[np.int64]:
    """Return the sums of `block` over all y with <z, y> = c, for all c and all points z.

    `block` is int64, shape (q^free,), indexed by y; the last coordinate changes fastest. The result
    has shape (q, (q^free - 1) / (q - 1)), indexed by c, then by z in the order of `places`.
    """
    sums, whole = np.zeros((order, len(block), 0), np.int64), block
    for _ in range(free):
        whole = whole.reshape(-1, order)
        left, short = len(whole), sums.shape[2]
        # The next coordinate comes first, so that whole rows are added.
        parts = np.ascontiguousarray(sums.reshape(order, left, order, short).transpose(2, 0, 1, 3))
        longer = np.empty((order, left, 1 + order * short), np.int64)
        longer[:, :, 0] = whole.T
        if short:
            total = np.empty(parts.shape[1:], np.int64)
            for first in range(order):
                total[:] = parts[0]
                for coordinate in range(1, order):
                    shift = first * coordinate % order
                    total[shift:] += parts[coordinate, : order - shift]
                    if shift:
                        total[:shift] += parts[coordinate, order - shift :]
                longer[:, :, 1 + first * short : 1 + (first + 1) * short] = total
        sums, whole = longer, whole.sum(axis=1)
    return sums.reshape(order, -1)


def places(space: PointSpace, points: int) -> NDArray[np.int64]:
    """Return the positions of the first `points` points x in the array of sums, int64.

    The array starts with (1, 0, ..., 0). Then come the points whose other coordinates form a point
    of the smaller space, ordered by their first coordinate.
    """
    blocks: list[NDArray[np.int64]] = []
    for pivot in range(space.coordinates):
        if space.first(pivot) >= points:
            break
        place = np.zeros(1, np.int64)
        for before in range(pivot):
            shorter = space.first(space.coordinates - pivot + before)
            first = shorter * np.arange(space.order, dtype=np.int64)
            place = (1 + first[:, None] + place).ravel()
        blocks.append(place)
    return np.concatenate(blocks)[:points]
