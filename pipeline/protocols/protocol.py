"""Interfaces that a protocol provides to the pipeline.

The pipeline handles a protocol's mechanisms (*laws*), states and reports as opaque values. Only the
protocol's own modules interpret them.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation, Published
from dpstream.aggregators.item_covariances import ItemCovariances, sampling_covariances
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.message_formats import MessageFormat

if TYPE_CHECKING:
    from dpstream.aggregators.change_errors import ChangeErrors
    from dpstream.aggregators.window_errors import WindowErrors
    from dpstream.pipeline.protocols.forecasts import Forecast
    from dpstream.randomizers.crowds import CrowdsLaw


class Law(typing.Protocol):
    """Calibrated mechanism of a protocol: the constants on which devices and aggregators agree."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `Protocol.law` returns the class that reads the values."""


@typing.runtime_checkable
class PerEpochLaw(Law, typing.Protocol):
    """Mechanism of a protocol whose epochs are independent."""

    def of_one_epoch(self) -> Law:
        """Return the mechanism for a single epoch; results with equal distributions are equal."""


class Aggregator(typing.Protocol):
    """Mergeable integer state from which epochs are estimated."""

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """Raise `ValueError` if a window of the epoch cannot contain `words`, shape (n, width)."""

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.uint32] | None,
    ) -> None:
        """Add `words`, shape (n, width), each as often as in `counts`, shape (n,) (None: once)."""

    def merge(self, other: Self) -> None:
        """Merge `other`, as if adding its messages; raise `ValueError` for another mechanism."""

    def to_bytes(self) -> bytes:
        """Return the state; equal states give equal bytes."""

    def estimate(self, epoch: int, participation: Participation) -> Published | None:
        """Estimate an epoch from all messages so far; return None if the epoch had no messages."""


@typing.runtime_checkable
class ResumableAggregator(Aggregator, typing.Protocol):
    """Aggregator that can drop most of its state after an epoch has been estimated."""

    def state_after(self, epoch: int, participation: Participation, /) -> Mapping[str, Any]:
        """Return, as JSON values, the state that the estimates of later epochs need."""

    def resume(self, state: Mapping[str, Any], participation: Participation, /) -> None:
        """Restore a result of `state_after`; later estimates are identical, bit for bit.

        Raises `ValueError` if `state` is not a state of this mechanism.
        """


DELTA: Final = 1e-6
"""Delta of alternatives that trust the shuffler, if the job itself declares no delta."""

StageDummies: TypeAlias = Callable[[int, np.random.Generator], CountedMessages]
"""Function that draws a released window's dummies, given an epoch of the horizon and a generator.

It only uses integers and has no state, so that all workers draw the same dummies.
"""


@dataclass(frozen=True, slots=True)
class StageSum:
    """Release of a window as one noisy sum by the shuffler.

    The messages do not leave the shuffler; only a single message with their noisy sum does.

    Attributes:
        form: Format of the release, which is the aggregators' input.
        check_messages: Raises `ValueError` if messages of shape (n, 1) cannot be reports for an
            epoch of the horizon.
        release: Computes the release from the messages of a window, the count of each (None for 1),
            and a generator. It only uses integers, so that all workers compute the same release
            from the same generator.
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
    """Reader of a mechanism: the mechanism's class, or an object that knows its components."""

    def from_json(self, body: Mapping[str, Any], /) -> Law:
        """Read a result of `Law.to_json`; raise `ValueError` for other values."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Functions of aggregators and publishers, given a mechanism and the parameters.

    Attributes:
        make: Creates an empty aggregator with the selected estimator.
        read: Creates an aggregator from the result of `Aggregator.to_bytes`.
        changes: Returns the errors of changes between epochs at a given distance; None if published
            data do not determine them. Not called if epochs are independent.
        window_errors: Returns the errors of means over windows of epochs; None if published data do
            not determine them. Not called if epochs are independent.
        window_changes: Returns the errors of changes between windows, given their length and their
            distance in windows; None if published data do not determine them. Not called if epochs
            are independent.
        change_limit: Returns the maximum changes per user that intervals assume, for a number of
            epochs in a horizon; None if intervals hold for any stream.
        item_covariances: Returns the covariances of the errors of an epoch's items; None if
            published data do not determine them.
        question_covariances: Returns the same for the labels of a question, numbered from 0, in
            jobs with panels.
        added_epochs: Returns how many latest epochs an estimate covers, as far as the horizon has
            them: their counts are added up, and the estimate is the mean. None if an estimate does
            not describe earlier epochs.
    """

    make: Callable[[Any, Any], Aggregator]
    read: Callable[[Any, Any, bytes], Aggregator]
    changes: Callable[[Any, Any, int], ChangeErrors | None] = lambda law, parameters, lag: None
    window_errors: Callable[[Any, Any], WindowErrors | None] = lambda law, parameters: None
    window_changes: Callable[[Any, int, int], ChangeErrors | None] = lambda law, window, lag: None
    change_limit: Callable[[Any, Any, int], ChangeLimit | None] = lambda law, parameters, epochs: (
        None
    )
    item_covariances: Callable[[Any, Any], ItemCovariances | None] = lambda law, parameters: None
    question_covariances: Callable[[Any, int], ItemCovariances] = lambda law, question: (
        sampling_covariances
    )
    added_epochs: Callable[[Any, Any], int | None] = lambda law, parameters: None

    @classmethod
    def of(cls, aggregator: Any, **others: Any) -> Self:
        """Construct from an aggregator class that only needs the mechanism."""
        read = aggregator.from_bytes
        return cls(lambda law, _: aggregator(law), lambda law, _, data: read(law, data), **others)


