"""What an epsilon allows somebody to learn of one person, as odds of a guess."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

ALL_BUT_CERTAIN = 30.0
"""An epsilon from which on nothing is hidden that anybody could say."""


def best_guess(epsilon: float, delta: float = 0.0) -> float:
    """How often a guess between two neighbours is right at most that is right half the time before.

    Whoever decides by a set S of what may be seen is right with (P(S) + 1 - Q(S)) / 2. With
    P(S) <= e^epsilon Q(S) + delta, and the same the other way round, that is at most
    (e^epsilon + delta) / (1 + e^epsilon). Rounded up.

    Args:
        epsilon: from 0 up, or infinite: then nothing is hidden.
        delta: from 0 to 1.

    >>> best_guess(0.0), round(best_guess(1.0), 3), best_guess(math.inf)
    (0.5, 0.731, 1.0)
    """
    if epsilon == 0 and delta == 0:
        return 0.5
    # 1 - (1 - delta) / (1 + e^epsilon), which keeps its digits where it is next to 1.
    left = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return 1.0 if math.isinf(epsilon) else min(1.0, (1 - left) * (1 + 1e-15))


def times_right(epsilon: float, delta: float = 0.0) -> str:
    """The same in words: how often in how many times, rounded up.

    >>> times_right(0.0), times_right(1.0), times_right(4.0), times_right(7.0)
    ('50 in 100', '74 in 100', '983 in 1,000', '9,991 in 10,000')
    >>> times_right(math.inf)
    'always'
    """
    if epsilon > ALL_BUT_CERTAIN:
        return "always"
    wrong = 1 - best_guess(epsilon, delta)
    tries = 100
    while wrong * tries < 3 and tries < 10**12:
        tries *= 10
    right = (Decimal(tries) * (1 - Decimal(repr(wrong)))).to_integral_value(ROUND_CEILING)
    return "always" if right >= tries else f"{int(right):,} in {tries:,}"
