"""What the pipeline asks of a protocol.

Everything here handles a protocol's laws, states and reports as opaque values, through these
interfaces; only a protocol's own modules know what they mean.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Attendance, Published
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.word_forms import WordForm

if TYPE_CHECKING:
    from dpstream.aggregators.change_errors import ChangeErrors
    from dpstream.pipeline.protocols.forecasts import Forecast
    from dpstream.randomizers.crowds import CrowdsLaw


class Law(typing.Protocol):
    """The calibrated constants of a protocol: all that devices and aggregators need to agree on."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, without a tag: `Protocol.law` knows of which class they are."""
        ...


@typing.runtime_checkable
class PerEpochLaw(Law, typing.Protocol):
    """The law of a protocol whose epochs stand alone."""

    def of_one_epoch(self) -> Law:
        """The same law with a single epoch: equal for laws whose epochs are drawn alike."""
        ...


class Aggregator(typing.Protocol):
    """Mergeable integer state, and the estimates made from it."""

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """Raise `ValueError` if words of shape (n, width) cannot be released of the epoch."""
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
        """Equal adding everything that was added to `other`; `ValueError` for another law."""
        ...

    def to_bytes(self) -> bytes:
        """The state; equal states give equal bytes."""
        ...

    def estimate(self, epoch: int, attendance: Attendance) -> Published | None:
        """The estimate of an epoch from everything added so far; None where there is none."""
        ...


@typing.runtime_checkable
class ResumableAggregator(Aggregator, typing.Protocol):
    """State of which little is needed once an epoch has been estimated."""

    def state_after(self, epoch: int, attendance: Attendance, /) -> Mapping[str, Any]:
        """What the estimates of later epochs need of all that was added up to an epoch: JSON."""
        ...

    def resume(self, state: Mapping[str, Any], attendance: Attendance, /) -> None:
        """Have it in place of what was added; later estimates are the same, bit for bit.

        Raises:
            ValueError: it is no state of this law.
        """
        ...


DELTA: Final = 1e-6
"""Of those that trust the shuffle stage, beside a job that states none."""

StageDummies: TypeAlias = Callable[[int, np.random.Generator], CountedWords]
"""From an epoch of the horizon and randomness of its own, the dummies of its released window.

It draws the same for the same generator on every worker: integers only, and nothing it remembers.
"""


@dataclass(frozen=True, slots=True)
class StageSum:
    """What the shuffle stage releases where it adds up the words of a window itself.

    No word leaves the stage, only one that says what they add up to, with noise.

    Attributes:
        form: of what is released, and of what aggregators take in.
        check_words: raises `ValueError` if words of shape (n, 1) cannot be reports of an epoch of
            the horizon.
        release: from the words of a window, how often each is there (None: once each), and
            randomness of the window's own, what is released: the same for the same generator on
            every worker, integers only.
    """

    form: WordForm
    check_words: Callable[[int, NDArray[np.unsignedinteger]], None]
    release: Callable[
        [
            NDArray[np.unsignedinteger],
            NDArray[np.unsignedinteger] | None,
            np.random.Generator,
        ],
        NDArray[np.unsignedinteger],
    ]


class LawReader(typing.Protocol):
    """What reads a law: the class of it, or something that knows of what it is composed."""

    def from_json(self, body: Mapping[str, Any], /) -> Law:
        """Read `Law.to_json`; `ValueError` if it is something else."""
        ...


@typing.runtime_checkable
class LearningDevices(typing.Protocol):
    """Devices whose reports of an epoch are about a public model."""

    def take_model(self, model: NDArray[np.float64], /) -> None:
        """Report about this model, float64 of shape (numbers,), from now on; first about 0."""
        ...


@typing.runtime_checkable
class LearningAggregator(Aggregator, typing.Protocol):
    """State from which a model follows."""

    def model(self, epoch: int, /) -> NDArray[np.float64]:
        """The model after an epoch of the horizon, float64 of shape (numbers,).

        The same bits from the same reports, in whatever order they were added.
        """
        ...


