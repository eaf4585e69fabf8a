"""Numbers that look random and that everybody can make: a public coin, tossed by SHAKE-256."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8


def public_words(text: str, count: int) -> NDArray[np.uint64]:
    """The words that a text stands for: uint64, shape (count,). No secret rests on them.

    >>> public_words("example", 2).tolist()
    [1337537168300301344, 5322710968205388336]
    """
    digest = hashlib.shake_256(text.encode()).digest(_WORD_BYTES * count)
    return np.frombuffer(digest, "<u8").astype(np.uint64)