@dataclass(frozen=True, slots=True)
class Shuffling:
    """Requirements and properties of a guarantee that relies on the shuffler, given a mechanism.

    Attributes:
        epsilon_with: Returns the epsilon for a given number of honest users; infinite if delta is
            insufficient.
        contributors: Returns the minimum number of honest users that the guarantee assumes in a
            window; None if it assumes none.
        capacity: Returns the maximum number of messages that a given number of present devices send
            together at an epoch of the horizon, whatever their values. Records of this capacity
            hide the number of messages from observers of record sizes.
        distinct_reports: True if no device sends the same report twice at an epoch.
        without_shuffling: Returns the guarantee against an observer who links each device's
            messages; None without such a guarantee.
        stage_dummies: Returns the function that draws the dummies for released windows; None if the
            stage adds no dummies.
        stage_sum: Returns how the stage sums released windows; None if it releases messages.
        one_message: True if every device sends exactly one message at every epoch, whatever items
            it has, in the order of enrollment. The shuffler can then delete messages from single
            devices and distinguish crowds. `calibrate` and `epsilon_with` have one more argument:
            the number of an epoch's windows in which a user has a message. Epsilon and delta cover
            all these windows together.
        crowds: Returns the mechanism by which the stage deletes messages from crowds; None if no
            message is deleted.
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
    """Functions of `plan`; running a job does not need these functions.

    Attributes:
        forecast: Returns the forecast, given a mechanism, parameters, and a last epoch no later
            than the mechanism's.
        if_shuffled: If the guarantee does not rely on the shuffler: returns the additional
            guarantee against an observer of shuffled messages only, given a mechanism and the
            minimum number of contributors in a released window; None without such a guarantee.
    """

    forecast: Callable[[Any, Any, int], Forecast]
    if_shuffled: Callable[[Any, int], Guarantee | None] = lambda law, minimum: None

    @classmethod
    def of(cls, forecast: Callable[[Any, int], Forecast], **others: Any) -> Self:
        """Construct from a forecast class that only needs the mechanism and the last epoch."""
        return cls(lambda law, parameters, last_epoch: forecast(law, last_epoch), **others)


@dataclass(frozen=True, slots=True)
class Example:
    """Job small enough to enumerate everything that its devices can draw, see and send.

    Attributes:
        parameters: Parameters with an epsilon so large that a few thousand reports reveal values.
        last_epoch: Number of epochs, which is small.
        minimum: Minimum number of devices in a released window.
    """

    parameters: Any
    last_epoch: int
    minimum: int = 1


@dataclass(frozen=True, slots=True)
class Protocol:
    """Registry entry of a protocol: common properties, and one attribute per component.

    Attributes:
        parameters: Frozen dataclass whose ``__post_init__`` raises `ValueError`.
        law: Given parameters, returns the class or other reader of the mechanisms that `calibrate`
            makes from them. Mechanisms in a deployed job therefore need no tag.
        calibrate: Makes the mechanism from parameters, the last epoch of a horizon and the minimum
            number of contributors in a released window. Runs at planning and deployment, never on a
            device.
        randomizer: Makes an empty population of devices from a mechanism.
        shuffling: Properties of a guarantee that relies on the shuffler; None otherwise.
        planning: Functions of `plan`; without these functions, `plan` has no output.
        message_format: Returns the format of reports, given a mechanism.
        values: Returns the domain of a user's value, given parameters.
        per_epoch: True if epochs are independent: an epoch's estimate depends only on that epoch's
            reports. The mechanism is a `PerEpochLaw`.
        loss_of_streams: True if `parameters.epsilon` is the pure local loss of a user's whole
            stream, and every device runs the same randomizer. Whole streams can then be shuffled.
        recurring: Returns the parameters with which a recurring job is calibrated; raises
            `ValueError` for parameters with which it cannot recur.
        sampled: Given a mechanism, returns the fraction of devices asked at an epoch; None if all
            devices are asked. The devices that answer are the contributors, to which
            `shuffle.minimum` applies.
        lasting_noise: Given a mechanism, returns whether noise can repeat at several epochs if a
            value stays the same.
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
    recurring: Callable[[Any], Any] = lambda parameters: parameters
    sampled: Callable[[Any], Fraction] | None = None
    lasting_noise: Callable[[Any], bool] = lambda law: False
    examples: tuple[Example, ...] = ()

    def most_alike(self, law: Law, epoch: int, contributors: int) -> int:
        """Return the maximum number of identical reports if `contributors` devices report."""
        if self.shuffling is None or self.shuffling.distinct_reports:
            return contributors
        return self.shuffling.capacity(law, epoch, contributors)

    def longest_window(self, law: Law) -> int | None:
        """Return the maximum number of epochs within which no device is asked twice.

        None if all devices are asked at every epoch.
        """
        return None if self.sampled is None else math.floor(1 / self.sampled(law))

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
        """Return whether the shuffler adds the noise, and therefore sees windows without noise."""
        return self.stage_dummies(law) is not None or self.stage_sum(law) is not None


def fixed_format(devices: type[Any]) -> Callable[[Any], MessageFormat]:
    """Return a function that maps every mechanism to a device class's message format."""
    form = MessageFormat(devices.word_dtype, devices.width)
    return lambda law: form
