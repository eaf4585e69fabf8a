"""Numeric values over time, by letters: each device reports on one level of a tree over the values.

The values are cut up into 2^L buckets, numbered from 1. Level l of the tree over them has 2^l
nodes, each of 2^(L-l) neighbouring buckets. A device draws one level from 1 to L, once and for all
and for everybody to see, and reports at every epoch, as with items over time
(`dpstream.randomizers.hadamard_values`), in which node of that level its value lies. Coarse levels
tell the server how many values lie in wide ranges, fine ones how they are spread in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.equal_buckets import EqualBuckets
from dpstream.randomizers.hadamard_rows import MAX_ITEMS
from dpstream.randomizers.hadamard_values import HadamardValues, HadamardValuesLaw, check_changes
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.level_devices import LevelDevices, LevelLaw
from dpstream.randomizers.value_stream import ValueStreamParameters

MAX_BUCKETS = MAX_ITEMS

LEVEL_SHIFT = 24
"""A word is the level * 2^24, and the word of `HadamardValues` for the node."""


@dataclass(frozen=True, slots=True)
class RangeValuesParameters:
    """What a job says about numeric values over time.

    Attributes:
        epsilon: the privacy loss of a user's whole stream.
        changes: how many times the bucket of a user's value may change after the first one.
        low: the smallest value.
        high: values are below it.
        buckets: into how many buckets of one width the values from low to high are cut up, a power
            of two.
        initial: the value of a user before its first row and after it has left; None for `low`.
        boosted: how many flips of the Boolean that a device tracks are followed at once, on every
            level; None for the numbers with the least error.

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    changes: int
    low: float
    high: float
    buckets: int
    initial: float | None = None
    boosted: int | None = None

    def __post_init__(self) -> None:
        # Epsilon is that of the Boolean.
        object.__setattr__(self, "epsilon", ValueStreamParameters(self.epsilon, 1).epsilon)
        check_changes(self.changes, self.boosted)
        _check_numbers(self.low, self.high, self.initial, self.buckets)
        for name in ("low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.initial is not None:
            object.__setattr__(self, "initial", float(self.initial))

    @property
    def levels(self) -> int:
        """L: there are 2^L buckets."""
        return (self.buckets - 1).bit_length()


def _check_numbers(low: float, high: float, initial: float | None, buckets: int) -> None:
    """Raise `ValueError` unless numbers from low to high can be cut up into so many buckets."""
    for name, value in (("low", low), ("high", high), ("initial", initial)):
        if value is not None and not _is_number(value):
            raise ValueError(f"{name} is {value!r}, must be a number")
    if low >= high or not math.isfinite(float(high) - float(low)):
        raise ValueError(f"high is {high:g}, must be a number above low, {low:g}")
    if initial is not None and not low <= initial < high:
        raise ValueError(
            f"initial is {initial:g}, must be from low, {low:g}, to below high, {high:g}"
        )
    if type(buckets) is not int or not 2 <= buckets <= MAX_BUCKETS:
        raise ValueError(
            f"buckets is {buckets!r}, must be a whole number from 2 to {MAX_BUCKETS:,}"
        )
    levels = (buckets - 1).bit_length()
    if buckets != 1 << levels:
        raise ValueError(
            f"buckets is {buckets}, must be a power of two: give {1 << levels - 1} or {1 << levels}"
        )
    EqualBuckets(low, high, buckets)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class RangeValuesLaw(LevelLaw, Constants):
    """All constants of a job: what its devices draw from and its estimators divide by.

    Attributes:
        levels: of the nodes of each level, level 1 first.
        level_weights: one integer for each level; a level is drawn in proportion.

    Raises:
        ValueError: the fields contradict each other.
    """

    levels: tuple[HadamardValuesLaw, ...]
    level_weights: tuple[int, ...]

    def __post_init__(self) -> None:
        self.check_levels()
        if len({law.booleans.last_epoch for law in self.levels}) != 1:
            raise ValueError("all levels must have one horizon")

    @property
    def last_epoch(self) -> int:
        """Number of epochs."""
        return self.levels[0].booleans.last_epoch


class RangeValues(LevelDevices[RangeValuesLaw]):
    """The devices of one horizon: each has drawn a level, and what `HadamardValues` draws for it.

    >>> from dpstream.randomizers.range_values.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> parameters = RangeValuesParameters(4.0, 2, low=0, high=80, buckets=8)
    >>> devices = RangeValues(calibrate(parameters, last_epoch=16))
    >>> devices.enrol(1000, rng)
    >>> reports = devices.report(1, np.full(1000, 3), None, rng)  # all values are from 20 to 30
    >>> len(reports), np.unique(reports >> LEVEL_SHIFT)  # the levels of four and of eight nodes
    (1000, array([2, 3], dtype=uint32))

    Args:
        law: the constants of the job.
    """

    word_dtype = np.dtype("<u4")
    width = 1
    shift = LEVEL_SHIFT

    @staticmethod
    def level_devices(
        law: HadamardValuesLaw, arrays: Mapping[str, NDArray[np.generic]] | None, epoch: int
    ) -> HadamardValues:
        """See `LevelDevices`."""
        if arrays is None:
            return HadamardValues(law)
        return HadamardValues.restore(law, arrays, epoch)
