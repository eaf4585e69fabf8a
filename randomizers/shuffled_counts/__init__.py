"""Continual counts for whoever trusts the shuffle stage to shuffle: boosted value reports.

In every epoch a device sends messages of one and the same word, and only their number counts: r,
plus its value (0 or 1), plus r more if the value has just become 1, or r fewer if it has just
become 0. So the change of an epoch shows r times as clearly as a value does. Only the first k
changes of a device are boosted like that; later ones are followed more slowly, but followed. With
r = 0 these are plain counts of every epoch, and there is no bound on changes.

Dummies hide how many messages are anybody's (`dpstream.randomizers.cell_noise_law`). They are
charged once for the whole stream, and the error of the counts does not grow with the number of
users.

A device that was silent at the epoch before does not know whether its value has changed since then
or earlier. It boosts nothing: what it has missed counts as a change, and is followed like a later
one.
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
from dpstream.randomizers.counted_words import CountedWords
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
from dpstream.topics.word_forms import WordForm

Calibration: TypeAlias = Literal["rigorous", "exact"]
"""By a proven bound; or, without a boost, exact."""

MAX_CHANGES = 1 << 20
MAX_BOOST = 1 << 16

WORD_FORM = WordForm(np.dtype(np.uint8), distinct=1)

# What is kept of a value, beside 0 and 1: that the device was silent since then, or is new.
_SILENT, _NEW = 2, 4

_BASES: Mapping[str, Literal["exact", "bound"]] = {"rigorous": "bound", "exact": "exact"}


@dataclass(frozen=True, slots=True)
class ShuffledCountsParameters:
    """What a job says about shuffled counts.

    Attributes:
        epsilon: the privacy loss of a user's whole stream.
        delta: the same.
        changes: how many changes of a user's value are boosted; None: there is no boost.
        boost: r; None: the best one, of those within `messages_per_user`.
        calibration: None: "rigorous" with a boost, "exact" without.
        dummies: of which kind, and whose.
        messages_per_user: the most that a job may ask of a user, over the whole horizon.
        domain: labels of items, of which a user has one at a time, or none; None: values are 0 or
            1. With items `shuffled_item_counts` is what runs. Or numbers, or bits, for ranges and
            quantiles: then it is on a tree (`shuffled_level_counts`).
        cells: of items: "balls_into_bins", a hash drawn for every message, or "count_min", a cell
            for every item, which takes few messages where items are few. None: the former.
        buckets: of balls into bins; None: as many as messages allow.

    Raises:
        ValueError: a value is not allowed, or they contradict each other; the message says how.
    """

    epsilon: float
    delta: float
    changes: int | None = None
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
            raise ValueError(f"calibration is {self.calibration!r}, must be 'rigorous' or 'exact'")
        _check_whole("changes", self.changes, 1, MAX_CHANGES)
        _check_whole("boost", self.boost, 0, MAX_BOOST)
        if self.changes is None and self.boost:
            raise ValueError(
                f"a boost of {self.boost} is for the first changes of a user: say how many, by "
                "`changes`, or leave boost out"
            )
        check_item_cells(self.domain, self.cells, self.buckets, self.dummies)
        boosted = self.changes is not None and self.boost != 0
        if boosted and isinstance(self.domain, tuple) and self.cells != "count_min":
            raise ValueError(
                "a domain with `changes` needs a cell for every item, for which the noise is "
                "proven to suffice: set `cells: count_min`, or leave `changes` out"
            )
        if boosted and self.calibration == "exact":
            raise ValueError(
                "no exact calibration of boosted counts is known: calibration must be 'rigorous', "
                "or boost 0"
            )
        if not boosted and self.calibration not in (None, "exact"):
            raise ValueError(
                f"calibration is {self.calibration!r}, but without a boost there is nothing to "
                "bound: leave it out, or give `changes` to have a boost"
            )
        if boosted and self.dummies == "negative_binomial":
            raise ValueError(
                "boosted counts with negative_binomial dummies have no proven calibration: take "
                "poisson dummies, or those of the shuffle stage, by `dummies: shuffle`"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def summed(self) -> bool:
        """Whether the shuffle stage adds up words (`shuffled_value_stream`).

        It does where it adds the noise, changes are boosted, and nothing is said of how.
        """
        return (
            self.domain is None
            and self.dummies == "shuffle"
            and self.changes is not None
            and self.boost is None
        )


def _check_whole(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise ValueError(f"{name} is {value!r}, must be a whole number from {least} to {most:,}")


@dataclass(frozen=True, slots=True)
class ShuffledCountsLaw(Constants):
    """All constants of a job.

    Attributes:
        last_epoch: number of epochs.
        epsilon: of a user's whole stream.
        delta: the same.
        changes: k; 0 without a boost.
        boost: r.
        calibration: how the noise was found.
        noise: of the cell of an epoch.

    Raises:
        ValueError: the fields contradict each other.
    """

    last_epoch: int
    epsilon: float
    delta: float
    changes: int
    boost: int
    calibration: Calibration
    noise: CellNoiseLaw

    def __post_init__(self) -> None:
        _check_whole("last_epoch", self.last_epoch, 1, MAX_HORIZON)
        _check_whole("changes", self.changes, 0, MAX_CHANGES)
        _check_whole("boost", self.boost, 0, MAX_BOOST)
        if (self.boost == 0) != (self.changes == 0):
            raise ValueError(f"a boost of {self.boost} for {self.changes} changes")
        if self.calibration not in _BASES or (self.boost == 0) != (self.calibration == "exact"):
            raise ValueError(f"calibration {self.calibration!r} with a boost of {self.boost}")

    @property
    def messages(self) -> float:
        """The most messages expected of a user over the horizon, its value 1 and always present."""
        real = self.last_epoch * (self.boost + 1) + self.boost
        return real + self.last_epoch * self.noise.per_contributor(1)

    @property
    def dummies(self) -> str:
        """Who adds them, by which law."""
        return self.noise.dummies

    def capacity(self, epoch: int, contributors: int) -> int:
        """The most messages that so many contributors send at an epoch, dummies included."""
        return contributors * (2 * self.boost + 1) + self.noise.most(1, contributors)

    @property
    def word_form(self) -> WordForm:
        """Of messages: there is one word."""
        return WORD_FORM

    def stage_dummies(self, epoch: int, rng: np.random.Generator) -> CountedWords:
        """What the shuffle stage adds to a window; nothing unless dummies are its business."""
        return _counted(stage_dummies_in_cell(self.noise, rng))


class ShuffledCounts(Devices[ShuffledCountsLaw]):
    """The devices of one horizon.

    >>> from dpstream.randomizers.shuffled_counts.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> parameters = ShuffledCountsParameters(epsilon=1, delta=1e-6, changes=4, boost=3)
    >>> law = calibrate(parameters, last_epoch=170, minimum=1000)
    >>> devices, rng = ShuffledCounts(law), seeded_generator(1)
    >>> devices.enrol(1000, rng)
    >>> sent = devices.report(1, np.ones(1000, np.int8), None, rng)
    >>> round(sent.messages / 1000, 1)  # 3 + 1 + 3 of each device, and 7.1 dummies
    14.1

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ShuffledCountsLaw) -> None:
        super().__init__(law)
        self._dummies = law.noise.of_contributors(1)
        # The last one seen, and 2 more if the device was silent at the last epoch. The value before
        # the first epoch counts as 0. Without a boost nothing is noted in either array.
        self._value = self._declare("value", np.uint8, new=_NEW)
        # Changes made, up to one more than are boosted.
        self._changes = self._declare("changes", np.min_scalar_type(law.changes + 2))

    @property
    def assumed_contributors(self) -> int:
        """See `Devices.assumed_contributors`."""
        return self.law.noise.contributors or 0

    def least_delta(self) -> float:
        """See `Devices.least_delta`: values always 1 against always 0, or changing in turn."""
        law = self.law
        turns = (min(law.changes, law.last_epoch) + 1) // 2
        tests = [(law.last_epoch, law.last_epoch + law.boost)]
        if turns:
            tests.append((turns, (2 * turns - 1) * law.boost + turns))
        return max(
            least_delta.of_cells(law.noise, cells, shift, law.epsilon) for cells, shift in tests
        )

    @property
    def frozen(self) -> int:
        """Number of devices that had to leave out the boost of a change."""
        return int(np.count_nonzero(self._changes > self.law.changes))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's whole stream.

        Neighbours differ by at most 1 + 2r messages in an epoch, and by that often only in few.
        What any such streams give away is bounded by the Renyi divergence of the worst shifts.
        Without a boost all shifts are 1, and all directions have been looked at for the noise that
        was chosen.
        """
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=self.law.delta,
            unit="stream",
            neighbours="any two streams of a user's values, reported at the same epochs",
            trust=trusted(self.law.noise),
            basis=_BASES[self.law.calibration],
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> CountedWords:
        """Send messages and dummies: how often the word 0 is sent, uint8 of width 1."""
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
        """Boosted changes to 1 less those to 0; keeps what the next epochs need."""
        if epoch > self.epoch + 1:
            self._value[self._value < _SILENT] |= _SILENT
        self._value[self._value == _NEW] = 0
        here = np.ones(self.population, np.bool_) if present is None else present
        before, made = self._value[here], self._changes[here]
        changed = (before & 1) != now
        boosted = changed & (before < _SILENT) & (made < self.law.changes)
        self._changes[here] = np.minimum(made + changed, self.law.changes + 1)
        self._value[~here] |= _SILENT
        self._value[here] = now
        up = int(np.count_nonzero(now[boosted]))
        return 2 * up - int(np.count_nonzero(boosted))


def _counted(messages: int) -> CountedWords:
    return CountedWords.of_cells(np.array([messages], np.int64), WORD_FORM.dtype)
