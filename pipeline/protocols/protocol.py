"""Interfaces that a protocol provides to the pipeline.

Through them the pipeline handles a protocol's laws, states and reports as opaque values. Only a
protocol's own modules interpret them.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation, Published
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.message_formats import MessageFormat

if TYPE_CHECKING:
    from dpstream.aggregators.change_errors import ChangeErrors
    from dpstream.pipeline.protocols.forecasts import Forecast
    from dpstream.randomizers.crowds import CrowdsLaw


class Law(typing.Protocol):
    """Calibrated constants of a protocol: everything that devices and aggregators must agree on."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, without a tag: `Protocol.law` knows their class."""
        ...


@typing.runtime_checkable
class PerEpochLaw(Law, typing.Protocol):
    """Law of a protocol with independent epochs."""

    def of_one_epoch(self) -> Law:
        """Return the law of a single epoch; equal for laws whose epochs are drawn alike."""
        ...


class Aggregator(typing.Protocol):
    """Mergeable integer state and its estimates."""

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """Raise `ValueError` if messages of shape (n, width) cannot be released of the epoch."""
        ...

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.uint32] | None,
    ) -> None:
        """Count messages of shape (n, width), once each or `counts` (n,) times."""
        ...

    def merge(self, other: Self) -> None:
        """Merge `other`, as if all its messages were added; raise `ValueError` for another law."""
        ...

    def to_bytes(self) -> bytes:
        """Return the state; equal states give equal bytes."""
        ...

    def estimate(self, epoch: int, participation: Participation) -> Published | None:
        """Return the estimate of an epoch from everything added so far; None if it has none."""
        ...


@typing.runtime_checkable
class ResumableAggregator(Aggregator, typing.Protocol):
    """Aggregator that needs little of its state once an epoch has been estimated."""

    def state_after(self, epoch: int, participation: Participation, /) -> Mapping[str, Any]:
        """Return what later estimates need of everything added up to an epoch, as JSON."""
        ...

    def resume(self, state: Mapping[str, Any], participation: Participation, /) -> None:
        """Replace everything added by such a state; later estimates are equal bit for bit.

        Raises:
            ValueError: If it is not a state of this law.
        """
        ...


DELTA: Final = 1e-6
"""Delta of protocols that trust the shuffler, compared with a job that declares none."""

StageDummies: TypeAlias = Callable[[int, np.random.Generator], CountedMessages]
"""Function from an epoch of the horizon and its own randomness to a released window's dummies.

For the same generator it draws the same on every worker: it uses integers only and has no state.
"""


@dataclass(frozen=True, slots=True)
class StageSum:
    """Release of a window that the shuffler sums itself.

    Messages do not leave the stage; only one message with their noisy sum does.

    Attributes:
        form: Format of the release, which is the aggregators' input.
        check_messages: Raises `ValueError` if messages of shape (n, 1) cannot be reports of an
            epoch of the horizon.
        release: From the messages of a window, their counts (None: one each) and the window's own
            randomness, the release. Integers only; the same generator gives the same release on
            every worker.
    """

    form: MessageFormat
    check_messages: Callable[[int, NDArray[np.unsignedinteger]], None]
    release: Callable[
        [
            NDArray[np.unsignedinteger],
            NDArray[np.unsignedinteger] | None,
            np.random.Generator,
        ],
        NDArray[np.unsignedinteger],
    ]


class LawReader(typing.Protocol):
    """Reader of a law: its class, or an object that knows how it is composed."""

    def from_json(self, body: Mapping[str, Any], /) -> Law:
        """Read `Law.to_json`; raise `ValueError` for anything else."""
        ...


@typing.runtime_checkable
class LearningDevices(typing.Protocol):
    """Devices whose reports of an epoch concern a public model."""

    def take_model(self, model: NDArray[np.float64], /) -> None:
        """Set the model of later reports, float64 of shape (numbers,); it is 0 at first."""
        ...


@typing.runtime_checkable
class LearningAggregator(Aggregator, typing.Protocol):
    """Aggregator whose state determines a model."""

    def model(self, epoch: int, /) -> NDArray[np.float64]:
        """Return the model after an epoch of the horizon, float64 of shape (numbers,).

        The same reports give the same bits, in whatever order they were added.
        """
        ...


