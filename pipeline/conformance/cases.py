"""Conformance cases: a protocol with one of its examples, and all views of an observer."""

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
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.panel_rows import ONE
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.message_formats import MessageFormat

FALSE_ALARM = 1e-12
"""Maximum false-alarm probability per comparison; hundreds of comparisons stay below 1e-9."""

Stream: TypeAlias = tuple[Any, ...]
"""Values of a user from epoch 1 on: integers, or tuples of items padded with 0 for sets."""

Report: TypeAlias = tuple[int, ...]
View: TypeAlias = tuple[tuple[Report, ...], ...]
"""Reports that an observer sees: for each epoch, its sorted reports."""

MessageArray: TypeAlias = NDArray[np.unsignedinteger]
Values: TypeAlias = NDArray[Any]
"""Integers of `Case.dtype`."""


class ExactLaw(typing.Protocol):
    """Exact output distribution of an example's devices.

    Computed from a calibrated `Law` and the last epoch, independently of the protocol's code.
    """

    @property
    def devices(self) -> int:
        """Number of devices whose reports the observer sees together.

        It is 1 if a device's guarantee holds without a shuffler; otherwise, the smallest window's
        number of devices. The first device has the stream; all others have values 0.
        """

    def followed(self, stream: Stream) -> bool:
        """Return whether estimates are unbiased for users with this stream."""

    def views(self, stream: Stream) -> Mapping[View, Fraction]:
        """Return the probability of every possible view."""


MakeExactLaw: TypeAlias = Callable[[Any, int], ExactLaw]
"""Constructor of an exact law, with a calibrated `Law` and the last epoch as arguments."""


@dataclass(frozen=True)
class Case:
    """A protocol, one of its examples, and the constructor of its exact law."""

    protocol: Protocol
    number: int
    make_exact: MakeExactLaw

    def __str__(self) -> str:
        return f"{self.protocol.name}-{self.number}"

    @property
    def last_epoch(self) -> int:
        """Last epoch of the horizon."""
        return self.protocol.examples[self.number].last_epoch

    @cached_property
    def law(self) -> Law:
        """Calibrated mechanism of the example."""
        return self.protocol.calibrate(self.parameters, self.last_epoch, self.minimum)

    @cached_property
    def message_format(self) -> MessageFormat:
        """Format of the example's messages."""
        return self.protocol.message_format(self.law)

    @property
    def minimum(self) -> int:
        """Minimum number of devices in a released window."""
        return self.protocol.examples[self.number].minimum

    @property
    def parameters(self) -> Any:
        """Parameters of the example."""
        return self.protocol.examples[self.number].parameters

    def aggregator(self) -> Aggregator:
        """Return an empty aggregator."""
        return self.protocol.aggregation.make(self.law, self.parameters)

    def restored(self, state: bytes) -> Aggregator:
        """Return an aggregator restored from a stored state."""
        return self.protocol.aggregation.read(self.law, self.parameters, state)

    @cached_property
    def exact(self) -> ExactLaw:
        """Exact law of the example's devices."""
        return self.make_exact(self.law, self.last_epoch)

    @cached_property
    def views(self) -> dict[Stream, Mapping[View, Fraction]]:
        """Probability of every view, for every possible stream."""
        return {stream: self.exact.views(stream) for stream in self.streams}

    @property
    def streams(self) -> list[Stream]:
        """All possible streams."""
        return list(product(self.values, repeat=self.last_epoch))

    @cached_property
    def values(self) -> list[int | tuple[int, ...]]:
        """All values that a user can have at an epoch; the first is the initial value, or 0."""
        items, slots = range(self.domain.size), self.domain.slots
        if isinstance(self.domain, PanelDomain):
            return list(product(*map(_answers, self.domain.largest.tolist())))
        if slots is None:
            return list(items)
        return [
            (*held, *[0] * (slots - len(held)))
            for many in range(slots + 1)
            for held in combinations(items[1:], many)
        ]

    @property
    def dtype(self) -> type[np.int8] | type[np.int64]:
        """Integers that hold all values."""
        return np.int64 if isinstance(self.domain, PanelDomain) else np.int8

    def array_of(self, indices: NDArray[np.integer]) -> Values:
        """Return the values at these indices, in the same shape; sets add a dimension."""
        found: Values = np.array(self.values, self.dtype)[indices]
        return found

    @property
    def domain(self) -> ValueDomain:
        """Domain of a user's value."""
        return self.protocol.values(self.parameters)

    def mixed_values(self, devices: int) -> Values:
        """Return values that cycle through all streams, shape (epochs, devices[, slots])."""
        size = len(self.values)
        indices = [np.arange(devices) // size**epoch % size for epoch in range(self.last_epoch)]
        return self.array_of(np.stack(indices))

    def ground_truth(self, values: Values) -> NDArray[np.number[Any]]:
        """Return the true number of devices with value 1, or with each item: (epochs, counts)."""
        if isinstance(self.domain, PanelDomain):
            groups = np.zeros(values.shape[1], np.int64)
            return np.stack([self.domain.ground_truth(each, groups) for each in values])
        counted = range(1, 2 if self.domain.items is None else self.domain.size)
        held = values[..., None] if self.domain.slots is None else values
        return np.stack([(held == value).any(axis=2).sum(axis=1) for value in counted], axis=1)

    def generator(self, *keys: int) -> np.random.Generator:
        """Return a seeded generator, different for every case."""
        return seeded_generator(self.number, *keys)

    def send(self, values: Values, rng: np.random.Generator) -> list[MessageArray]:
        """Return new devices' reports per epoch, for values of shape (epochs, devices)."""
        devices = self.protocol.randomizer(self.law)
        devices.enroll(values.shape[1], rng)
        return [
            written_out(devices.report(epoch, now, None, rng))
            for epoch, now in enumerate(values, 1)
        ]

    def released(self, reports: list[MessageArray], rng: np.random.Generator) -> list[MessageArray]:
        """Return the aggregator's input per epoch: the reports, or the shuffler's noisy sum."""
        summed = self.protocol.stage_sum(self.law)
        if summed is None:
            return reports
        return [summed.release(messages, None, rng) for messages in reports]


def _answers(largest: int) -> list[int]:
    """Return all answers to a question; for a mean, some of them."""
    return list(range(largest + 1)) if largest < ONE else [0, 3 * ONE // 4, ONE]


def show_values(stream: Stream) -> str:
    """Format a user's values as part of a sentence."""
    return f"the values {', '.join(map(str, stream))}"


def show_reports(view: View) -> str:
    """Format a view as part of a sentence: the numbers in each report, by epoch."""
    epochs = (
        " and ".join(" ".join(map(str, report)) for report in reports) or "nothing"
        for reports in view
    )
    return ", then ".join(epochs)


Seen = TypeVar("Seen")


def independent(parts: Iterable[Mapping[Seen, Fraction]]) -> dict[tuple[Seen, ...], Fraction]:
    """Return the joint distribution of independent parts.

    >>> coin = {0: Fraction(1, 4), 1: Fraction(3, 4)}
    >>> independent([coin, coin])[1, 0]
    Fraction(3, 16)
    """
    return {
        tuple(seen for seen, _ in drawn): prod((likely for _, likely in drawn), start=Fraction(1))
        for drawn in product(*(part.items() for part in parts))
    }
