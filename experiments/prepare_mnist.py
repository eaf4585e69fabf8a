"""Make examples to learn from, and a public test set, from the digits of MNIST.

    python -m experiments.prepare_mnist FOLDER OUTPUT

FOLDER contains the four IDX files of MNIST (LeCun, Cortes, Burges), as .gz. The folder OUTPUT gets
``mnist.csv.gz`` with the 60,000 digits to learn from, one per user, and ``mnist-test.csv`` with
every sixth digit of the test set: as many as a job allows.

An example has 64 coefficients and the number 1. The coefficients are the 8 x 8 lowest of the
two-dimensional cosine transform, scaled to length 1. Their mean over the whole test set, which is
public, is subtracted; then they are scaled to length 1 again. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn

SIDE = 8
FEATURES = SIDE * SIDE + 1
TESTED = 6
"""Step between the digits of the test set that are used."""


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


def _lines(examples: NDArray[np.float64], classes: NDArray[np.uint8]) -> Iterator[str]:
    yield ",".join(["user", "class", *(f"x{number}" for number in range(FEATURES))])
    for number, (row, class_) in enumerate(zip(examples.tolist(), classes.tolist(), strict=True)):
        yield ",".join([str(number + 1), str(class_), *(f"{each:.5g}" for each in row)])


def prepare(folder: Path, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    held, held_classes = read_digits(folder, "t10k")
    mean = held.mean(axis=0)
    learned, classes = read_digits(folder, "train")
    with gzip.GzipFile(output / "mnist.csv.gz", "wb", mtime=0) as file:
        for line in _lines(features(learned, mean), classes):
            file.write(f"{line}\n".encode())
    test = features(held, mean)[::TESTED], held_classes[::TESTED]
    (output / "mnist-test.csv").write_text("".join(f"{line}\n" for line in _lines(*test)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    prepare(arguments.folder, arguments.output)