@dataclass(frozen=True, slots=True)
class Exposure:
    """Epsilon against an observer of some, but not all, of a device's reports together.

    Attributes:
        reports: Numbers of reports, ascending from 1; the last is that of all.
        epsilons: Epsilon of a user for each of these numbers.
        limit: Upper bound for any number of reports.
        lasting: Whether the reports may be of different epochs and concern what stays the same.
    """

    reports: tuple[int, ...]
    epsilons: tuple[float, ...]
    limit: float
    lasting: bool


@dataclass(frozen=True, slots=True)
class Learning:
    """Properties of a learning protocol: each epoch is a step of a public model.

    Attributes:
        numbers: From a law, the size of a model.
        groups: From a law, G: devices participate in every G-th epoch.
    """

    numbers: Callable[[Any], int]
    groups: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Functions of aggregators and publishers.

    Attributes:
        make: From a law and parameters, an empty state with the selected estimator.
        read: The same, with the bytes of `Aggregator.to_bytes`.
        changes: From law, parameters and a number of epochs, the errors of changes over that
            number; None if the published data do not determine them. Not called for independent
            epochs, whose errors are independent.
        change_limit: From law, parameters and the epochs of a horizon, the maximum changes per user
            that intervals assume; None if they hold for any stream.
    """

    make: Callable[[Any, Any], Aggregator]
    read: Callable[[Any, Any, bytes], Aggregator]
    changes: Callable[[Any, Any, int], ChangeErrors | None] = lambda law, parameters, lag: None
    change_limit: Callable[[Any, Any, int], ChangeLimit | None] = lambda law, parameters, epochs: (
        None
    )

    @classmethod
    def of(cls, aggregator: Any, **others: Any) -> Self:
        """Construct from an aggregator class that needs the law alone."""
        read = aggregator.from_bytes
        return cls(lambda law, _: aggregator(law), lambda law, _, data: read(law, data), **others)


@dataclass(frozen=True, slots=True)
class Shuffling:
    """Requirements and properties of a guarantee that relies on the shuffler.

    Attributes:
        epsilon_with: From a law and a number of honest users, the resulting epsilon; infinite if
            delta is insufficient.
        contributors: From a law, the minimum number of honest users of a window that the guarantee
            assumes; None if it assumes none.
        capacity: From a law, an epoch of the horizon and the number of present devices, the maximum
            number of messages they send together, whatever their values. It hides the number of
            messages from observers of record sizes.
        distinct_reports: Whether no device sends the same report twice at an epoch.
        without_shuffling: From a law, the guarantee against an observer who links the messages of
            each device; None without one.
        stage_dummies: From a law, the dummies that the stage adds to every released window; None if
            it adds nothing.
        stage_sum: From a law, the stage's summation of every released window; None if it releases
            the messages.
        one_message: Whether devices send exactly one message at every epoch, whatever they have, in
            the order of enrollment. Then messages of single devices can be deleted, and crowds be
            distinguished. `calibrate` and `epsilon_with` take one more argument: the number of
            windows of an epoch in which a user has a message. Epsilon and delta cover all of them
            together.
        crowds: From a law, that of the crowds from which the stage deletes messages; None if it
            deletes none.
    """

    epsilon_with: Callable[..., float]
    contributors: Callable[[Any], int | None] = lambda law: law.minimum
    capacity: Callable[[Any, int, int], int] = lambda law, epoch, present: law.capacity(
        epoch, present
    )
    distinct_reports: bool = False
    without_shuffling: Callable[[Any], Guarantee | None] = lambda law: None
    stage_dummies: Callable[[Any], StageDummies | None] = lambda law: None
    stage_sum: Callable[[Any], StageSum | None] = lambda law: None
    one_message: bool = False
    crowds: Callable[[Any], CrowdsLaw | None] = lambda law: None


@dataclass(frozen=True, slots=True)
class Planning:
    """Functions of `plan`; running a job needs none of them.

    Attributes:
        forecast: From law, parameters and last epoch (at most the law's last), the forecast.
        if_shuffled: If the guarantee does not rely on the shuffler: from a law, the additional
            guarantee against an observer of shuffled messages only; None if the law has none.
        exposure: From a law, epsilon if only some reports of a device are seen together; None if
            there are not several.
    """

    forecast: Callable[[Any, Any, int], Forecast]
    if_shuffled: Callable[[Any], Guarantee | None] = lambda law: None
    exposure: Callable[[Any], Exposure | None] = lambda law: None

    @classmethod
    def of(cls, forecast: Callable[[Any, int], Forecast], **others: Any) -> Self:
        """Construct from a forecast class that needs law and last epoch alone."""
        return cls(lambda law, parameters, last_epoch: forecast(law, last_epoch), **others)


@dataclass(frozen=True, slots=True)
class Example:
    """Job small enough to enumerate everything its devices can draw, see and send.

    Attributes:
        parameters: Of the protocol's type, with enough epsilon for the values to show in a few
            thousand reports.
        last_epoch: At most a few.
        minimum: Minimum number of devices of a released window.
    """

    parameters: Any
    last_epoch: int
    minimum: int = 1


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol: common properties, and a part for each component that runs it.

    Attributes:
        parameters: A frozen dataclass whose ``__post_init__`` raises `ValueError`.
        law: From parameters, the class or other reader of the law that `calibrate` makes of them.
            So laws in a deployed job need no tag.
        calibrate: Makes the law from parameters, the last epoch of a horizon and the minimum number
            of contributors of a released window. Runs at planning and deployment, never on a
            device.
        randomizer: Makes an empty population of devices from a law.
        shuffling: For a guarantee that relies on the shuffler; None otherwise.
        planning: For `plan`, which has no output without it.
        message_format: From a law, the format of reports.
        values: From parameters, the domain of a user's value.
        per_epoch: Whether epochs are independent: an estimate depends on its own reports only. The
            law is a `PerEpochLaw`.
        loss_of_streams: Whether `parameters.epsilon` is the pure local loss of a user's whole
            stream, at which every device runs the same randomizer. Then whole streams can be
            shuffled.
        learning: For a learning protocol, whose devices are `LearningDevices` and whose aggregator
            is a `LearningAggregator`; None for others.
        examples: Jobs for the conformance suite.
    """

    name: str
    parameters: type[Any]
    law: Callable[[Any], LawReader]
    calibrate: Callable[..., Law]
    randomizer: Callable[[Any], Devices[Any]]
    aggregation: Aggregation
    shuffling: Shuffling | None = None
    planning: Planning | None = None
    message_format: Callable[[Any], MessageFormat] = lambda law: law.message_format
    values: Callable[[Any], ValueDomain] = lambda parameters: BOOLEAN
    per_epoch: bool = False
    loss_of_streams: bool = False
    learning: Learning | None = None
    examples: tuple[Example, ...] = ()

    def most_alike(self, law: Law, epoch: int, contributors: int) -> int:
        """Return the maximum number of equal reports of `contributors` devices at an epoch."""
        if self.shuffling is None or self.shuffling.distinct_reports:
            return contributors
        return self.shuffling.capacity(law, epoch, contributors)

    @property
    def one_message(self) -> bool:
        """See `Shuffling.one_message`."""
        return self.shuffling is not None and self.shuffling.one_message

    def contributors(self, law: Law) -> int | None:
        """Return `Shuffling.contributors`; None without shuffling."""
        return None if self.shuffling is None else self.shuffling.contributors(law)

    def crowds(self, law: Law) -> CrowdsLaw | None:
        """Return `Shuffling.crowds`; None without shuffling."""
        return None if self.shuffling is None else self.shuffling.crowds(law)

    def stage_dummies(self, law: Law) -> StageDummies | None:
        """Return `Shuffling.stage_dummies`; None without shuffling."""
        return None if self.shuffling is None else self.shuffling.stage_dummies(law)

    def stage_sum(self, law: Law) -> StageSum | None:
        """Return `Shuffling.stage_sum`; None without shuffling."""
        return None if self.shuffling is None else self.shuffling.stage_sum(law)

    def stage_adds_noise(self, law: Law) -> bool:
        """Return whether the shuffler adds noise to windows, and so sees them without any."""
        return self.stage_dummies(law) is not None or self.stage_sum(law) is not None


def fixed_format(devices: type[Any]) -> Callable[[Any], MessageFormat]:
    """Return the message format of a class of devices, the same for all its laws."""
    form = MessageFormat(devices.word_dtype, devices.width)
    return lambda law: form
