"""What the pipeline asks of a protocol.

Everything here handles a protocol's laws, states and reports as opaque values, through these
interfaces; only the two modules of a protocol know what they mean.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.published import Published
from pipeline.forecasts import Forecast
from pipeline.input.values import BOOLEAN, ValueDomain
from randomizers.counted_words import CountedWords
from randomizers.guarantee import Guarantee
from topics.word_forms import WordForm


class Law(typing.Protocol):
    """The calibrated constants of a protocol: all that devices and aggregators need to agree on."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, from which `Protocol.law_from_json` makes an equal law."""
        ...


class Randomizer(typing.Protocol):
    """A population of enrolled devices, run as one."""

    @property
    def guarantee(self) -> Guarantee:
        """What the law promises every device."""
        ...

    @property
    def population(self) -> int:
        """Devices enrolled."""
        ...

    @property
    def frozen(self) -> int:
        """Devices that had to leave out a change because their budget of changes was used up."""
        ...

    def enrol(self, count: int, rng: np.random.Generator) -> None:
        """Add devices, each with its own draws."""
        ...

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger] | CountedWords:
        """The reports due at an epoch, in no stated order; counted where many are equal.

        `values` and `present` have shape (population,), in the order of enrolment; None: all are
        present. Where values are sets (`ValueDomain.slots`), `values` has shape
        (population, slots): items from 1 on in any order and place, 0 for none. Epochs increase
        strictly.
        """
        ...

    def state_arrays(self) -> Mapping[str, NDArray[Any]]:
        """All that has been drawn or spent, for `Protocol.restore`."""
        ...


class Aggregator(typing.Protocol):
    """Mergeable integer state, and the estimates made from it."""

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """Raise `ValueError` if words of shape (n, width) cannot be reports of the epoch."""
        ...

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.uint32] | None,
    ) -> None:
        """Count words of shape (n, width), each once or as often as `counts` (n,) says."""
        ...

    def merge(self, other: Self) -> None:
        """Equals adding everything that was added to `other`."""
        ...

    def to_bytes(self) -> bytes:
        """The state; equal states give equal bytes."""
        ...

    def estimate(self, epoch: int, attendance: Attendance) -> Published | None:
        """The estimate of an epoch from everything added so far; None where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Example:
    """A job so small that all its devices can draw, see and send can be enumerated.

    Attributes:
        parameters: of the protocol's type; with enough epsilon for the values to show in a few
            thousand reports.
        last_epoch: a handful.
        minimum: the fewest devices a window is released with.
    """

    parameters: Any
    last_epoch: int
    minimum: int = 1


StageDummies: TypeAlias = Callable[[int, np.random.Generator], CountedWords]
"""From an epoch of the horizon and randomness of its own, the dummies of its released window.

It draws the same for the same generator on every worker: integers only, and nothing it remembers.
"""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol.

    Attributes:
        name: as in job files.
        parameters: a frozen dataclass whose ``__post_init__`` raises `ValueError`.
        calibrate: makes the law from parameters, the last epoch of a horizon and the fewest
            contributors a window is released with. Runs where a job is planned and deployed, never
            on a device.
        law_from_json: the inverse of `Law.to_json`.
        randomizer: makes an empty population.
        restore: makes a population from a law, `Randomizer.state_arrays` and the last epoch closed.
        aggregator: makes an empty state from a law and parameters: estimators may be chosen.
        aggregator_from_bytes: the same with what `Aggregator.to_bytes` wrote.
        word_form: what reports look like, from a law.
        needs_shuffle: whether the guarantee rests on the shuffle stage, and on its minimum.
        capacity: where the guarantee rests on the shuffle stage: from a law, an epoch of the
            horizon and the number of devices present, the most messages that they send together,
            whatever their values.
        stage_dummies: from a law, what the shuffle stage adds to every window it releases; None
            where it adds nothing.
        per_epoch: whether every epoch stands alone: its estimate rests on its own reports.
        values: from parameters, what a user's value may be.
        forecast: from law, parameters and last epoch, what `plan` says to expect; None: nothing.
        examples: what the conformance suite holds the protocol to its promises with.
    """

    name: str
    parameters: type[Any]
    calibrate: Callable[[Any, int, int], Law]
    law_from_json: Callable[[Mapping[str, Any]], Law]
    randomizer: Callable[[Any], Randomizer]
    restore: Callable[[Any, Mapping[str, NDArray[Any]], int], Randomizer]
    aggregator: Callable[[Any, Any], Aggregator]
    aggregator_from_bytes: Callable[[Any, Any, bytes], Aggregator]
    word_form: Callable[[Any], WordForm]
    needs_shuffle: bool
    per_epoch: bool = False
    capacity: Callable[[Any, int, int], int] | None = None
    stage_dummies: Callable[[Any], StageDummies | None] = lambda law: None
    values: Callable[[Any], ValueDomain] = lambda parameters: BOOLEAN
    forecast: Callable[[Any, Any, int], Forecast] | None = None
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        if self.needs_shuffle != (self.capacity is not None):
            raise ValueError(
                f"{self.name}: a capacity is what hides the number of messages from whoever sees "
                "the sizes of records, where the guarantee rests on the shuffle stage"
            )


def stated_capacity(law: Any, epoch: int, contributors: int) -> int:
    """The most messages of an epoch, of a law that states it: see `Protocol.capacity`."""
    most: int = law.capacity(epoch, contributors)
    return most
