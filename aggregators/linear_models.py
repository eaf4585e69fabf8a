"""What linear models say of labelled examples: a score for each class, the largest one decides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.labelled_examples import FEATURE_UNIT


def scores(
    model: NDArray[np.float64], examples: NDArray[np.integer], classes: int
) -> NDArray[np.float64]:
    """The score of every class, shape (n, classes).

    Args:
        model: float64, shape (numbers,): a row of features for every class, one after the other.
        examples: shape (n, 1 + features), as `dpstream.randomizers.labelled_examples` has them.
        classes: how many there are.
    """
    found: NDArray[np.float64] = examples[:, 1:] / FEATURE_UNIT @ model.reshape(classes, -1).T
    return found


def accuracy(model: NDArray[np.float64], examples: NDArray[np.integer], classes: int) -> float:
    """The share of examples whose class has the largest score; arguments as of `scores`."""
    decided = scores(model, examples, classes).argmax(axis=1)
    return float(np.mean(decided == examples[:, 0] - 1))


def losses(
    model: NDArray[np.float64], examples: NDArray[np.integer], classes: int
) -> NDArray[np.float64]:
    """The loss of each example, -ln softmax(scores) at its class, shape (n,); as of `scores`."""
    found = scores(model, examples, classes)
    largest = found.max(axis=1)
    total = np.log(np.exp(found - largest[:, None]).sum(axis=1)) + largest
    lost: NDArray[np.float64] = total - found[np.arange(len(examples)), examples[:, 0] - 1]
    return lost
