"""Labeled examples for learning, encoded as integers: a class and features."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

FEATURE_UNIT: Final = 1 << 12
"""Resolution of features: they are multiples of 1 / 4096."""


def check_examples(examples: NDArray[np.integer], classes: int, where: str) -> None:
    """Raise `ValueError` unless each row is an example of one of `classes` classes, or empty.

    `examples` has shape (n, 1 + features): the class plus 1, or 0 for no example; and features in
    units of 1 / `FEATURE_UNIT`. `where` locates the examples in the error message.
    """
    outside = (examples[:, 0] < 0) | (examples[:, 0] > classes)
    if outside.any():
        wrong = int(examples[outside.argmax(), 0]) - 1
        raise ValueError(f"class {wrong} {where} is out of range; expected 0 to {classes - 1}")
    if int(np.abs(examples[:, 1:]).max(initial=0)) >= 8 * FEATURE_UNIT:
        raise ValueError(f"a feature {where} is out of range; expected above -8 and below 8")
