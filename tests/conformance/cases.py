"""What the suite runs over: every protocol of the registry, with each of the examples it offers.

A new protocol needs no change here. It needs examples in its registry entry, an exact law in
``laws/<protocol>.py`` (see `ExactLaw`) and golden bytes (``python -m tests.conformance.golden``);
what is missing fails with a sentence that says so.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.input.values import ValueDomain
from pipeline.protocol import Aggregator, Law, Protocol
from pipeline.protocols import PROTOCOLS
from randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-12
"""Of one comparison: hundreds of them together stay below 1e-9."""

Stream: TypeAlias = tuple[int, ...]
"""A user's values, epoch 1 first."""

Report: TypeAlias = tuple[int, ...]
View: TypeAlias = tuple[tuple[Report, ...], ...]
"""What an observer sees: for every epoch the reports, sorted."""

WordArray: TypeAlias = NDArray[np.unsignedinteger]


class ExactLaw(typing.Protocol):
    """All that the devices of an example may send, with exact probabilities.

    The class of this name in ``laws/<protocol>.py`` is made from a law and the last epoch. It works
    the probabilities out on its own, from all that a device can draw: not from samples.
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


@dataclass(frozen=True)
class Case:
    """A protocol with one of its examples."""

    protocol: Protocol
    number: int

    def __str__(self) -> str:
        return f"{self.protocol.name}-{self.number}"

    @property
    def last_epoch(self) -> int:
        return self.protocol.examples[self.number].last_epoch

    @cached_property
    def law(self) -> Law:
        return self.protocol.calibrate(self.parameters, self.last_epoch)

    @property
    def parameters(self) -> Any:
        return self.protocol.examples[self.number].parameters

    def aggregator(self) -> Aggregator:
        """An empty one."""
        return self.protocol.aggregator(self.law, self.parameters)

    def restored(self, state: bytes) -> Aggregator:
        """One with a stored state."""
        return self.protocol.aggregator_from_bytes(self.law, self.parameters, state)

    @cached_property
    def exact(self) -> ExactLaw:
        """The case's `ExactLaw`."""
        module = f"tests.conformance.laws.{self.protocol.name}"
        try:
            law: ExactLaw = import_module(module).ExactLaw(self.law, self.last_epoch)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            pytest.fail(
                f"protocol {self.protocol.name} has no exact law to be checked against: write "
                f"{module.replace('.', '/')}.py with an ExactLaw as tests/conformance/cases.py says"
            )
        return law

    @cached_property
    def views(self) -> dict[Stream, Mapping[View, Fraction]]:
        """What can be seen, for every stream that there is."""
        return {stream: self.exact.views(stream) for stream in self.streams}

    @property
    def streams(self) -> list[Stream]:
        """Every stream that there is."""
        return list(product(range(self.domain.size), repeat=self.last_epoch))

    @property
    def domain(self) -> ValueDomain:
        """What a user's value may be."""
        return self.protocol.values(self.parameters)

    def mixed_values(self, devices: int) -> NDArray[np.int8]:
        """Values, shape (epochs, devices): all streams in turn."""
        size = self.domain.size
        return np.stack(
            [np.arange(devices) // size**epoch % size for epoch in range(self.last_epoch)]
        ).astype(np.int8)

    def truth(self, values: NDArray[np.int8]) -> NDArray[np.int64]:
        """What is estimated, shape (epochs, counts): devices with value 1, or with each item."""
        counted = range(1, 2 if self.domain.items is None else self.domain.size)
        return np.stack([(values == value).sum(axis=1) for value in counted], axis=1)

    def generator(self, *keys: int) -> np.random.Generator:
        """Repeatable randomness, other for every case."""
        return seeded_generator(self.number, *keys)

    def send(self, values: NDArray[np.int8], rng: np.random.Generator) -> list[WordArray]:
        """The reports, epoch by epoch, of new devices with the values (epochs, devices)."""
        devices = self.protocol.randomizer(self.law)
        devices.enrol(values.shape[1], rng)
        return [devices.report(epoch, now, None, rng) for epoch, now in enumerate(values, 1)]


CASES = [
    Case(protocol, number)
    for protocol in PROTOCOLS.values()
    for number in range(len(protocol.examples))
]

# All pairs of streams are looked at: where there are many, it takes a while.
MANY_STREAMS = 40

every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] if len(case.streams) > MANY_STREAMS else [])
        for case in CASES
    ],
    ids=str,
)
