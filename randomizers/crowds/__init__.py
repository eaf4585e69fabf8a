"""Crowds: parts of the people by a public column, whose sizes are told with noise.

Algorithm 3 of "Encode, Shuffle, Analyze Privacy Revisited" (Erlingsson, Feldman, Mironov,
Raghunathan, Song, Talwar, Thakurta 2020). A device sends one message, and the crowd that it is in
stands before it. The shuffle stage deletes at random from every crowd, so that what is left tells
its size with differential privacy only, and withholds what is left of crowds that are too small.
Of n messages max(0, min(n, n + Z - shift)) are left, uniformly drawn, where Z is discrete Laplace:
P(z) is in proportion to decay^|z|.

Here is what devices run, and the law. Which messages are deleted is drawn by
`dpstream.pipeline.stages.crowd_deletion`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import log_rounded_up
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.parameter_checks import MOST_CROWDS
from dpstream.topics.word_forms import WordForm


class ContentsLaw(Protocol):
    """What is asked of the law of the messages themselves."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        ...

    def of_one_epoch(self) -> Any:
        """The same law with a single epoch."""
        ...

    @property
    def items(self) -> int:
        """How many items there are."""
        ...

    @property
    def epsilon(self) -> float:
        """Of a user's messages of one epoch."""
        ...

    @property
    def minimum(self) -> int:
        """The fewest contributors that a message is hidden among."""
        ...

    @property
    def last_epoch(self) -> int:
        """Number of epochs."""
        ...

    @property
    def word_form(self) -> WordForm:
        """What messages look like."""
        ...

    def capacity(self, epoch: int, contributors: int) -> int:
        """How many messages so many contributors send at an epoch: one each."""
        ...


