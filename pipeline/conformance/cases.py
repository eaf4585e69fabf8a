"""A protocol with one of its examples, and all that can be seen of it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.protocols.protocol import Aggregator, Law, Protocol
from dpstream.pipeline.values.examples import ExampleDomain
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.counted_words import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.word_forms import WordForm

FALSE_ALARM = 1e-12
"""Of one comparison: hundreds of them together stay below 1e-9."""

Stream: TypeAlias = tuple[Any, ...]
"""A user's values, epoch 1 first: integers; for sets, tuples with their slots, 0 at the end."""

Report: TypeAlias = tuple[int, ...]
View: TypeAlias = tuple[tuple[Report, ...], ...]
"""What an observer sees: for every epoch the reports, sorted."""

WordArray: TypeAlias = NDArray[np.unsignedinteger]


class ExactLaw(typing.Protocol):
    """All that the devices of an example may send, with exact probabilities.

    Whoever writes one makes it from a law and the last epoch. It works the probabilities out on its
    own, from all that a device can draw: not from samples.
    """

    @property
    def devices(self) -> int:
        """How many devices the observer sees together.

        1 where the reports of a device protect it by themselves; where the guarantee needs the
        shuffle stage, the smallest window. The first has the stream, the values of others are 0.
        """
        ...

    def followed(self, stream: Stream) -> bool:
        """Whether estimates are unbiased for users with this stream."""
        ...

    def views(self, stream: Stream) -> Mapping[View, Fraction]:
        """The probability of everything that can be seen."""
        ...


MakeExactLaw: TypeAlias = Callable[[Any, int], ExactLaw]
"""From a law and the last epoch."""


@dataclass(frozen=True)
class Case:
    """A protocol with one of its examples, and what makes its exact law."""

    protocol: Protocol
    number: int
    make_exact: MakeExactLaw

    def __str__(self) -> str:
        return f"{self.protocol.name}-{self.number}"

    @property
    def last_epoch(self) -> int:
        """Of the horizon."""
        return self.protocol.examples[self.number].last_epoch

    @cached_property
    def law(self) -> Law:
        """The constants of the example."""
        return self.protocol.calibrate(self.parameters, self.last_epoch, self.minimum)

    @cached_property
    def word_form(self) -> WordForm:
        """What reports look like."""
        return self.protocol.word_form(self.law)

    @property
    def minimum(self) -> int:
        """The fewest devices a window is released with."""
        return self.protocol.examples[self.number].minimum

    @property
    def parameters(self) -> Any:
        """Of the example."""
        return self.protocol.examples[self.number].parameters

    def aggregator(self) -> Aggregator:
        """An empty one."""
        return self.protocol.aggregation.make(self.law, self.parameters)

    def restored(self, state: bytes) -> Aggregator:
        """One with a stored state."""
        return self.protocol.aggregation.read(self.law, self.parameters, state)

    @cached_property
    def exact(self) -> ExactLaw:
        """The case's `ExactLaw`."""
        return self.make_exact(self.law, self.last_epoch)

    @cached_property
    def views(self) -> dict[Stream, Mapping[View, Fraction]]:
        """What can be seen, for every stream that there is."""
        return {stream: self.exact.views(stream) for stream in self.streams}

    @property
    def streams(self) -> list[Stream]:
        """Every stream that there is."""
        return list(product(self.values, repeat=self.last_epoch))

    @cached_property
    def values(self) -> list[int | tuple[int, ...]]:
        """Every value that a user may have at an epoch; the first one is the initial one or 0."""
        items, slots = range(self.domain.size), self.domain.slots
        if isinstance(self.domain, ExampleDomain):
            features = self.domain.features
            return [(0,) * (1 + features), (1, *[127] * features), (2, 90, *[-50] * (features - 1))]
        if slots is None:
            return list(items)
        return [
            (*held, *[0] * (slots - len(held)))
            for many in range(slots + 1)
            for held in combinations(items[1:], many)
        ]

    def array_of(self, indices: NDArray[np.integer]) -> NDArray[np.int8]:
        """The values at these indices: their shape, and one dimension more for sets."""
        found: NDArray[np.int8] = np.array(self.values, np.int8)[indices]
        return found

    @property
    def domain(self) -> ValueDomain:
        """What a user's value may be."""
        return self.protocol.values(self.parameters)

    def mixed_values(self, devices: int) -> NDArray[np.int8]:
        """Values, shape (epochs, devices), or (epochs, devices, slots): all streams in turn."""
        size = len(self.values)
        indices = [np.arange(devices) // size**epoch % size for epoch in range(self.last_epoch)]
        return self.array_of(np.stack(indices))

    def truth(self, values: NDArray[np.int8]) -> NDArray[np.int64]:
        """What is estimated, shape (epochs, counts): devices with value 1, or with each item."""
        counted = range(1, 2 if self.domain.items is None else self.domain.size)
        held = values[..., None] if self.domain.slots is None else values
        return np.stack([(held == value).any(axis=2).sum(axis=1) for value in counted], axis=1)

    def generator(self, *keys: int) -> np.random.Generator:
        """Repeatable randomness, other for every case."""
        return seeded_generator(self.number, *keys)

    def send(self, values: NDArray[np.int8], rng: np.random.Generator) -> list[WordArray]:
        """The reports, epoch by epoch, of new devices with the values (epochs, devices)."""
        devices = self.protocol.randomizer(self.law)
        devices.enrol(values.shape[1], rng)
        return [
            written_out(devices.report(epoch, now, None, rng))
            for epoch, now in enumerate(values, 1)
        ]

    def released(self, reports: list[WordArray], rng: np.random.Generator) -> list[WordArray]:
        """What an aggregator is given of the reports of every epoch: these, or their noisy sum."""
        summed = self.protocol.stage_sum(self.law)
        if summed is None:
            return reports
        return [summed.release(words, None, rng) for words in reports]


def values_in_words(stream: Stream) -> str:
    """A user's values, as a sentence names them."""
    return f"the values {', '.join(map(str, stream))}"


def reports_in_words(view: View) -> str:
    """What is seen, as a sentence names it: the reports of each epoch, number by number."""
    epochs = (
        " and ".join(" ".join(map(str, report)) for report in reports) or "nothing"
        for reports in view
    )
    return ", then ".join(epochs)


Seen = TypeVar("Seen")


def independent(parts: Iterable[Mapping[Seen, Fraction]]) -> dict[tuple[Seen, ...], Fraction]:
    """What parts show together: all tuples of what each shows, with their probabilities.

    Args:
        parts: of each, the probability of all that it may show.

    >>> coin = {0: Fraction(1, 4), 1: Fraction(3, 4)}
    >>> independent([coin, coin])[1, 0]
    Fraction(3, 16)
    """
    return {
        tuple(seen for seen, _ in drawn): prod((likely for _, likely in drawn), start=Fraction(1))
        for drawn in product(*(part.items() for part in parts))
    }