@dataclass(frozen=True, slots=True)
class Exposure:
    """What epsilon is to whoever sees some of a device's reports together, and not all.

    Attributes:
        reports: numbers of them, from 1 on, rising; the last one is that of all.
        epsilons: of a user, for each of these.
        limit: that more reports would not exceed.
        lasting: whether they may be of different epochs, and are about what stays the same.
    """

    reports: tuple[int, ...]
    epsilons: tuple[float, ...]
    limit: float
    lasting: bool


@dataclass(frozen=True, slots=True)
class Learning:
    """What there is to know of a protocol that learns: each epoch is a step of a public model.

    Attributes:
        numbers: from a law, of a model.
        groups: from a law, G: devices take part in every G-th epoch.
    """

    numbers: Callable[[Any], int]
    groups: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What aggregators and publishers run, and what the estimates of an epoch say of others.

    Attributes:
        make: makes an empty state from a law and parameters: estimators may be chosen.
        read: the same with what `Aggregator.to_bytes` wrote.
        changes: from law, parameters and a number of epochs, the errors of changes over so many of
            them; None where they do not follow from what is published. Where every epoch stands
            alone errors are independent, and nothing is asked.
        change_limit: from law, parameters and the epochs of a horizon, how many changes of one
            person the intervals assume at most; None where they hold for any stream.
    """

    make: Callable[[Any, Any], Aggregator]
    read: Callable[[Any, Any, bytes], Aggregator]
    changes: Callable[[Any, Any, int], ChangeErrors | None] = lambda law, parameters, lag: None
    change_limit: Callable[[Any, Any, int], ChangeLimit | None] = lambda law, parameters, epochs: (
        None
    )

    @classmethod
    def of(cls, aggregator: Any, **others: Any) -> Self:
        """By a class of aggregators that needs the law alone."""
        read = aggregator.from_bytes
        return cls(lambda law, _: aggregator(law), lambda law, _, data: read(law, data), **others)


@dataclass(frozen=True, slots=True)
class Shuffling:
    """What a guarantee that rests on the shuffle stage asks of it, and says of others.

    Attributes:
        epsilon_with: from a law and a number of honest contributors, what its epsilon becomes;
            infinite where delta is not enough.
        contributors: from a law, the fewest honest contributors of a window that the guarantee
            rests on; None where it rests on none.
        capacity: from a law, an epoch of the horizon and the number of devices present, the most
            messages that they send together, whatever their values: it hides how many there are
            from whoever sees the sizes of records.
        distinct_reports: whether no device sends a report twice at an epoch.
        kept_apart: from a law, what is promised against whoever keeps the messages of every device
            together; None: nothing is.
        stage_dummies: from a law, what the stage adds to every window it releases; None where it
            adds nothing.
        stage_sum: from a law, how the stage adds up the words of every window it releases; None
            where it releases the words.
        one_message: whether devices send exactly one message at every epoch, whatever they hold, in
            the order of enrollment: then messages of single devices can be deleted, and crowds be
            told apart. `calibrate` and `epsilon_with` take one argument more, in how many windows
            of an epoch a user has a message: epsilon and delta are those of all of them together.
        crowds: from a law, that of the crowds whose messages the stage deletes some of; None where
            it deletes none.
    """

    epsilon_with: Callable[..., float]
    contributors: Callable[[Any], int | None] = lambda law: law.minimum
    capacity: Callable[[Any, int, int], int] = lambda law, epoch, present: law.capacity(
        epoch, present
    )
    distinct_reports: bool = False
    kept_apart: Callable[[Any], Guarantee | None] = lambda law: None
    stage_dummies: Callable[[Any], StageDummies | None] = lambda law: None
    stage_sum: Callable[[Any], StageSum | None] = lambda law: None
    one_message: bool = False
    crowds: Callable[[Any], CrowdsLaw | None] = lambda law: None


@dataclass(frozen=True, slots=True)
class Planning:
    """What `plan` says of a protocol; nothing that runs needs it.

    Attributes:
        forecast: from law, parameters and last epoch, what to expect.
        if_shuffled: where the guarantee does not rest on the shuffle stage: from a law that knows
            it, what is promised besides against whoever sees shuffled messages only; None: nothing
            that the law knows.
        exposure: from a law, what becomes of epsilon where only some reports of a device are seen
            together; None where there are not several.
    """

    forecast: Callable[[Any, Any, int], Forecast]
    if_shuffled: Callable[[Any], Guarantee | None] = lambda law: None
    exposure: Callable[[Any], Exposure | None] = lambda law: None

    @classmethod
    def of(cls, forecast: Callable[[Any, int], Forecast], **others: Any) -> Self:
        """By a class of forecasts that needs law and last epoch alone."""
        return cls(lambda law, parameters, last_epoch: forecast(law, last_epoch), **others)


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


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol: what all agree on, and a part for each of those who run it.

    Attributes:
        name: as in job files.
        parameters: a frozen dataclass whose ``__post_init__`` raises `ValueError`.
        law: from parameters, the class of the law that `calibrate` makes of them, or what else
            reads it: so what is read in a deployed job needs no tag.
        calibrate: makes the law from parameters, the last epoch of a horizon and the fewest
            contributors a window is released with. Runs where a job is planned and deployed, never
            on a device.
        randomizer: makes an empty population of devices from a law.
        aggregation: of aggregators and publishers.
        shuffling: of a guarantee that rests on the shuffle stage; None: it does not.
        planning: of `plan`, which otherwise says nothing.
        word_form: what reports look like, from a law.
        values: from parameters, what a user's value may be.
        per_epoch: whether every epoch stands alone: its estimate rests on its own reports. The law
            is a `PerEpochLaw`.
        loss_of_streams: whether `parameters.epsilon` is the pure local loss of a user's whole
            stream, at which every device runs the same randomizer: then whole streams can be
            shuffled.
        learning: of a protocol that learns, whose devices are `LearningDevices` and whose
            aggregator is a `LearningAggregator`; None for others.
        examples: what the conformance suite holds the protocol to its promises with.
    """

    name: str
    parameters: type[Any]
    law: Callable[[Any], LawReader]
    calibrate: Callable[..., Law]
    randomizer: Callable[[Any], Devices[Any]]
    aggregation: Aggregation
    shuffling: Shuffling | None = None
    planning: Planning | None = None
    word_form: Callable[[Any], WordForm] = lambda law: law.word_form
    values: Callable[[Any], ValueDomain] = lambda parameters: BOOLEAN
    per_epoch: bool = False
    loss_of_streams: bool = False
    learning: Learning | None = None
    examples: tuple[Example, ...] = ()

    def most_alike(self, law: Law, epoch: int, contributors: int) -> int:
        """The most reports that say the same, of so many devices at an epoch of the horizon."""
        if self.shuffling is None or self.shuffling.distinct_reports:
            return contributors
        return self.shuffling.capacity(law, epoch, contributors)

    @property
    def one_message(self) -> bool:
        """See `Shuffling.one_message`."""
        return self.shuffling is not None and self.shuffling.one_message

    def contributors(self, law: Law) -> int | None:
        """The fewest honest contributors that the guarantee rests on; None: it rests on none."""
        return None if self.shuffling is None else self.shuffling.contributors(law)

    def crowds(self, law: Law) -> CrowdsLaw | None:
        """By which the shuffle stage deletes messages of windows; None: it deletes none."""
        return None if self.shuffling is None else self.shuffling.crowds(law)

    def stage_dummies(self, law: Law) -> StageDummies | None:
        """What the shuffle stage adds to windows; None: nothing."""
        return None if self.shuffling is None else self.shuffling.stage_dummies(law)

    def stage_sum(self, law: Law) -> StageSum | None:
        """How the shuffle stage adds up windows; None: it does not."""
        return None if self.shuffling is None else self.shuffling.stage_sum(law)

    def stage_adds_noise(self, law: Law) -> bool:
        """Whether the shuffle stage adds noise to windows: then it sees them without any."""
        return self.stage_dummies(law) is not None or self.stage_sum(law) is not None


def fixed_words(devices: type[Any]) -> Callable[[Any], WordForm]:
    """The form of words that a class of devices states for all its laws."""
    form = WordForm(devices.word_dtype, devices.width)
    return lambda law: form
