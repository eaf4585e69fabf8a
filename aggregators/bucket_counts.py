"""Count, for each item, the messages whose bucket contains it (the finite Radon transform).

A message with direction d and bucket c counts for every item x on the line or plane <d, x> = c. A
direction either begins with 1 or ignores the lowest digit of items
(`dpstream.randomizers.affine_hashes`). If it begins with 1, the message and an item's upper digits
determine the lowest digit.

One Fourier transform over Z_s^m covers all items, by the projection slice theorem. At a frequency
t d, with t from 1 to s - 1, the transform of the result is s^(m-1) times that of the buckets of d.
At frequency 0 it is s^(m-1) times the number of messages. Elsewhere it is 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.affine_hashes import AffineHashes

MOST_TRANSFORMED: Final = 1 << 23
"""Maximum size of a Fourier transform, in vectors; each vector needs 30 bytes."""


# Number of steps of `by_lines` that take as long as one vector of the transform.
_TRANSFORM_COST = 8


# Maximum rounding error of a transformed count: its distance from the nearest integer.
_ROUNDING = 1e-3


_CHUNK = 1 << 16


def bucket_counts(
    hashes: AffineHashes,
    words: NDArray[np.integer],
    counts: NDArray[np.int64],
    items: int,
) -> NDArray[np.int64]:
    """Return the number of messages whose bucket contains each item, int64, shape (items,).

    `words`, shape (n,), are distinct messages in ascending order, `counts` their multiplicities.

    >>> hashes = AffineHashes(buckets=3, digits=2)
    >>> words, counts = np.array([2, 3], np.uint8), np.array([7, 10])  # x_1 = 2; x_0 = 0
    >>> bucket_counts(hashes, words, counts, 9).tolist()
    [10, 0, 0, 10, 0, 0, 17, 7, 7]
    """
    if hashes.digits == 1:
        return _table(words, counts, hashes.buckets)[:items]
    shorter, above = hashes.shorter, -(-items // hashes.row)
    begin = int(np.searchsorted(words, shorter.words))
    without_lowest = bucket_counts(shorter, words[:begin], counts[:begin], above)
    later = words[begin:].astype(np.int64) - shorter.words
    vectors = hashes.buckets**hashes.digits
    transformed = vectors <= MOST_TRANSFORMED and len(later) * above > _TRANSFORM_COST * vectors
    add_up = by_transform if transformed else by_lines
    sums = add_up(hashes, later, counts[begin:], above)
    return (np.repeat(without_lowest, hashes.row) + sums)[:items]


def by_lines(
    hashes: AffineHashes, words: NDArray[np.int64], counts: NDArray[np.int64], above: int
) -> NDArray[np.int64]:
    """Count messages whose directions begin with 1.

    `words`, shape (n,), are offsets from the first such message. The result is int64, shape
    (above * w,), by the `above` values of the upper digits and the w values of the lowest digit.
    """
    sums_above = np.zeros((above, hashes.buckets), np.int64)
    digits = hashes.upper_digits(np.arange(above))
    for start in range(0, len(words), _CHUNK):
        part = slice(start, start + _CHUNK)
        steps, buckets = np.divmod(words[part], hashes.buckets)
        coordinates = hashes.upper_digits(steps)
        for upper in range(above):
            lowest = buckets.copy()
            for along, digit in zip(coordinates, digits, strict=True):
                lowest -= along * digit[upper]
            lowest %= hashes.buckets
            sums_above[upper] += _table(lowest, counts[part], hashes.buckets)
    return sums_above[:, : hashes.row].ravel()


def by_transform(
    hashes: AffineHashes, words: NDArray[np.int64], counts: NDArray[np.int64], above: int
) -> NDArray[np.int64]:
    """Compute the result of `by_lines` by a Fourier transform over all vectors."""
    buckets, digits = hashes.buckets, hashes.digits
    steps = buckets ** (digits - 1)
    table = _table(words, counts, steps * buckets).reshape(steps, buckets)
    of_buckets = np.fft.rfft(table, axis=1)
    spectrum = np.zeros_like(of_buckets)
    spectrum[0, 0] = table.sum()
    coordinates = hashes.upper_digits(np.arange(steps))
    for times in range(1, of_buckets.shape[1]):
        frequencies = np.zeros(steps, np.int64)
        for place, along in enumerate(coordinates):
            frequencies += times * along % buckets * buckets**place
        spectrum[frequencies, times] = of_buckets[:, times]
    shape = (buckets,) * digits
    sums = np.fft.irfftn(spectrum.reshape(*shape[1:], -1), shape, tuple(range(digits)))
    sums *= steps
    found = np.rint(sums)
    if np.abs(sums - found).max() > _ROUNDING:
        raise ArithmeticError(f"Fourier transform over {buckets} buckets is too inexact to round")
    return found.reshape(-1, buckets)[:above, : hashes.row].astype(np.int64).ravel()


def _table(words: NDArray[np.integer], counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    # Sums of integers below 2^53 are exact.
    return np.bincount(words.astype(np.int64), counts, size).astype(np.int64)
