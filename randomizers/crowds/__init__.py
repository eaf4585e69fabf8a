"""Crowds: groups of users with the same value in a public column; group sizes get noise.

A device sends one message, preceded by its crowd. The shuffler deletes messages at random from
every crowd, so the remaining messages reveal the crowd's size only with differential privacy. Of n
messages, a uniform sample of max(0, min(n, n + Z - shift)) remains. Z is discrete Laplace noise:
P(z) is proportional to decay^|z|. If too few messages remain, the crowd is suppressed.

This module contains the devices and the mechanism; `dpstream.pipeline.stages.crowd_deletion` draws
the messages to delete.

Reference: Erlingsson et al., *Encode, Shuffle, Analyze Privacy Revisited*, 2020, Algorithm 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import log_rounded_up
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import Guarantee, rounded_up
from dpstream.randomizers.parameter_checks import MOST_CROWDS
from dpstream.topics.message_formats import MessageFormat


class ContentsLaw(Protocol):
    def to_json(self) -> dict[str, Any]: ...

    def of_one_epoch(self) -> Any: ...

    @property
    def items(self) -> int: ...

    @property
    def epsilon(self) -> float: ...

    @property
    def minimum(self) -> int: ...

    @property
    def last_epoch(self) -> int: ...

    @property
    def message_format(self) -> MessageFormat: ...

    def capacity(self, epoch: int, contributors: int) -> int:
        """Return the number of messages at an epoch: one per contributor."""


@dataclass(frozen=True, slots=True)
class CrowdCounts:
    """Mechanism that deletes messages at random.

    Attributes:
        decay: Decay of the noise, as numerator and denominator.
        shift: Number of messages deleted in addition to the noise.
        delta: Delta for the sizes of all crowds at all epochs together.
    """

    decay: tuple[int, int]
    shift: int
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.decay[0] < self.decay[1] or self.shift < 1 or not 0 < self.delta < 1:
            raise ValueError(
                f"decay is {self.decay}, shift is {self.shift} and delta is {self.delta}; expected "
                "decay and delta above 0 and below 1, and shift of at least 1"
            )

    @property
    def ratio(self) -> Fraction:
        return Fraction(*self.decay)

    @property
    def epsilon(self) -> float:
        """Privacy loss of an epoch's crowd sizes, rounded up; one user can change two of them."""
        return log_rounded_up(1 / self.ratio, 2)

    @property
    def variance(self) -> float:
        decay = float(self.ratio)
        return 2 * decay / (1 - decay) ** 2

    def to_json(self) -> dict[str, Any]:
        return {"decay": list(self.decay), "shift": self.shift, "delta": self.delta}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        try:
            numerator, denominator = map(int, body["decay"])
            return cls((numerator, denominator), int(body["shift"]), float(body["delta"]))
        except (LookupError, TypeError) as error:
            raise ValueError(f"invalid constants for crowd sizes: {error!r}") from error


