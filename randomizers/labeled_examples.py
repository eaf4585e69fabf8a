"""Labeled examples for learning, encoded as integers: a class and features."""

from __future__ import annotations

import base64
import binascii
from typing import Final

import numpy as np
from numpy.typing import NDArray

FEATURE_UNIT: Final = 1 << 12
"""Resolution of features: they are multiples of 1 / 4096."""

LARGEST_FEATURE: Final = 7.999
"""Maximum absolute value of a feature: 16 bits can represent it."""

MAX_NUMBERS: Final = 1 << 17
"""Maximum total of classes and features in a test set: it is part of the record of a deployed job,
and Kafka accepts records of at most 1 MB."""


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


def packed_examples(examples: NDArray[np.integer]) -> str:
    """Encode examples as text, for the record of a deployed job.

    >>> unpacked_examples(packed_examples(np.array([[2, -7]])), 1, 2).tolist()
    [[2, -7]]
    """
    return base64.b64encode(examples.astype("<i2").tobytes()).decode()


def unpacked_examples(text: str, features: int, classes: int) -> NDArray[np.int64]:
    """Decode `packed_examples`, (n, 1 + features); raise `ValueError` if invalid or too large."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(
            "test_set is not valid base64; in a job file, expected {file: NAME}"
        ) from None
    row = 2 * (1 + features)
    if not data or len(data) % row:
        raise ValueError(f"test_set has {len(data)} bytes; expected a positive multiple of {row}")
    if len(data) > 2 * MAX_NUMBERS:
        raise ValueError(
            f"test_set has {len(data) // row:,} examples of {1 + features:,} numbers; expected at "
            f"most {MAX_NUMBERS // (1 + features):,} examples in a deployed job"
        )
    examples = np.frombuffer(data, "<i2").reshape(-1, 1 + features).astype(np.int64)
    check_examples(examples, classes, "of test_set")
    if not examples[:, 0].all():
        raise ValueError(f"an example in test_set has no class; expected 0 to {classes - 1}")
    return examples
