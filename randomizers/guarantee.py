"""Privacy guarantee for a user, with all of its assumptions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal


def needs_no_trust(trust: str) -> bool:
    """Return whether a `Guarantee.trust` states that no party is trusted.

    >>> needs_no_trust("none; it holds against everyone"), needs_no_trust("the shuffler to shuffle")
    (True, False)
    """
    return trust.startswith("none")


@dataclass(frozen=True, slots=True)
class ShuffledStreams:
    """Additional guarantee for a user's whole stream, if the shuffler is trusted.

    It covers users whose producers were in every window: the loss of a stream is charged once, for
    any number of epochs. For other users the loss is the local one. `contributors` is the minimum
    number of honest users present at all epochs, the user included.
    """

    epsilon: float
    delta: float
    contributors: int

    @property
    def trust(self) -> str:
        """Trust assumptions as text."""
        return whole_streams(self.contributors)

    def over(self, horizons: int) -> ShuffledStreams:
        """Return the joint guarantee of several horizons, each with this guarantee."""
        epsilon, delta = _times(horizons, self.epsilon), _times(horizons, self.delta)
        return replace(self, epsilon=epsilon, delta=delta)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A differential privacy guarantee.

    For any two neighboring inputs and any set of observations, the two probabilities of the set are
    within a factor exp(epsilon) of each other, up to an additive delta.

    Attributes:
        epsilon: Privacy loss, rounded up.
        delta: Additive term, rounded up; 0 for a pure guarantee.
        unit: Part of a user's data that the epsilon is spent on: the whole "stream", a single
            "epoch" of it, or a single "value", for users whose value never changes.
        neighbors: Pairs of inputs whose difference the guarantee protects.
        trust: Parties that have to be trusted, and parties that need not be; see `needs_no_trust`.
        basis: "exact": computed from the whole output distribution; "bound": proven upper bound.
        horizons: Number of horizons covered, for a recurring job, each with fresh draws; None for
            other jobs.
        stream_epsilon: With the unit "value", the loss of a whole stream that may change, rounded
            up and exact for any `basis`. With the unit "epoch", the loss of all epochs of a horizon
            together, with the same delta. None if it is unknown, or the unit is "stream".
        shuffled: Additional guarantee of shuffled streams, for a job that states a central
            guarantee.
    """

    epsilon: float
    delta: float
    unit: Literal["stream", "epoch", "value"]
    neighbors: str
    trust: str
    basis: Literal["exact", "bound"]
    horizons: int | None = None
    stream_epsilon: float | None = None
    shuffled: ShuffledStreams | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, omitting None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def over(self, horizons: int) -> Guarantee:
        """Return the joint guarantee of several horizons, each with this guarantee.

        Losses are summed (basic composition). An epoch lies in only one horizon, so the guarantees
        of an epoch and of all epochs of its horizon are unchanged.

        >>> local = Guarantee(0.1, 0.0, "stream", "any two streams", "none", "exact")
        >>> local.over(3).epsilon
        0.30000000000000004
        """
        if self.unit == "epoch":
            return replace(self, horizons=horizons)
        return replace(
            self,
            epsilon=_times(horizons, self.epsilon),
            delta=_times(horizons, self.delta),
            horizons=horizons,
            stream_epsilon=self.stream_epsilon and _times(horizons, self.stream_epsilon),
            shuffled=self.shuffled and self.shuffled.over(horizons),
        )

    @property
    def subject(self) -> str:
        """Part of a user's data that the epsilon covers, as text."""
        unit = _UNITS[self.unit]
        if self.horizons is None or self.unit == "epoch":
            return unit
        return f"{unit} of {'one horizon' if self.horizons == 1 else f'{self.horizons:,} horizons'}"

    @property
    def spent_on(self) -> str:
        """Part of a user's data that the epsilon is spent on, as text."""
        unit = _UNITS[self.unit]
        if self.stream_epsilon is not None:
            unit += f", {self.stream_epsilon:.6g} for the whole stream"
        if self.horizons is None:
            return unit
        if self.unit == "epoch":
            return unit if self.stream_epsilon is None else f"{unit} of each horizon"
        if self.horizons == 1:
            return f"{unit} of one horizon, n times that for n horizons"
        return f"{unit} of {self.horizons:,} horizons"

    def __str__(self) -> str:
        delta = f", delta {self.delta:g}" if self.delta else ""
        return (
            f"epsilon {self.epsilon:.6g}{delta} for a user's {self.spent_on} ({self.basis}); "
            f"neighbors: {self.neighbors}; trusted party: {self.trust}{self._besides}"
        )

    @property
    def _besides(self) -> str:
        if self.shuffled is None:
            return ""
        shuffled = self.shuffled
        return (
            f"; epsilon {shuffled.epsilon:.6g}, delta {shuffled.delta:g} if these are trusted: "
            f"{shuffled.trust}"
        )


def _times(count: int, loss: float) -> float:
    product = count * loss
    return product if product >= count * Fraction(loss) else math.nextafter(product, math.inf)


_UNITS = {
    "stream": "whole stream",
    "epoch": "value of one epoch",
    "value": "single value (claimed)",
}


def held_by_a_user(items: int) -> str:
    """Return the neighbor relation of users with at most `items` items, as text."""
    held = "items" if items == 1 else f"sets of at most {items:,} items"
    return f"any two {held} of a user at an epoch, or none at all; who is present is public"


def held_or_nothing(items: int) -> str:
    """Return the neighbor relation of a user's at most `items` items and none, as text."""
    held = "an item" if items == 1 else f"a set of at most {items:,} items"
    return f"{held} of a user at an epoch, or none at all; who is present is public"


def of_messages_apart(shuffled: Guarantee, epsilon: float, messages: int) -> Guarantee:
    """Return the guarantee against an adversary that links each device's messages.

    It has no trusted party. `epsilon` is the loss of a device's messages at one epoch; the device
    sends messages at `messages` epochs of a horizon.

    >>> shuffled = Guarantee(0.1, 1e-6, "epoch", "any two items", "the shuffle stage", "bound")
    >>> apart = of_messages_apart(shuffled, 2.0, 3)
    >>> apart.epsilon, apart.delta, apart.stream_epsilon
    (2.0, 0.0, 6.0)
    """
    return replace(
        shuffled,
        epsilon=epsilon,
        delta=0.0,
        trust="none",
        basis="bound",
        stream_epsilon=_times(messages, epsilon),
    )


def whole_streams(contributors: int) -> str:
    """Return the trust assumptions for whole streams that are hidden among others, as text."""
    return (
        f"the shuffler to shuffle, and {contributors - 1:,} honest other users; it applies to "
        "users whose producers are in every window, as these others are, whose messages nothing "
        "links across epochs and whose values do not react to published estimates"
    )


def shuffle_to_mix(minimum: int) -> str:
    """Return the trust assumptions for messages that are hidden among others, as text."""
    return (
        f"the shuffler to shuffle and to suppress windows below the minimum, and {minimum - 1:,} "
        "honest other users in each window"
    )


def shuffle_and_others(minimum: int, apart: str) -> str:
    """Return `shuffle_to_mix`, and the epsilon that remains without it, as text.

    `apart` is epsilon against a shuffler that links the messages of a device.
    """
    return (
        f"{shuffle_to_mix(minimum)}; against a shuffler that keeps messages apart epsilon is "
        f"{apart}"
    )
