"""What is promised to a user, in the terms in which it can be checked."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ShuffledStreams:
    """What holds besides for a user's whole stream where the shuffle stage is trusted.

    For users whose producers were in every window: the loss of a stream is charged once, whatever
    the number of epochs. For the others it is the local one.

    Attributes:
        epsilon: the privacy loss of the stream, shuffled.
        delta: the same.
        contributors: the fewest honest ones that are there at all epochs, the user included.
    """

    epsilon: float
    delta: float
    contributors: int

    @property
    def trust(self) -> str:
        """On what it rests, in words."""
        return whole_streams(self.contributors)

    def over(self, horizons: int) -> ShuffledStreams:
        """Of so many horizons, each with as many contributors: losses add up."""
        epsilon, delta = _times(horizons, self.epsilon), _times(horizons, self.delta)
        return replace(self, epsilon=epsilon, delta=delta)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A differential privacy guarantee.

    For any two neighbours, and whatever set of things an observer may see, the probabilities of
    seeing it are within a factor exp(epsilon) of each other, apart from a probability of delta.

    Attributes:
        epsilon: the privacy loss, rounded up.
        delta: rounded up; 0 for a pure guarantee.
        unit: what the epsilon is spent on: a user's whole "stream", a single "epoch" of it, or a
            single "value", for users whose value never changes.
        neighbours: which two inputs cannot be told apart.
        trust: who has to be trusted, and who need not be.
        basis: "exact" computed from the whole probability law, "bound" proven to be no larger.
        horizons: how many horizons of a job that renews it is about, with the draws of each made
            anew; None for a job that does not.
        stream_epsilon: with the unit "value", the loss of a whole stream that may change, rounded
            up and exact, whatever `basis` says; with the unit "epoch", that of all epochs of a
            horizon together, with the same delta. None where it is not known or the unit itself.
        shuffled: what a job that states a central guarantee promises of shuffled streams besides.
    """

    epsilon: float
    delta: float
    unit: Literal["stream", "epoch", "value"]
    neighbours: str
    trust: str
    basis: Literal["exact", "bound"]
    horizons: int | None = None
    stream_epsilon: float | None = None
    shuffled: ShuffledStreams | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values; without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def over(self, horizons: int) -> Guarantee:
        """What so many horizons, each with this guarantee, promise together.

        Losses add up (basic composition). An epoch lies in one horizon only, and what is said of
        it and of all epochs of its horizon stays as it is.

        >>> nobody = Guarantee(0.1, 0.0, "stream", "any two streams", "nobody", "exact")
        >>> nobody.over(3).epsilon
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
        """The part of a user's data that the epsilon is about, in words."""
        unit = _UNITS[self.unit]
        if self.horizons is None or self.unit == "epoch":
            return unit
        return f"{unit} of {'one horizon' if self.horizons == 1 else f'{self.horizons:,} horizons'}"

    @property
    def spent_on(self) -> str:
        """What of a user the epsilon is spent on, in words."""
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
            f"cannot be told apart: {self.neighbours}; trusted: {self.trust}{self._besides}"
        )

    @property
    def _besides(self) -> str:
        """What holds of shuffled streams, in words."""
        if self.shuffled is None:
            return ""
        shuffled = self.shuffled
        return (
            f"; epsilon {shuffled.epsilon:.6g}, delta {shuffled.delta:g} where these are trusted: "
            f"{shuffled.trust}"
        )


def _times(count: int, loss: float) -> float:
    """The product, rounded up."""
    product = count * loss
    return product if product >= count * Fraction(loss) else math.nextafter(product, math.inf)


_UNITS = {
    "stream": "whole stream",
    "epoch": "value of one epoch",
    "value": "single value (claimed)",
}


def held_by_a_user(items: int) -> str:
    """What cannot be told apart where a user holds up to so many items, in words."""
    held = "items" if items == 1 else f"sets of at most {items:,} items"
    return f"any two {held} of a user at an epoch, or none at all; who is present is public"


def held_or_nothing(items: int) -> str:
    """What cannot be told apart where neighbours are made by removal, in words."""
    held = "an item" if items == 1 else f"a set of at most {items:,} items"
    return f"{held} of a user at an epoch, or none at all; who is present is public"


def of_messages_apart(shuffled: Guarantee, epsilon: float, messages: int) -> Guarantee:
    """What is promised against whoever keeps the messages of every device together.

    Args:
        shuffled: what is promised of shuffled messages.
        epsilon: of what a device sends at one epoch.
        messages: at how many epochs of a horizon it sends anything.

    >>> shuffled = Guarantee(0.1, 1e-6, "epoch", "any two items", "the shuffle stage", "bound")
    >>> apart = of_messages_apart(shuffled, 2.0, 3)
    >>> apart.epsilon, apart.delta, apart.stream_epsilon, apart.trust
    (2.0, 0.0, 6.0, 'nobody')
    """
    return replace(
        shuffled,
        epsilon=epsilon,
        delta=0.0,
        trust="nobody",
        basis="bound",
        stream_epsilon=_times(messages, epsilon),
    )


def whole_streams(contributors: int) -> str:
    """Who has to be trusted where whole streams hide among those of others, in words."""
    return (
        f"the shuffle stage to shuffle, and {contributors - 1:,} honest others; it is about users "
        "whose producers are in every window, as these others are, whose messages nothing links "
        "across epochs and whose values do not react to what is published"
    )


def shuffle_to_mix(minimum: int) -> str:
    """Who has to be trusted where messages hide among those of others, in words."""
    return (
        "the shuffle stage to shuffle and to refuse windows below the minimum, and "
        f"{minimum - 1:,} honest others in each window"
    )


def shuffle_and_others(minimum: int, apart: str) -> str:
    """Who has to be trusted where messages hide among those of others, in words.

    Args:
        minimum: the fewest contributors of a window.
        apart: the epsilon against a stage that keeps the messages of a device together.
    """
    return (
        f"{shuffle_to_mix(minimum)}; against a stage that keeps messages apart epsilon is {apart}"
    )
