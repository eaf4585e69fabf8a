"""Randomized bits, one by one or in several reports of each: what they lose together, shuffled too.

From "Encode, Shuffle, Analyze Privacy Revisited" (Erlingsson, Feldman, Mironov, Raghunathan, Song,
Talwar, Thakurta 2020), where that is right, and sharper where it can be:

* Lemma II.6 (Equation 1), a bound for shuffled randomized response of one bit: `equation_1`. The
  blanket of `amplification`, evaluated exactly, is several times smaller.
* Theorem III.1, attribute fragments of a value, which is that lemma simplified: `theorem_iii_1`. It
  is right, and larger still.
* Corollary .2, a cascade of two randomizers: `cascade`; binary responses attain it.
* Theorem IV.2, shuffled reports of a backstop: its first term says less than is lost, since
  e^eps_f became eps_f in it. In its place stands `shuffled_reports`: reports follow from their
  backstops, so they lose no more than these do, shuffled once, and no more than so many shuffled
  responses.
"""

from __future__ import annotations

import math

from dpstream.randomizers.accounting.amplification import amplified_epsilon, of_randomized_response

_ROUNDED_UP = 1 + 1e-14


def cascade(backstop: float, reports: float) -> float:
    """The loss of something made from a randomized value, rounded up: Corollary .2.

    ln((e^(b + r) + 1) / (e^b + e^r)), at most the smaller one of b and r.

    Args:
        backstop: b, the loss with which the value was randomized, not negative.
        reports: r, the loss of all that is made from it, not negative.

    >>> [round(cascade(6.0, 2.0 * seen), 4) for seen in (1, 2, 3, 4, 8)]
    [1.9822, 3.8731, 5.3069, 5.8731, 6.0]
    """
    if backstop < 0 or reports < 0:
        raise ValueError(f"losses of {backstop:g} and {reports:g}, must not be negative")
    low, high = sorted((backstop, reports))
    # ln((e^low + e^-high) / (1 + e^(low - high))), in which nothing overflows.
    lost = low + math.log1p(math.exp(-low - high)) - math.log1p(math.exp(low - high))
    return min(low, max(0.0, lost) * _ROUNDED_UP)


def shuffled_reports(
    backstop: float, report: float, reports: int, users: int, delta: float, bits: int = 1
) -> float:
    """The epsilon of shuffled reports of bits with a backstop, rounded up: Theorem IV.2, corrected.

    Args:
        backstop: the loss with which each bit is reversed once.
        report: the loss with which each report of it is reversed again.
        reports: of each bit.
        users: that report, the one in question included.
        delta: of the guarantee.
        bits: in which two neighbours differ.

    >>> round(shuffled_reports(8.547, 8.547, 1, 1_914_589, 5e-8), 4)
    0.3365
    """
    once = amplified_epsilon(of_randomized_response(backstop, 2), users, delta, bits)
    each = amplified_epsilon(of_randomized_response(report, 2), users, delta, bits * reports)
    return min(once, each)


def equation_1(local: float, users: int, delta: float) -> float:
    """Lemma II.6: epsilon of one shuffled bit, whose neighbour has none, by the published bound.

    sqrt(32 ln(4 / delta) / r) (1 - r / n) with lambda = 2 n / (1 + e^local), and
    r = lambda - sqrt(2 lambda ln(2 / delta)).

    Raises:
        ValueError: lambda is not from 14 ln(4 / delta) to n, for which alone it is proven.

    >>> round(equation_1(8.547, 1_914_589, 5e-8), 2)
    1.0
    """
    mean = 2 * users / (1 + math.exp(local))
    least = 14 * math.log(4 / delta)
    if not least <= mean <= users:
        raise ValueError(
            f"lambda is {mean:,.1f}, Lemma II.6 is proven from {least:,.1f} to {users:,}: take "
            "amplified_epsilon"
        )
    certain = mean - math.sqrt(2 * mean * math.log(2 / delta))
    return math.sqrt(32 * math.log(4 / delta) / certain) * (1 - certain / users)


def theorem_iii_1(local: float, users: int, delta: float) -> float:
    """Theorem III.1: epsilon of a shuffled value in attribute fragments, rounded up.

    A value is a bit for each item, of which one is set; all are randomized by themselves, and each
    is a message of its own. Neighbours are made by removal: in place of a user's value there is
    none, no bit of which is set. They differ in a single bit: `amplified_epsilon` of randomized
    response with 2 symbols bounds the same loss, by less than half.

    sqrt(64 e^local ln(4 / delta) / n)

    Args:
        local: the loss with which each bit is randomized.
        users: n, the one in question included.
        delta: of the guarantee.

    Raises:
        ValueError: local is not from 1 to ln n - ln(14 ln(4 / delta)), or delta not from
            n^(-ln n) to below 1, for which alone it is proven.

    >>> round(theorem_iii_1(7.405, 1_914_589, 5e-8), 2)
    1.0
    """
    if users < 1 or not users ** -math.log(users) <= delta < 1:
        raise ValueError(
            f"delta is {delta:g} with {users:,} users, Theorem III.1 is proven from n^(-ln n) to "
            "below 1: take amplified_epsilon"
        )
    most = math.log(users) - math.log(14 * math.log(4 / delta))
    if not 1 <= local <= most:
        raise ValueError(
            f"the local loss is {local:g}, Theorem III.1 is proven from 1 to {most:.3f} for these "
            "users: take amplified_epsilon"
        )
    squared = 64 * math.exp(local) * math.log(4 / delta) / users
    return math.sqrt(squared) * _ROUNDED_UP
