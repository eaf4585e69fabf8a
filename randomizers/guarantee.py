"""Privacy guarantee for a user, with all of its assumptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Literal, Self


def needs_no_trust(trust: str) -> bool:
    """Return whether a `Guarantee.trust` states that no party is trusted.

    >>> needs_no_trust("none; it holds against everyone"), needs_no_trust("the shuffler to shuffle")
    (True, False)
    """
    return trust.startswith("none")


def rounded_up(number: float, digits: int = 6, rounding: str = ROUND_CEILING) -> str:
    """Format a privacy loss with significant digits, rounded up from its first 15 digits.

    >>> rounded_up(2.71828, 3), rounded_up(0.1 + 0.2), rounded_up(1e-6), rounded_down(2.71828, 3)
    ('2.72', '0.3', '1e-06', '2.71')
    """
    context = Context(prec=digits, rounding=rounding)
    return f"{float(context.create_decimal(f'{number:.15g}')):.{digits}g}"


rounded_down = partial(rounded_up, rounding=ROUND_FLOOR)
"""Format the remainder of a budget, rounded down; see `rounded_up`."""


def attack_success_rate(epsilon: float, delta: float = 0.0) -> float:
    """Bound the success rate of guessing between two neighbors (baseline: one half), rounded up.

    An attacker who guesses the first neighbor for views in a set S is right with probability
    (P(S) + 1 - Q(S)) / 2. Since P(S) <= e^epsilon Q(S) + delta, and the same with P and Q
    exchanged, this is at most (e^epsilon + delta) / (1 + e^epsilon).

    >>> attack_success_rate(0.0), round(attack_success_rate(1.0), 3), attack_success_rate(math.inf)
    (0.5, 0.731, 1.0)
    """
    if epsilon == 0 and delta == 0:
        return 0.5
    # 1 - (1 - delta) / (1 + e^epsilon), which keeps its digits close to 1.
    left = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return 1.0 if math.isinf(epsilon) else min(1.0, (1 - left) * (1 + 1e-15))


def percent_right(epsilon: float, delta: float = 0.0) -> str:
    """Format `attack_success_rate` as a percentage, rounded up.

    >>> percent_right(1.0, 1e-6), percent_right(5.0), percent_right(40.0)
    ('73.2 %', '99.4 %', '100 %')
    """
    wrong = 100 * (1 - attack_success_rate(epsilon, delta))
    if wrong > 1:
        return f"{rounded_up(round(100 - wrong, 12), 3)} %"
    left = Decimal(rounded_down(wrong, 1))
    return "100 %" if left < Decimal("0.0001") else f"{100 - left:f} %"


@dataclass(frozen=True, slots=True)
class ShuffledStreams:
    """Additional guarantee for a user's whole stream, if the shuffler is trusted.

    It covers users who report in every window: the loss of a stream is charged once, for any number
    of epochs. For other users the loss is the local one. `contributors` is the minimum number of
    honest users who report in every window, the user included. If `one_window`, every user reports
    once in a horizon, and is covered; `contributors` is then for that one window.
    """

    epsilon: float
    delta: float
    contributors: int
    one_window: bool = False

    @property
    def trust(self) -> str:
        """Trust assumptions as text."""
        return (shuffle_to_mix if self.one_window else whole_streams)(self.contributors)

    def over(self, horizons: int) -> ShuffledStreams:
        """Return the joint guarantee of several horizons, each with this guarantee."""
        epsilon, delta = _times(horizons, self.epsilon), _times(horizons, self.delta)
        return replace(self, epsilon=epsilon, delta=delta)


@dataclass(frozen=True, slots=True)
class RollingGuarantee:
    """Guarantee of a recurring job for any two streams that differ only within a few epochs.

    It covers everything ever published, in all horizons. `epochs` is the number of consecutive
    epochs within which the streams differ; `epsilon` is rounded up, and delta is 0.
    """

    epochs: int
    epsilon: float

    def __str__(self) -> str:
        span = "epoch" if self.epochs == 1 else f"{self.epochs:,} consecutive epochs"
        return f"epsilon {rounded_up(self.epsilon)} for any {span}, forever"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A differential privacy guarantee.

    For any two neighboring inputs and any set of observations, the two probabilities of the set are
    within a factor exp(epsilon) of each other, up to an additive delta.

    Attributes:
        epsilon: Privacy loss, rounded up.
        delta: Additive term, rounded up; 0 for a pure guarantee.
        unit: Part of a user's data on which the epsilon is spent: the whole "stream", a single
            "epoch" of it, or a single "value", for users whose value never changes.
        neighbors: Pairs of inputs whose difference the guarantee protects.
        trust: Parties that have to be trusted, and parties that need not be; see `needs_no_trust`.
        basis: "exact": computed from the whole output distribution; "bound": proven upper bound.
        horizons: Number of horizons covered in a recurring job, each with fresh draws, or None.
        stream_epsilon: With the unit "value", the loss of a whole stream that may change, rounded
            up and exact for any `basis`. With the unit "epoch", the loss of all epochs of a horizon
            together, with the same delta. None if it is unknown, or the unit is "stream".
        shuffled: Additional guarantee for shuffled streams, if a job states a central guarantee.
        rolling: Additional guarantee of a recurring job for any run of a few consecutive epochs,
            against the same adversary; None if none is stated.
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
    rolling: RollingGuarantee | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read a result of `to_json`; raise `TypeError` or `ValueError` for another object."""
        parts = {"shuffled": ShuffledStreams, "rolling": RollingGuarantee}
        read = {name: make(**body[name]) for name, make in parts.items() if body.get(name)}
        return cls(**{**body, **read})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, omitting None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def over(self, horizons: int) -> Guarantee:
        """Return the joint guarantee of several horizons, each with this guarantee.

        Losses are summed (basic composition), which is exact only without a delta. An epoch lies in
        only one horizon: its guarantee, and that of all epochs of its horizon, are unchanged.
        """
        if self.unit == "epoch":
            return replace(self, horizons=horizons)
        return replace(
            self,
            epsilon=_times(horizons, self.epsilon),
            delta=_times(horizons, self.delta),
            basis="bound" if self.delta and horizons > 1 else self.basis,
            horizons=horizons,
            stream_epsilon=self.stream_epsilon and _times(horizons, self.stream_epsilon),
            shuffled=self.shuffled and self.shuffled.over(horizons),
        )

    @property
    def only_removal(self) -> bool:
        """True if neighbors are a set of items and no items, but not two sets of items."""
        return _NONE in self.neighbors

    @property
    def subject(self) -> str:
        """Part of a user's data that the epsilon covers, as text."""
        unit = _UNITS[self.unit]
        if self.horizons is None or self.unit == "epoch":
            return unit
        return f"{unit} of {'one horizon' if self.horizons == 1 else f'{self.horizons:,} horizons'}"

    @property
    def spent_on(self) -> str:
        """Part of a user's data on which the epsilon is spent, as text."""
        unit = _UNITS[self.unit]
        if self.stream_epsilon is not None:
            most = "at most " if self.unit == "epoch" else ""
            unit += f" and epsilon {most}{rounded_up(self.stream_epsilon)} for the whole stream"
        if self.horizons is None:
            return unit
        if self.unit == "epoch":
            return unit if self.stream_epsilon is None else f"{unit} of each horizon"
        if self.horizons == 1:
            return f"{unit} of one horizon, n times that for n horizons"
        return f"{unit} of {self.horizons:,} horizons"

    def __str__(self) -> str:
        loss = format_loss(self.epsilon, self.delta)
        text = (
            f"{loss} for a user's {self.spent_on} ({self.basis}); neighbors: {self.neighbors}; "
            f"trusted party: {self.trust}"
        )
        if self.rolling is not None:
            text += f"; {self.rolling}: {WITHIN}"
        if self.shuffled is None:
            return text
        loss = format_loss(self.shuffled.epsilon, self.shuffled.delta)
        text += f"; {loss} for a user's {self.subject}"
        return f"{text} if these are trusted: {self.shuffled.trust}"


