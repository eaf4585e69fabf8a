"""Privacy loss of one user from the remaining message counts of crowds.

Of a crowd's n messages, max(0, min(n, n + Z - shift)) remain. Z is drawn from an integer table, so
this distribution is known exactly. If a user moves to another crowd, one crowd has one message
fewer and another has one more.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from dpstream.randomizers.noise_tables import TABLE_BITS, discrete_laplace_table


def law_of_lost(decay: Fraction, shift: int) -> tuple[int, ...]:
    """Return 2^128 times the probabilities that a large crowd loses 0, 1, 2, ... messages.

    >>> law = law_of_lost(Fraction(1, 2), 1)
    >>> [round(each / 2**128, 4) for each in law[:4]]
    [0.3333, 0.3333, 0.1667, 0.0833]
    """
    table = discrete_laplace_table(decay)
    masses = [high - low for low, high in pairwise((0, *table.bounds))]
    # In ascending order of lost messages, shift - Z, so in descending order of Z.
    lost_first = shift - (table.first + len(masses) - 1)
    masses.reverse()
    if lost_first > 0:
        return (*[0] * lost_first, *masses)
    return (sum(masses[: 1 - lost_first]), *masses[1 - lost_first :])


@lru_cache(maxsize=64)
def delta_of_counts(decay: Fraction, shift: int) -> Fraction:
    """Return the exact delta of all crowd counts of an epoch, for a loss of 2 ln(1 / decay).

    The result is the delta of a crowd that loses a user plus the delta of a crowd that gains a user
    (basic composition of independent draws). Each delta is a sum over all counts: of the positive
    differences between a count's probability in one world and 1 / decay times that in the other.
    """
    law = law_of_lost(decay, shift)
    down, up = decay.numerator, decay.denominator
    excess = 0
    for one, other in ((law, (0, *law)), (law, (*law[1:], 0))):
        # `other` is the probability of the same remaining count with one more or one fewer message.
        pairs = zip(one, other, strict=False)
        excess += sum(max(0, down * mine - up * theirs) for mine, theirs in pairs)
    return Fraction(excess, down << TABLE_BITS)
