"""Predicted errors of Count-Min estimators, from the skew of the counts.

Apart from the item itself, an item's cell in a row is like any other cell of that row: it counts
other items, and noise. So errors are sampled by simulating rows with random hashes, and reading
random cells, as for an item that no user has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.pairwise_hash import public_words

ZIPF_EXPONENT: Final = 1.1

_READ = 20_000
_STEPS = 1 << 53


def zipf_counts(size: int, total: float) -> NDArray[np.float64]:
    """Return expected counts by Zipf's law, largest first, shape (size,)."""
    shares = np.arange(1, size + 1, dtype=np.float64) ** -ZIPF_EXPONENT
    shares *= total / shares.sum()
    return shares


def error_samples(
    counts: NDArray[np.float64], rows: int, buckets: int, noise_variance: float
) -> Mapping[str, NDArray[np.float64]]:
    """Sample errors of a rare item for each estimator (min, mean, median), shape (samples,).

    `counts` are those of all items. Each of tau `rows` has s `buckets`, with `noise_variance` each.

    >>> samples = error_samples(zipf_counts(10_000, 1e5), 5, 8192, 180.6)
    >>> errors = {name: float(np.abs(each).mean()) for name, each in samples.items()}
    >>> min(errors, key=errors.get), errors["median"] < errors["min"] < errors["mean"]
    ('median', True)
    """
    values = np.empty((_READ, rows))
    for row in range(rows):
        held = _below(buckets, f"items of row {row}", len(counts))
        read = _below(buckets, f"places in row {row}", _READ)
        noise = np.sqrt(noise_variance) * _normals(f"noise of row {row}")
        values[:, row] = np.bincount(held, counts, buckets)[read] + noise
    minimum, mean, median = values.min(axis=1), values.mean(axis=1), np.median(values, axis=1)
    return {
        "min": minimum,
        "mean": mean - mean.mean(),
        "median": median - np.median(median),
    }


def normal_errors(deviation: float) -> NDArray[np.float64]:
    return deviation * _normals("errors")


def clipped_errors(
    errors: NDArray[np.float64], counts: NDArray[np.floating] | NDArray[np.integer]
) -> NDArray[np.float64]:
    """Return mean absolute errors of estimates whose negative values become 0.

    `errors` is a sample, shape (samples,). `counts` are the ground truth, at least 0, any shape.
    The result is float64 of that shape.

    >>> clipped_errors(np.array([-3.0, 3.0]), np.array([0.0, 1.0, 10.0])).tolist()
    [1.5, 2.0, 3.0]
    """
    ordered = np.sort(errors)
    absolute = np.insert(np.cumsum(np.abs(ordered)), 0, 0.0)
    # An error below -count makes the estimate 0, whose error is the count.
    clipped = np.searchsorted(ordered, -np.asarray(counts, np.float64))
    kept = absolute[-1] - absolute[clipped]
    return np.asarray((kept + clipped * counts) / len(ordered), np.float64)


TOP_ITEMS: Final = 100
OTHERS: Final = 400
"""Numbers of evaluated items: the most frequent ones, and others drawn at random."""


def usual_error(errors: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Return the mean of `clipped_errors` over the evaluated items, given all counts."""
    most = np.sort(counts)[::-1]
    found = clipped_errors(errors, most)
    if len(found) <= TOP_ITEMS + OTHERS:
        return float(found.mean())
    top, rest = float(found[:TOP_ITEMS].mean()), float(found[TOP_ITEMS:].mean())
    return (TOP_ITEMS * top + OTHERS * rest) / (TOP_ITEMS + OTHERS)


def _below(limit: int, text: str, count: int) -> NDArray[np.int64]:
    return (public_words(text, count) % np.uint64(limit)).astype(np.int64)


def _normals(text: str) -> NDArray[np.float64]:
    """Return fixed standard Gaussian values, by the Box-Muller transform."""
    uniform = (_below(_STEPS, text, 2 * _READ) + 0.5) / _STEPS
    radius, angle = np.sqrt(-2 * np.log(uniform[:_READ])), 2 * np.pi * uniform[_READ:]
    return np.asarray(radius * np.cos(angle), np.float64)
