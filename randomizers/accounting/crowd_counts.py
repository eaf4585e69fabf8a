"""What the numbers of messages left of crowds tell of one user.

Of n messages of a crowd min(n, n + Z - shift) are left, or none if that is negative, which is a
function of it. Z is drawn from an integer table, and so this law is known exactly. A user who is in
another crowd makes one crowd smaller by 1 and another larger by 1.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from dpstream.randomizers.noise_tables import TABLE_BITS, discrete_laplace_table


def law_of_lost(decay: Fraction, shift: int) -> tuple[int, ...]:
    """How likely it is to lose 0, 1, 2, ... messages of a crowd that has many; times 2^128.

    >>> law = law_of_lost(Fraction(1, 2), 1)
    >>> [round(each / 2**128, 4) for each in law[:4]]
    [0.3333, 0.3333, 0.1667, 0.0833]
    """
    table = discrete_laplace_table(decay)
    masses = [high - low for low, high in pairwise((0, *table.bounds))]
    # By lost messages, shift - Z, in increasing order: from the largest Z down.
    lost_first = shift - (table.first + len(masses) - 1)
    masses.reverse()
    if lost_first > 0:
        return (*[0] * lost_first, *masses)
    return (sum(masses[: 1 - lost_first]), *masses[1 - lost_first :])


@lru_cache(maxsize=64)
def delta_of_counts(decay: Fraction, shift: int) -> Fraction:
    """The exact delta of the numbers of all crowds at an epoch, for a loss of 2 ln(1 / decay).

    That of a crowd that loses a user, added to that of one that gains a user: for a factor of
    1 / decay each, how much more likely a number is in one world than so often in the other, summed
    over all numbers for which it is (basic composition of independent draws).
    """
    law = law_of_lost(decay, shift)
    down, up = decay.numerator, decay.denominator
    excess = 0
    for one, other in ((law, (0, *law)), (law, (*law[1:], 0))):
        # `other` is how likely the same number left is with one message more, and with one less.
        pairs = zip(one, other, strict=False)
        excess += sum(max(0, down * mine - up * theirs) for mine, theirs in pairs)
    return Fraction(excess, down << TABLE_BITS)