@dataclass(frozen=True, slots=True)
class CrowdCounts:
    """The law of the deletion.

    Attributes:
        decay: of the noise, as numerator and denominator.
        shift: how many more are deleted than the noise says.
        delta: of the numbers of all crowds at all epochs together.

    Raises:
        ValueError: a field is out of range.
    """

    decay: tuple[int, int]
    shift: int
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.decay[0] < self.decay[1] or self.shift < 1 or not 0 < self.delta < 1:
            raise ValueError(f"{self} is no law of deletion")

    @property
    def ratio(self) -> Fraction:
        """The decay itself."""
        return Fraction(*self.decay)

    @property
    def epsilon(self) -> float:
        """The loss of the numbers of all crowds of an epoch, rounded up: a user is in two."""
        return log_rounded_up(1 / self.ratio, 2)

    @property
    def variance(self) -> float:
        """Of Z."""
        decay = float(self.ratio)
        return 2 * decay / (1 - decay) ** 2

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return {"decay": list(self.decay), "shift": self.shift, "delta": self.delta}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`; `ValueError` if it is something else."""
        try:
            numerator, denominator = map(int, body["decay"])
            return cls((numerator, denominator), int(body["shift"]), float(body["delta"]))
        except (LookupError, TypeError) as error:
            raise ValueError(f"no law of deletion: {error!r}") from error


@dataclass(frozen=True, slots=True)
class CrowdsLaw:
    """All constants of a job with crowds.

    Attributes:
        contents: of the messages; its epsilon is that of a user's messages in two windows.
        crowds: how many there are.
        counts: of the deletion.

    Raises:
        ValueError: there are too few crowds, or too many.
    """

    contents: ContentsLaw
    crowds: int
    counts: CrowdCounts

    def __post_init__(self) -> None:
        if not 1 <= self.crowds <= MOST_CROWDS:
            raise ValueError(f"{self.crowds} crowds, must be from 1 to {MOST_CROWDS:,}")

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return {
            "contents": self.contents.to_json(),
            "crowds": self.crowds,
            "counts": self.counts.to_json(),
        }

    def of_one_epoch(self) -> CrowdsLaw:
        """The same with a single epoch; how much is deleted stays."""
        return replace(self, contents=self.contents.of_one_epoch())

    @property
    def items(self) -> int:
        """How many values a user may have: in each crowd no item, or one of the items."""
        return self.crowds * (self.contents.items + 1)

    @property
    def minimum(self) -> int:
        """The fewest messages left of a crowd that is released."""
        return self.contents.minimum

    @property
    def last_epoch(self) -> int:
        """Number of epochs."""
        return self.contents.last_epoch

    def capacity(self, epoch: int, contributors: int) -> int:
        """As many messages as contributors."""
        return self.contents.capacity(epoch, contributors)

    @property
    def digits(self) -> int:
        """Words that the number of a crowd takes, the highest digit first."""
        bits = 8 * self.contents.word_form.dtype.itemsize
        return -(-self.crowds.bit_length() // bits)

    @property
    def word_form(self) -> WordForm:
        """The number of the crowd, 0 for none, and then the message."""
        form = self.contents.word_form
        return WordForm(form.dtype, self.digits + form.width)

    def words_of(
        self, crowds: NDArray[np.int64], messages: NDArray[np.unsignedinteger]
    ) -> NDArray[np.unsignedinteger]:
        """Messages (n, width) with the numbers of their crowds (n,) before them."""
        bits = 8 * messages.dtype.itemsize
        shifts = bits * np.arange(self.digits)[::-1]
        digits = crowds[:, None] >> shifts & ((1 << bits) - 1)
        return np.concatenate([digits.astype(messages.dtype), messages], axis=1)

    def crowds_of(self, words: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        """The crowds of words, int64 (n,); 0 for none."""
        bits = 8 * words.dtype.itemsize
        crowds = np.zeros(len(words), np.int64)
        for column in range(self.digits):
            crowds = crowds << bits | words[:, column].astype(np.int64)
        return crowds


@dataclass(frozen=True, slots=True)
class CrowdsLawReader:
    """Reads laws of crowds whose messages have a law of one class."""

    contents: Callable[[Mapping[str, Any]], Any]

    def from_json(self, body: Mapping[str, Any], /) -> CrowdsLaw:
        """Read `CrowdsLaw.to_json`.

        Raises:
            ValueError: it is something else.
        """
        try:
            contents, counts = self.contents(body["contents"]), body["counts"]
            return CrowdsLaw(contents, int(body["crowds"]), CrowdCounts.from_json(counts))
        except (LookupError, TypeError) as error:
            raise ValueError(f"not a law of crowds: {error!r}") from error


class CrowdDevices(Devices[CrowdsLaw]):
    """The devices of one horizon: those of the messages, which also say in which crowd they are.

    A user has the value (crowd - 1) (items + 1) + 1 + item, item 0 being none. Where a user has
    several, the crowd is that of the first one, and values in others are passed over.

    Args:
        law: the constants of the job.
        contents: the devices that make the messages, one each, in the order of enrolment.
    """

    def __init__(self, law: CrowdsLaw, contents: Devices[Any]) -> None:
        super().__init__(law)
        self._contents = contents
        self.epoch, self.population = contents.epoch, contents.population

    def restored(self, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        """See `Devices.restored`; nothing is kept but the devices of the messages."""
        return type(self)(self.law, self._contents.restored(arrays, epoch))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's crowd and message of one epoch, and of all of them together."""
        counts, contents = self.law.counts, self._contents.guarantee
        stream = contents.stream_epsilon
        return replace(
            contents,
            epsilon=sum_rounded_up(contents.epsilon, counts.epsilon),
            delta=sum_rounded_up(contents.delta, counts.delta),
            neighbours=(
                f"{contents.neighbours.partition(';')[0]}, in any two crowds; who is present is "
                "public"
            ),
            trust=(
                "the shuffle stage to delete at random from each crowd and to keep its noise key "
                f"secret; and, for each crowd that is left, {contents.trust}; the crowd itself is "
                f"known to it. Of the loss of an epoch, {counts.epsilon:.6g} is that of the "
                f"numbers of all crowds, and {contents.epsilon:.6g} that of the messages in two"
            ),
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
        """The messages of everybody present, one each, and before each the number of its crowd.

        Returns:
            unsigned, shape (devices present, digits + width of a message).
        """
        check_epoch(epoch, after=self.epoch, last_epoch=self.law.last_epoch)
        crowds, items = self._parted(epoch, values, present)
        messages = self._contents.report(epoch, items, present, rng)
        assert not isinstance(messages, CountedWords)
        if present is not None:
            crowds = crowds[present]
        assert len(messages) == len(crowds), "one message of each device"
        self.epoch = epoch
        return self.law.words_of(crowds, messages)

    def enrol(self, count: int, rng: np.random.Generator) -> None:
        """See `Devices`."""
        self._contents.enrol(count, rng)
        self.population = self._contents.population

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        """See `Devices`."""
        return self._contents.state_arrays()

    def _parted(
        self, epoch: int, values: NDArray[Any], present: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Crowds (population,), 0 for none, and items (population, slots) within them."""
        if values.ndim != 2 or len(values) != self.population or values.shape[1] < 2:
            raise ValueError(f"values of shape {values.shape} for {self.population} devices")
        if values.dtype.kind not in "iu":
            raise ValueError(f"values of dtype {values.dtype}, must be integers")
        numbers = values.astype(np.int64)
        if present is not None:
            numbers[~present] = 0
        if numbers.size and not (numbers.min() >= 0 and numbers.max() <= self.law.items):
            raise ValueError(f"a value at epoch {epoch} is not from 0 to {self.law.items:,}")
        per_crowd = self.law.contents.items + 1
        # A value of 0 lies in crowd 0.
        crowd_of_each = (numbers + per_crowd - 1) // per_crowd
        first = (numbers != 0).argmax(axis=1)
        crowds = crowd_of_each[np.arange(len(numbers)), first]
        items = (numbers - 1) % per_crowd
        items[(crowd_of_each != crowds[:, None]) | (numbers == 0)] = 0
        # Each item once, and those to the left: a value that is no item leaves room for one.
        items = -np.sort(-items, axis=1)
        items[:, 1:][items[:, 1:] == items[:, :-1]] = 0
        items = -np.sort(-items, axis=1)
        if items[:, -1].any():
            raise ValueError(
                f"a user holds {items.shape[1]} items at epoch {epoch}, must be at most "
                f"{items.shape[1] - 1}"
            )
        return crowds, items[:, :-1]


def sum_rounded_up(*losses: float) -> float:
    """The sum of losses, rounded up.

    >>> sum_rounded_up(0.1, 0.2), sum_rounded_up(1.0, 0.5)
    (0.30000000000000004, 1.5)
    """
    exact = sum(map(Fraction, losses), Fraction())
    nearest = float(exact)
    while Fraction(nearest) < exact:
        nearest = float(np.nextafter(nearest, np.inf))
    return nearest
