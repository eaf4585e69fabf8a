"""Make features from the digits of MNIST (LeCun, Cortes, Burges), in four IDX files as .gz.

An example has 64 coefficients and the number 1. The coefficients are the 8 x 8 lowest of the
two-dimensional cosine transform, scaled to length 1. Their mean over the whole test set, which is
public, is subtracted; then they are scaled to length 1 again.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn

SIDE = 8
FEATURES = SIDE * SIDE + 1


def read_digits(folder: Path, part: str) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Return coefficients of digits, scaled to length 1, shape (n, 64), and classes, (n,)."""
    pixels = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    classes = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    digits = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28, 28).astype(np.float64)
    lowest = dctn(digits, axes=(1, 2), norm="ortho")[:, :SIDE, :SIDE].reshape(len(digits), -1)
    return _unit(lowest), np.frombuffer(classes, np.uint8, offset=8)


def features(coefficients: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the features of examples, shape (n, 65), from coefficients and their public mean."""
    return np.column_stack([_unit(coefficients - mean), np.ones(len(coefficients))])


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled
