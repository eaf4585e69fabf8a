"""Covariances of the errors of items that are estimated from the same reports.

Two parts are added. First, items share noise if an answer is a point in the sets of several items.
Their noise is independent if each item has its own noise (cells of a sum) or its own random signs
(rows of a Hadamard matrix). Second, a random n of N users answer, and no user has two items: for
two items that shares f and g of the users have, this adds -N^2 f g (1/n - 1/N) N / (N - 1).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.set_systems import SetSystem

ItemCovariances: TypeAlias = Callable[[int, int, NDArray[np.float64]], NDArray[np.float64]]
"""Function of the numbers of answers and of users, and of k estimates, shape (k,).

It returns the covariances of different items, shape (k, k); the diagonal has no meaning.
"""


class SetsLaw(Protocol):
    """Mechanism whose answers are points in the set of an item, such as sampled_response."""

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]: ...


def sampling_covariances(
    answers: int, users: int, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the part of `ItemCovariances` that is due to absent users.

    >>> sampling_covariances(50, 100, np.array([40.0, 60.0])).round(1).tolist()
    [[-16.2, -24.2], [-24.2, -36.4]]
    """
    absent = max(0.0, 1 / max(1, answers) - 1 / max(1, users)) * users / max(1, users - 1)
    held = np.clip(values, 0.0, users)
    return -absent * np.outer(held, held)


def set_covariances(
    law: SetsLaw, sets: SetSystem, answers: int, users: int, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute `ItemCovariances` of answers that are points in the sets of items.

    Let a and b be the probabilities of an answer in the set of the user's item, and of another one.
    Among the answers of users with item x, the indicators of x and z have the covariance a c / s -
    a b; among those of users with neither item it is j - b^2. Here s points are in a set, c in
    two, and j is the probability of a point in both. For hyperplanes, j and thus the covariance are
    lower bounds: the sets of some third items include all common points of the two. A ratio or a
    difference then has an interval that is too wide, never too narrow.
    """
    own, other = law.probabilities
    joint = own * Fraction(sets.common_to_three, sets.block)
    joint += (1 - own) * Fraction(sets.common - sets.common_to_three, sets.outside)
    with_one = float(own * Fraction(sets.common, sets.block) - own * other)
    of_others = float(joint - other * other)
    held = np.clip(values / max(1, users), 0.0, 1.0)
    either = np.minimum(held[:, None] + held, 1.0)
    noise = (either * with_one + (1 - either) * of_others) / float(own - other) ** 2
    scale = users**2 / max(1, answers)
    return scale * noise + sampling_covariances(answers, users, values)
