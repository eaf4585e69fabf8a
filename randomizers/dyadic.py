"""Dyadic intervals of epochs within a horizon, and the sign distribution for each order.

Interval (h, j), of order h from 0 and index j from 1, covers the epochs (j-1) 2^h + 1 to j 2^h.

Reference: *Randomize the Future*, Definition 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dpstream.randomizers.composed import MAX_SIGNS, ComposedLaw
from dpstream.randomizers.parameter_checks import MAX_HORIZON, check_epsilon


def orders_due(epoch: int) -> int:
    """Return the number of intervals ending at an epoch: one for each order below this number.

    >>> [orders_due(epoch) for epoch in (1, 2, 3, 4)]
    [1, 2, 1, 3]
    """
    return (epoch & -epoch).bit_length()


def check_signs(epsilon: float, max_changes: int, estimator: str) -> None:
    check_epsilon(epsilon)
    if type(max_changes) is not int or not 1 <= max_changes <= MAX_SIGNS:
        raise ValueError(
            f"max_changes is {max_changes!r}; expected an integer from 1 to {MAX_SIGNS}"
        )
    if estimator not in ("tree", "prefix"):
        raise ValueError(f"estimator is {estimator!r}; expected 'tree' or 'prefix'")


@dataclass(frozen=True, slots=True)
class FutureRandLaw:
    """Constants of a FutureRand job.

    Attributes:
        horizon: Number of epochs d, a power of two.
        order_weights: For each order 0 to log2 d, an integer proportional to its probability.
        composed: Distribution of signs for each order.
    """

    horizon: int
    epsilon: float
    order_weights: tuple[int, ...]
    composed: tuple[ComposedLaw, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.horizon <= MAX_HORIZON or self.horizon.bit_count() != 1:
            raise ValueError(
                f"horizon is {self.horizon} epochs; expected a power of two up to 2^63"
            )
        orders = self.horizon.bit_length()
        if len(self.order_weights) != orders or len(self.composed) != orders:
            raise ValueError(
                f"got {len(self.order_weights)} order weights and {len(self.composed)} sign "
                f"distributions; expected {orders} of each for a horizon of {self.horizon} epochs"
            )
        if any(type(weight) is not int or weight < 0 for weight in self.order_weights):
            raise ValueError("an order weight is out of range; expected non-negative integers")
        if not any(self.order_weights):
            raise ValueError("all order weights are 0; expected at least one positive weight")
        if self.loss > self.epsilon:
            raise ValueError(f"loss is {self.loss}; expected at most epsilon, {self.epsilon}")

    @property
    def last_epoch(self) -> int:
        return self.horizon

    @property
    def order_probabilities(self) -> tuple[float, ...]:
        total = sum(self.order_weights)
        return tuple(weight / total for weight in self.order_weights)

    @property
    def c_gaps(self) -> tuple[float, ...]:
        """P(a sign is kept) - P(it is reversed), for each order."""
        gaps = {law: law.c_gap for law in set(self.composed)}
        return tuple(gaps[law] for law in self.composed)

    @property
    def loss(self) -> float:
        """Privacy loss of a user's stream, rounded up: the maximum over the orders drawn."""
        drawn = zip(self.composed, self.order_weights, strict=True)
        return max(law.loss for law in {law for law, weight in drawn if weight})

    def to_json(self) -> dict[str, Any]:
        distinct = list(dict.fromkeys(self.composed))
        return {
            "horizon": self.horizon,
            "epsilon": self.epsilon,
            "order_weights": list(self.order_weights),
            "order_laws": [distinct.index(law) for law in self.composed],
            "laws": [law.to_json() for law in distinct],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        try:
            laws = [ComposedLaw.from_json(law) for law in body["laws"]]
            return cls(
                horizon=body["horizon"],
                epsilon=float(body["epsilon"]),
                order_weights=tuple(body["order_weights"]),
                composed=tuple(laws[index] for index in body["order_laws"]),
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"invalid constants for future_rand: {error!r}") from error