def format_loss(epsilon: float, delta: float = 0.0) -> str:
    """Format an epsilon and a delta, rounded up; a delta of 0 is omitted."""
    return f"epsilon {rounded_up(epsilon)}" + (f", delta {rounded_up(delta)}" if delta else "")


def _times(count: int, loss: float) -> float:
    product = count * loss
    return product if product >= count * Fraction(loss) else math.nextafter(product, math.inf)


WITHIN = (
    "two streams that differ only within these epochs, even if everything ever published is seen"
)
"""Streams and observations that a `RollingGuarantee` covers."""
_NONE = " and having none"
_UNITS = {
    "stream": "whole stream",
    "epoch": "value of one epoch",
    "value": "value, if it never changes,",
}


def held_by_a_user(items: int) -> str:
    """Return the neighbor relation of users with at most `items` items, as text."""
    one, held = "an item", "items"
    if items > 1:
        one, held = "a set", f"sets of at most {items:,} items"
    return f"any two {held} of a user at an epoch, or {one} and no items; who is present is public"


def held_or_nothing(items: int) -> str:
    """Return the neighbor relation between having items and having none, as text."""
    held = "an item" if items == 1 else f"a set of at most {items:,} items"
    return f"having {held} at an epoch{_NONE}; who is present is public"


def of_messages_apart(shuffled: Guarantee, epsilon: float, messages: int) -> Guarantee:
    """Return the guarantee against an adversary that links each device's messages.

    It assumes no trusted party. `epsilon` is the loss of a device's messages at one epoch; the
    device sends messages at `messages` epochs of a horizon.
    """
    pure = replace(shuffled, epsilon=epsilon, delta=0.0, trust="none", basis="bound")
    return replace(pure, stream_epsilon=_times(messages, epsilon))


def whole_streams(contributors: int) -> str:
    """Return the trust assumptions for whole streams that are hidden among others, as text."""
    return (
        f"the shuffler to shuffle, and {contributors - 1:,} other honest users; it covers "
        "users who, like these, report in every window, if nothing but the content of messages "
        "links them across epochs and published estimates do not influence anyone's values"
    )


LINKS = "knows which messages come from the same device"
UNPROTECTED = f"the messages alone do not protect against a shuffler that {LINKS}"


def shuffle_to_mix(minimum: int) -> str:
    """Return the trust assumptions for messages that are hidden among others, as text."""
    return (
        f"the shuffler to shuffle and to suppress windows below the minimum, and {minimum - 1:,} "
        "other honest users in each window"
    )


def shuffle_and_others(minimum: int, apart: str) -> str:
    """Return the text of `shuffle_to_mix` with the epsilon that remains without that trust.

    `apart` is epsilon against a shuffler that links each device's messages.
    """
    return f"{shuffle_to_mix(minimum)}; against a shuffler that {LINKS}, epsilon is {apart}"
