"""Privacy loss of one user from the remaining message counts of crowds.

Of n messages of a crowd min(n, n + Z - shift) remain, or none if that is negative, which is a
function of it. Z is drawn from an integer table, so this distribution is known exactly. A user in
another crowd makes one crowd smaller by 1 and another larger by 1.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from dpstream.randomizers.noise_tables import TABLE_BITS, discrete_laplace_table


def law_of_lost(decay: Fraction, shift: int) -> tuple[int, ...]:
    """Return 2^128 times the probabilities of losing 0, 1, 2, ... messages of a large crowd.

    >>> law = law_of_lost(Fraction(1, 2), 1)
    >>> [round(each / 2**128, 4) for each in law[:4]]
    [0.3333, 0.3333, 0.1667, 0.0833]
    """
    table = discrete_laplace_table(decay)
    masses = [high - low for low, high in pairwise((0, *table.bounds))]
    # Ordered by lost messages, shift - Z, increasing: from the largest Z down.
    lost_first = shift - (table.first + len(masses) - 1)
    masses.reverse()
    if lost_first > 0:
        return (*[0] * lost_first, *masses)
    return (sum(masses[: 1 - lost_first]), *masses[1 - lost_first :])


@lru_cache(maxsize=64)
def delta_of_counts(decay: Fraction, shift: int) -> Fraction:
    """Return the exact delta of all crowds' counts at an epoch, for a loss of 2 ln(1 / decay).

    It is that of a crowd that loses a user, plus that of one that gains a user. Each is the excess
    of a number's probability in one world over 1 / decay times that in the other, summed over all
    numbers where it is positive (basic composition of independent draws).
    """
    law = law_of_lost(decay, shift)
    down, up = decay.numerator, decay.denominator
    excess = 0
    for one, other in ((law, (0, *law)), (law, (*law[1:], 0))):
        # `other` is the probability of the same remaining number with one message more, or less.
        pairs = zip(one, other, strict=False)
        excess += sum(max(0, down * mine - up * theirs) for mine, theirs in pairs)
    return Fraction(excess, down << TABLE_BITS)
