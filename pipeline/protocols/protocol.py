"""What the pipeline asks of a protocol.

Everything here handles a protocol's laws, states and reports as opaque values, through these
interfaces; only the two modules of a protocol know what they mean.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.changes import ChangeErrors
from dpstream.aggregators.estimate import Published
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.protocols.forecasts import Forecast
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.crowds import CrowdsLaw
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.word_forms import WordForm


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


Alternative: TypeAlias = tuple[str, Callable[[], Any]]
"""A protocol's name, and what makes parameters for it; `ValueError` where there are none."""

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
class OneMessage:
    """Of a protocol whose devices send exactly one message at every epoch, whatever they hold.

    Its `randomizer` reports them in the order of enrolment, and its law says their `word_form`. So
    the stage can delete messages of single devices, and crowds can be told apart.

    Attributes:
        calibrate: as `Protocol.calibrate`, and in how many windows of an epoch a user has a
            message: the law's epsilon and delta are those of all of them together.
        epsilon_with: as `Protocol.epsilon_with`, with the same number.
    """

    calibrate: Callable[[Any, int, int, int], Law]
    epsilon_with: Callable[[Any, int, int], float]


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
class Protocol:
    """One protocol.

    Attributes:
        name: as in job files.
        parameters: a frozen dataclass whose ``__post_init__`` raises `ValueError`.
        calibrate: makes the law from parameters, the last epoch of a horizon and the fewest
            contributors a window is released with. Runs where a job is planned and deployed, never
            on a device.
        law: from parameters, the class of the law that `calibrate` makes of them, or what else
            reads it: so what is read in a deployed job needs no tag.
        randomizer: makes an empty population.
        restore: makes a population from a law, `Devices.state_arrays` and the last epoch closed.
        aggregator: makes an empty state from a law and parameters: estimators may be chosen.
        aggregator_from_bytes: the same with what `Aggregator.to_bytes` wrote.
        word_form: what reports look like, from a law.
        needs_shuffle: whether the guarantee rests on the shuffle stage, and on its minimum.
        capacity: where the guarantee rests on the shuffle stage: from a law, an epoch of the
            horizon and the number of devices present, the most messages that they send together,
            whatever their values.
        distinct_reports: of those with a capacity, whether no device sends a report twice at an
            epoch; without a capacity none does.
        contributors: from a law, the fewest honest contributors of a window that the guarantee
            rests on; None where it rests on none.
        epsilon_with: from a law and a number of honest contributors, what its epsilon becomes;
            infinite where delta is not enough.
        kept_apart: where the guarantee rests on the shuffle stage: from a law, what is promised
            against whoever keeps the messages of every device together; None: nothing is.
        if_shuffled: where it does not: from a law that knows it, what is promised besides against
            whoever sees shuffled messages only; None: nothing that the law knows.
        loss_of_streams: whether `parameters.epsilon` is the pure local loss of a user's whole
            stream, at which every device runs the same randomizer: then whole streams can be
            shuffled.
        stage_dummies: from a law, what the shuffle stage adds to every window it releases; None
            where it adds nothing.
        stage_sum: from a law, how the shuffle stage adds up the words of every window it releases;
            None where it releases the words.
        one_message: of protocols with exactly one message a device at every epoch; None: others.
        crowds: from a law, that of the crowds whose messages the shuffle stage deletes some of;
            None where it deletes none.
        exposure: from a law, what becomes of epsilon where only some reports of a device are seen
            together; None where there are not several.
        per_epoch: whether every epoch stands alone: its estimate rests on its own reports. The law
            is a `PerEpochLaw`.
        learning: of a protocol that learns, whose devices are `LearningDevices` and whose
            aggregator is a `LearningAggregator`; None for others.
        changes: from law, parameters and a number of epochs, the errors of changes over so many of
            them; None where they do not follow from what is published. Where every epoch stands
            alone errors are independent, and nothing is asked.
        change_limit: from law, parameters and the epochs of a horizon, how many changes of one
            person the intervals assume at most; None where they hold for any stream.
        values: from parameters, what a user's value may be.
        forecast: from law, parameters and last epoch, what `plan` says to expect; None: nothing.
        alternatives: from parameters and last epoch, what counts the same for the same epsilon.
        examples: what the conformance suite holds the protocol to its promises with.
    """

    name: str
    parameters: type[Any]
    calibrate: Callable[[Any, int, int], Law]
    law: Callable[[Any], LawReader]
    randomizer: Callable[[Any], Devices[Any]]
    restore: Callable[[Any, Mapping[str, NDArray[Any]], int], Devices[Any]]
    aggregator: Callable[[Any, Any], Aggregator]
    aggregator_from_bytes: Callable[[Any, Any, bytes], Aggregator]
    word_form: Callable[[Any], WordForm]
    needs_shuffle: bool
    per_epoch: bool = False
    capacity: Callable[[Any, int, int], int] | None = None
    distinct_reports: bool = False
    contributors: Callable[[Any], int | None] = lambda law: None
    epsilon_with: Callable[[Any, int], float] | None = None
    kept_apart: Callable[[Any], Guarantee | None] = lambda law: None
    if_shuffled: Callable[[Any], Guarantee | None] = lambda law: None
    loss_of_streams: bool = False
    stage_dummies: Callable[[Any], StageDummies | None] = lambda law: None
    stage_sum: Callable[[Any], StageSum | None] = lambda law: None
    one_message: OneMessage | None = None
    crowds: Callable[[Any], CrowdsLaw | None] = lambda law: None
    exposure: Callable[[Any], Exposure | None] = lambda law: None
    learning: Learning | None = None
    changes: Callable[[Any, Any, int], ChangeErrors | None] = lambda law, parameters, lag: None
    change_limit: Callable[[Any, Any, int], ChangeLimit | None] = lambda law, parameters, epochs: (
        None
    )
    values: Callable[[Any], ValueDomain] = lambda parameters: BOOLEAN
    forecast: Callable[[Any, Any, int], Forecast] | None = None
    alternatives: Callable[[Any, int], Iterable[Alternative]] = lambda parameters, last_epoch: ()
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        if self.needs_shuffle != (self.capacity is not None):
            raise ValueError(
                f"{self.name}: a capacity is what hides the number of messages from whoever sees "
                "the sizes of records, where the guarantee rests on the shuffle stage"
            )

    def most_alike(self, law: Law, epoch: int, contributors: int) -> int:
        """The most reports that say the same, of so many devices at an epoch of the horizon."""
        if self.capacity is None or self.distinct_reports:
            return contributors
        return self.capacity(law, epoch, contributors)

    def stage_adds_noise(self, law: Any) -> bool:
        """Whether the shuffle stage adds noise to windows: then it sees them without any."""
        return self.stage_dummies(law) is not None or self.stage_sum(law) is not None


def stated_capacity(law: Any, epoch: int, contributors: int) -> int:
    """The most messages of an epoch, of a law that states it: see `Protocol.capacity`."""
    most: int = law.capacity(epoch, contributors)
    return most


def fixed_words(devices: type[Any]) -> Callable[[Any], WordForm]:
    """The form of words that a class of devices states for all its laws."""
    form = WordForm(devices.word_dtype, devices.width)
    return lambda law: form
