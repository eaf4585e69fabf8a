"""Continual counts that trust the shuffler to shuffle: boosted value reports.

At every epoch a device sends identical messages, and only their number matters: r, plus its value
(0 or 1), plus r more if the value has just become 1, or r fewer if it has just become 0. So a
change is r times as visible as a value. Only the first k changes of a device are boosted; estimates
track later changes more slowly. With r = 0 these are plain counts per epoch, without a bound on
changes.

Dummies hide each user's number of messages (`dpstream.randomizers.cell_noise_law`). The loss is
charged once for the whole stream, and the error does not grow with the number of users.

A device that was absent in the previous epoch cannot know when its value changed, so it does not
boost that change. The change still counts as one of the first k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers import least_delta
from dpstream.randomizers.cell_noise_law import (
    CellNoiseLaw,
    DummyKind,
    ItemCells,
    dummies_in_cell,
    stage_dummies_in_cell,
    trusted,
)
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.given_values import check_epoch, checked_booleans
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.item_domains import StreamDomain
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import (
    MAX_HORIZON,
    check_item_cells,
    check_shuffled_parameters,
)
from dpstream.topics.message_formats import MessageFormat

Calibration: TypeAlias = Literal["rigorous", "exact"]
"""Basis of the guarantee: a proven bound ("rigorous") with a boost, or exact without a boost."""
MAX_CHANGES = 1 << 20
MAX_BOOST = 1 << 16
MESSAGE_FORMAT = MessageFormat(np.dtype(np.uint8), distinct=1)
# Flags in the stored value: the device was absent since, or is new.
_ABSENT, _NEW = 2, 4
_BASES: Mapping[str, Literal["exact", "bound"]] = {"rigorous": "bound", "exact": "exact"}


@dataclass(frozen=True, slots=True)
class ShuffledCountsParameters:
    """Parameters of shuffled counts.

    Attributes:
        epsilon, delta: Privacy loss of a user's whole stream.
        max_changes: Number of boosted changes in a user's value; None for no boost.
        boost: r, the additional messages for a change; None for the best boost within
            `messages_per_user`.
        calibration: Basis of the guarantee; None for "rigorous" with a boost, else "exact".
        dummies: Distribution of dummies, and the party that adds them.
        messages_per_user: Maximum number of messages per user over the whole horizon.
        domain: None for values 0 and 1; labels of items, of which a user has at most one at a time;
            or numbers or bits, in a tree for ranges and quantiles.
        cells: Encoding of items: "balls_into_bins", a hash drawn for every message (default), or
            "count_min", a cell for every item, which needs few messages if there are few items.
        buckets: Number of buckets for balls into bins; None for the most that messages allow.
    """

    epsilon: float
    delta: float
    max_changes: int | None = None
    boost: int | None = None
    calibration: Calibration | None = None
    dummies: DummyKind = "poisson"
    messages_per_user: float | None = None
    domain: StreamDomain | None = None
    cells: ItemCells | None = None
    buckets: int | None = None

    def __post_init__(self) -> None:
        check_shuffled_parameters(self.epsilon, self.delta, self.dummies, self.messages_per_user)
        if self.calibration not in (None, "rigorous", "exact"):
            raise ValueError(f"calibration is {self.calibration!r}; expected 'rigorous' or 'exact'")
        _check_whole("max_changes", self.max_changes, 1, MAX_CHANGES)
        _check_whole("boost", self.boost, 0, MAX_BOOST)
        if self.max_changes is None and self.boost:
            raise ValueError(
                f"boost is {self.boost}, which requires 'max_changes', the number of boosted "
                "changes per user. Set 'max_changes' or remove 'boost'"
            )
        check_item_cells(self.domain, self.cells, self.buckets, self.dummies)
        boosted = self.max_changes is not None and self.boost != 0
        if boosted and isinstance(self.domain, tuple) and self.cells != "count_min":
            raise ValueError(
                "a domain with 'max_changes' requires a cell for every item, because the noise is "
                "proven for that encoding only. Set 'cells: count_min' or remove 'max_changes'"
            )
        if boosted and self.calibration == "exact":
            raise ValueError(
                "calibration is 'exact', which requires that boost is 0. Set 'calibration: "
                "rigorous' or 'boost: 0'"
            )
        if not boosted and self.calibration not in (None, "exact"):
            raise ValueError(
                f"calibration is {self.calibration!r}, which requires a boost. Remove "
                "'calibration' or set 'max_changes'"
            )
        if boosted and self.dummies == "negative_binomial":
            raise ValueError(
                "dummies is 'negative_binomial', which has no proven calibration for boosted "
                "counts. Set 'dummies: poisson' or 'dummies: shuffle'"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def summed(self) -> bool:
        """True for `shuffled_value_stream`: the shuffler adds the noise, and boost is not set."""
        return (
            self.domain is None
            and self.dummies == "shuffle"
            and self.max_changes is not None
            and self.boost is None
        )


def _check_whole(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise ValueError(f"{name} is {value!r}; expected an integer from {least} to {most:,}")


@dataclass(frozen=True, slots=True)
class ShuffledCountsLaw(Constants):
    """All constants of a job.

    Attributes:
        max_changes, boost: k boosted changes, each with r more messages; 0 without a boost.
        noise: Noise of each epoch's cell.
    """

    last_epoch: int
    epsilon: float
    delta: float
    max_changes: int
    boost: int
    calibration: Calibration
    noise: CellNoiseLaw

    def __post_init__(self) -> None:
        _check_whole("last_epoch", self.last_epoch, 1, MAX_HORIZON)
        _check_whole("max_changes", self.max_changes, 0, MAX_CHANGES)
        _check_whole("boost", self.boost, 0, MAX_BOOST)
        if (self.boost == 0) != (self.max_changes == 0):
            raise ValueError(
                f"boost is {self.boost} and max_changes is {self.max_changes}; expected both to be "
                "0 or both positive"
            )
        expected = "rigorous" if self.boost else "exact"
        if self.calibration != expected:
            raise ValueError(
                f"calibration is {self.calibration!r}; expected {expected!r} for boost {self.boost}"
            )

    @property
    def messages(self) -> float:
        """Expected number of messages per horizon from a user who always has value 1."""
        real = self.last_epoch * (self.boost + 1) + self.boost
        return real + self.last_epoch * self.noise.per_contributor(1)

    @property
    def dummies(self) -> str:
        return self.noise.dummies

    def capacity(self, epoch: int, contributors: int) -> int:
        return contributors * (2 * self.boost + 1) + self.noise.most(1, contributors)

    @property
    def message_format(self) -> MessageFormat:
        return MESSAGE_FORMAT

    def stage_dummies(self, epoch: int, rng: np.random.Generator) -> CountedMessages:
        return _counted(stage_dummies_in_cell(self.noise, rng))


class ShuffledCounts(Devices[ShuffledCountsLaw]):
    """Devices of one horizon.

    >>> from dpstream.randomizers.shuffled_counts.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> parameters = ShuffledCountsParameters(epsilon=1, delta=1e-6, max_changes=4, boost=3)
    >>> law = calibrate(parameters, last_epoch=170, minimum=1000)
    >>> devices, rng = ShuffledCounts(law), seeded_generator(1)
    >>> devices.enroll(1000, rng)
    >>> sent = devices.report(1, np.ones(1000, np.int8), None, rng)
    >>> round(sent.messages / 1000, 1)  # 3 + 1 + 3 of each device, and 7.1 dummies
    14.1
    """

    def __init__(self, law: ShuffledCountsLaw) -> None:
        super().__init__(law)
        self._dummies = law.noise.of_contributors(1)
        # The last reported value, plus 2 if the device was absent at the last epoch. The value
        # before the first epoch counts as 0. Without a boost, both arrays are unused.
        self._value = self._declare("value", np.uint8, new=_NEW)
        # Number of changes, capped at one above `max_changes`.
        self._changes = self._declare("changes", np.min_scalar_type(law.max_changes + 2))

    @property
    def assumed_contributors(self) -> int:
        return self.law.noise.contributors or 0

    def least_delta(self) -> float:
        """Bound delta from below by comparing the two constant streams, or opposite changes."""
        law = self.law
        turns = (min(law.max_changes, law.last_epoch) + 1) // 2
        tests = [(law.last_epoch, law.last_epoch + law.boost)]
        if turns:
            tests.append((turns, (2 * turns - 1) * law.boost + turns))
        return max(
            least_delta.of_cells(law.noise, cells, shift, law.epsilon) for cells, shift in tests
        )

    @property
    def exhausted(self) -> int:
        return int(np.count_nonzero(self._changes > self.law.max_changes))

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee for a user's whole stream.

        Neighboring inputs differ by at most 1 + 2r messages in an epoch, and by that many in at
        most k - 1 epochs. The Rényi divergence of the worst-case shifts bounds the loss. Without a
        boost all shifts are 1, and all directions were verified for the chosen noise.
        """
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=self.law.delta,
            unit="stream",
            neighbors="any two streams of a user's values, reported at the same epochs",
            trust=trusted(self.law.noise),
            basis=_BASES[self.law.calibration],
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> CountedMessages:
        check_epoch(epoch, after=self.epoch, last_epoch=self.law.last_epoch)
        now = checked_booleans(epoch, values, present, self.population)
        if present is not None:
            now = now[present]
        messages = self.law.boost * len(now) + int(np.count_nonzero(now))
        if self.law.boost:
            messages += self.law.boost * self._boosted(epoch, now, present)
        self.epoch = epoch
        return _counted(messages + dummies_in_cell(self._dummies, len(now), rng))

    def _boosted(self, epoch: int, now: NDArray[np.int8], present: NDArray[np.bool_] | None) -> int:
        """Update the state; return the number of boosted changes to 1 minus those to 0."""
        if epoch > self.epoch + 1:
            self._value[self._value < _ABSENT] |= _ABSENT
        self._value[self._value == _NEW] = 0
        here = np.ones(self.population, np.bool_) if present is None else present
        before, made = self._value[here], self._changes[here]
        changed = (before & 1) != now
        boosted = changed & (before < _ABSENT) & (made < self.law.max_changes)
        self._changes[here] = np.minimum(made + changed, self.law.max_changes + 1)
        self._value[~here] |= _ABSENT
        self._value[here] = now
        up = int(np.count_nonzero(now[boosted]))
        return 2 * up - int(np.count_nonzero(boosted))


def _counted(messages: int) -> CountedMessages:
    return CountedMessages.of_cells(np.array([messages], np.int64), MESSAGE_FORMAT.dtype)
