"""Numeric values over time, reported as symbols on one level of a tree of values.

The range of values is split into 2^L buckets, numbered from 1. Level l of the tree has 2^l nodes,
each with 2^(L-l) consecutive buckets. A device draws one permanent level from 1 to L; the level is
public. At every epoch it reports the node of that level that contains its value, like an item over
time (`hadamard_values`). Coarse levels estimate wide ranges; fine levels show details.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.equal_buckets import check_numbers
from dpstream.randomizers.given_values import reject_wrong
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.value_stream import ValueStreamParameters
from dpstream.randomizers.value_stream.divided import DividedDevices
from dpstream.randomizers.value_stream.hadamard_values import (
    HadamardValues,
    HadamardValuesLaw,
    check_changes,
)

LEVEL_SHIFT = 24
"""Bit offset of the level: a message is level * 2^24 plus the node's `HadamardValues` message."""


@dataclass(frozen=True, slots=True)
class RangeValuesParameters:
    """Parameters of numeric values over time.

    Attributes:
        epsilon: Privacy loss of a user's whole stream.
        max_changes: Number of bucket changes per user after the first bucket.
        low, high: Range of values; `high` is exclusive.
        buckets: Number of buckets of equal width from `low` to `high`, a power of two.
        initial: A user's value before the first row and after leaving; None for `low`.
        boosted: Number of boosted flips of the tracked Boolean on every level; None for the number
            with the least error on each level.
    """

    epsilon: float
    max_changes: int
    low: float
    high: float
    buckets: int
    initial: float | None = None
    boosted: int | None = None

    def __post_init__(self) -> None:
        # The Boolean has the same epsilon.
        object.__setattr__(self, "epsilon", ValueStreamParameters(self.epsilon, 1).epsilon)
        check_changes(self.max_changes, self.boosted)
        check_numbers(self.low, self.high, self.initial, self.buckets)
        for name in ("low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.initial is not None:
            object.__setattr__(self, "initial", float(self.initial))

    @property
    def levels(self) -> int:
        return (self.buckets - 1).bit_length()


@dataclass(frozen=True, slots=True)
class RangeValuesLaw(Constants):
    """All constants of a job: those for the nodes of each level, and integer weights of levels."""

    levels: tuple[HadamardValuesLaw, ...]
    level_weights: tuple[int, ...]

    def __post_init__(self) -> None:
        nodes, weights = [law.items for law in self.levels], self.level_weights
        if nodes != [2 << index for index in range(len(nodes))]:
            raise ValueError(f"levels have {nodes} nodes; expected 2, 4, 8, ...")
        if len(weights) != len(nodes):
            raise ValueError(f"got {len(weights)} level weights; expected {len(nodes)}")
        if any(type(weight) is not int or weight < 0 for weight in weights) or not weights[-1]:
            raise ValueError(
                f"level weights are {weights}; expected nonnegative integers, the last one positive"
            )
        if len(horizons := {law.booleans.last_epoch for law in self.levels}) != 1:
            raise ValueError(
                f"levels end with epochs {horizons}; expected the same last epoch for all"
            )

    @property
    def last_epoch(self) -> int:
        return self.levels[0].booleans.last_epoch

    @property
    def buckets(self) -> int:
        return self.levels[-1].items

    @property
    def level_probabilities(self) -> tuple[float, ...]:
        total = sum(self.level_weights)
        return tuple(weight / total for weight in self.level_weights)


class RangeValues(DividedDevices[RangeValuesLaw]):
    """Devices of one horizon, each with a public level and the draws of `HadamardValues` for it.

    The level is drawn independently of the values, so the guarantee is that of the level with the
    largest loss.

    >>> from dpstream.randomizers.value_stream.range_values.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> parameters = RangeValuesParameters(4.0, 2, low=0, high=80, buckets=8)
    >>> devices = RangeValues(calibrate(parameters, last_epoch=16))
    >>> devices.enroll(1000, rng)
    >>> reports = devices.report(1, np.full(1000, 3), None, rng)  # all values are from 20 to 30
    >>> len(reports), np.unique(reports >> LEVEL_SHIFT)  # the levels with four and eight nodes
    (1000, array([2, 3], dtype=uint32))
    """

    word_dtype = np.dtype("<u4")
    width = 1

    def __init__(self, law: RangeValuesLaw) -> None:
        # Levels are public, like the rows of `HadamardValues`.
        super().__init__(law, [*map(HadamardValues, law.levels)], law.level_weights, "level")

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint32]:
        """Return level * 2^LEVEL_SHIFT plus the level's report."""
        self._check(epoch, values, present)
        return self._report(epoch, values, present, rng)

    def _words(
        self,
        number: int,
        epoch: int,
        values: NDArray[np.int64],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        height = len(self._parts) - number
        # Bucket 0 means no value, and stays node 0.
        nodes = values + (1 << height) - 1 >> height
        reports = self._messages(number, epoch, nodes, present, rng)
        return np.asarray(reports | np.uint32(number << LEVEL_SHIFT), np.uint32)

    def _check(
        self, epoch: int, values: NDArray[np.integer], present: NDArray[np.bool_] | None
    ) -> None:
        if values.shape != (self.population,) or values.dtype.kind not in "biu":
            raise ValueError(
                f"values are {values.dtype} of shape {values.shape}; expected integers of shape "
                f"({self.population},): one per device"
            )
        wrong = (values < 0) | (values > self.law.buckets)
        allowed = f"from 1 to {self.law.buckets}, or 0 for no value"
        reject_wrong(epoch, values, wrong, present, allowed)