@dataclass(frozen=True, slots=True)
class CrowdsLaw:
    """All constants of a job with crowds.

    `contents` is the mechanism that draws the messages; its epsilon covers a user's messages in two
    windows. `counts` is the mechanism that deletes messages.
    """

    contents: ContentsLaw
    crowds: int
    counts: CrowdCounts

    def __post_init__(self) -> None:
        if not 1 <= self.crowds <= MOST_CROWDS:
            raise ValueError(f"got {self.crowds} crowds; expected 1 to {MOST_CROWDS:,}")

    def to_json(self) -> dict[str, Any]:
        return {
            "contents": self.contents.to_json(),
            "crowds": self.crowds,
            "counts": self.counts.to_json(),
        }

    def of_one_epoch(self) -> CrowdsLaw:
        return replace(self, contents=self.contents.of_one_epoch())

    @property
    def items(self) -> int:
        """Number of possible values for a user: in each crowd, no item or one of the items."""
        return self.crowds * (self.contents.items + 1)

    @property
    def minimum(self) -> int:
        return self.contents.minimum

    @property
    def last_epoch(self) -> int:
        return self.contents.last_epoch

    def capacity(self, epoch: int, contributors: int) -> int:
        return self.contents.capacity(epoch, contributors)

    @property
    def digits(self) -> int:
        """Number of message columns that a crowd's number occupies, most significant first."""
        bits = 8 * self.contents.message_format.dtype.itemsize
        return -(-self.crowds.bit_length() // bits)

    @property
    def message_format(self) -> MessageFormat:
        form = self.contents.message_format
        return MessageFormat(form.dtype, self.digits + form.width)

    def messages_of(
        self, crowds: NDArray[np.int64], messages: NDArray[np.unsignedinteger]
    ) -> NDArray[np.unsignedinteger]:
        """Prefix messages, shape (n, width), with the numbers of their crowds, shape (n,)."""
        bits = 8 * messages.dtype.itemsize
        shifts = bits * np.arange(self.digits)[::-1]
        digits = crowds[:, None] >> shifts & ((1 << bits) - 1)
        return np.concatenate([digits.astype(messages.dtype), messages], axis=1)

    def crowds_of(self, words: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        """Return the crowd of each message: int64, shape (n,), 0 for none."""
        bits = 8 * words.dtype.itemsize
        crowds = np.zeros(len(words), np.int64)
        for column in range(self.digits):
            crowds = crowds << bits | words[:, column].astype(np.int64)
        return crowds


@dataclass(frozen=True, slots=True)
class CrowdsLawReader:
    contents: Callable[[Mapping[str, Any]], Any]

    def from_json(self, body: Mapping[str, Any], /) -> CrowdsLaw:
        try:
            contents, counts = self.contents(body["contents"]), body["counts"]
            return CrowdsLaw(contents, int(body["crowds"]), CrowdCounts.from_json(counts))
        except (LookupError, TypeError) as error:
            raise ValueError(f"invalid constants for crowds: {error!r}") from error


class CrowdDevices(Devices[CrowdsLaw]):
    """Devices for one horizon that put their crowd's number in front of each message.

    A value is (crowd - 1) (items + 1) + 1 + item, with item 0 for no item. A user with several
    values is in the crowd of the first one; values in other crowds are ignored. `contents` are the
    devices that make the messages, one message each, in enrollment order.
    """

    def __init__(self, law: CrowdsLaw, contents: Devices[Any]) -> None:
        super().__init__(law)
        self._contents = contents
        self.epoch, self.population = contents.epoch, contents.population

    def restored(self, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        return type(self)(self.law, self._contents.restored(arrays, epoch))

    @property
    def guarantee(self) -> Guarantee:
        counts, contents = self.law.counts, self._contents.guarantee
        stream = contents.stream_epsilon
        return replace(
            contents,
            epsilon=sum_rounded_up(contents.epsilon, counts.epsilon),
            delta=sum_rounded_up(contents.delta, counts.delta),
            neighbors=(
                f"{contents.neighbors.partition(';')[0]}, in any two crowds; who is present is "
                "public"
            ),
            trust=(
                "the shuffler to delete randomly chosen messages from each crowd and to keep its "
                f"noise key secret; and, for each remaining crowd, {contents.trust}; the shuffler "
                f"knows the crowd itself. Of the loss of an epoch, {rounded_up(counts.epsilon)} "
                f"covers the sizes of all crowds, and {rounded_up(contents.epsilon)} the messages "
                "in any two crowds"
            ),
            basis="bound",
            stream_epsilon=None
            if stream is None
            else sum_rounded_up(stream, *[counts.epsilon] * self.law.last_epoch),
        )

    def report(
        self,
        epoch: int,
        values: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        check_epoch(epoch, after=self.epoch, last_epoch=self.law.last_epoch)
        crowds, items = self._parted(epoch, values, present)
        messages = self._contents.report(epoch, items, present, rng)
        assert not isinstance(messages, CountedMessages)
        if present is not None:
            crowds = crowds[present]
        assert len(messages) == len(crowds), "one message per device"
        self.epoch = epoch
        return self.law.messages_of(crowds, messages)

    def enroll(
        self,
        count: int,
        rng: np.random.Generator,
        kept: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._contents.enroll(count, rng, kept)
        self.population = self._contents.population

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        return self._contents.state_arrays()

    def _parted(
        self, epoch: int, values: NDArray[Any], present: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return crowds (population,), 0 for none, and items (population, slots) within them."""
        if values.ndim != 2 or len(values) != self.population or values.shape[1] < 2:
            raise ValueError(
                f"'values' has shape {values.shape}; expected ({self.population}, slots), with at "
                "least 2 slots"
            )
        if values.dtype.kind not in "iu":
            raise ValueError(f"'values' has dtype {values.dtype}; expected integers")
        numbers = values.astype(np.int64)
        if present is not None:
            numbers[~present] = 0
        if numbers.size and not (numbers.min() >= 0 and numbers.max() <= self.law.items):
            raise ValueError(
                f"a value at epoch {epoch} is out of range; expected 0 to {self.law.items:,}"
            )
        per_crowd = self.law.contents.items + 1
        # A value of 0 is in crowd 0.
        crowd_of_each = (numbers + per_crowd - 1) // per_crowd
        first = (numbers != 0).argmax(axis=1)
        crowds = crowd_of_each[np.arange(len(numbers)), first]
        items = (numbers - 1) % per_crowd
        items[(crowd_of_each != crowds[:, None]) | (numbers == 0)] = 0
        # Keep each item once, moved to the left: a value without an item leaves its slot free.
        items = -np.sort(-items, axis=1)
        items[:, 1:][items[:, 1:] == items[:, :-1]] = 0
        items = -np.sort(-items, axis=1)
        if items[:, -1].any():
            raise ValueError(
                f"a user has {items.shape[1]} items in one crowd at epoch {epoch}; expected at "
                f"most {items.shape[1] - 1}"
            )
        return crowds, items[:, :-1]


def sum_rounded_up(*losses: float) -> float:
    """Return the sum of losses, rounded up.

    >>> sum_rounded_up(0.1, 0.2), sum_rounded_up(1.0, 0.5)
    (0.30000000000000004, 1.5)
    """
    exact = sum(map(Fraction, losses), Fraction())
    nearest = float(exact)
    while Fraction(nearest) < exact:
        nearest = float(np.nextafter(nearest, np.inf))
    return nearest
