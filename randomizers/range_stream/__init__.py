"""Numeric values over time: each device reports on one level of a tree over the values.

The values are cut up into 2^L buckets, numbered from 1. Level l of the tree over them has 2^l
nodes, each of 2^(L-l) neighbouring buckets. A device draws one level from 1 to L, once and for all
and for everybody to see, and reports, as with items over time (`randomizers.hadamard_stream`), in
which node of that level its value lies. Coarse levels tell the server how many values lie in wide
ranges, fine ones how they are spread in them.

The node changes at most as often as the value, and on coarse levels seldom: they need fewer signs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from randomizers.composed import MAX_SIGNS
from randomizers.devices import Devices, read_only
from randomizers.future_rand import check_epsilon
from randomizers.given_values import refuse_wrong
from randomizers.guarantee import Guarantee
from randomizers.hadamard_stream import MAX_ITEMS, HadamardStream, HadamardStreamLaw
from randomizers.laws import Constants
from randomizers.randomness import draw_categories

MAX_BUCKETS = MAX_ITEMS

LEVEL_SHIFT = 20
"""A word is the level * 2^20, and the word of `HadamardStream` for the node."""


@dataclass(frozen=True, slots=True)
class RangeStreamParameters:
    """What a job says about numeric values over time.

    Attributes:
        epsilon: the privacy loss of a user's whole stream.
        changes: how many times the bucket of a user's value may change after the first one.
        low: the smallest value.
        high: values are below it.
        buckets: into how many buckets of one width the values from low to high are cut up, a power
            of two.
        initial: the value of a user before its first row and after it has left; None for `low`.
        signs: how many flips of the Boolean that a device tracks are followed, on every level; None
            for the numbers with the least error (`randomizers.range_stream.calibration`).
        estimator: "tree", which combines all the intervals there are, or "prefix", which uses the
            fewest; a device knows nothing of it.

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    changes: int
    low: float
    high: float
    buckets: int
    initial: float | None = None
    signs: int | None = None
    estimator: Literal["tree", "prefix"] = "tree"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if type(self.changes) is not int or not 0 <= self.changes < MAX_SIGNS:
            raise ValueError(
                f"changes is {self.changes!r}, must be a whole number from 0 to {MAX_SIGNS - 1}"
            )
        for name, value in (("low", self.low), ("high", self.high), ("initial", self.initial)):
            if value is not None and not _is_number(value):
                raise ValueError(f"{name} is {value!r}, must be a number")
        if self.low >= self.high or not math.isfinite(float(self.high) - float(self.low)):
            raise ValueError(f"high is {self.high:g}, must be a number above low, {self.low:g}")
        if self.initial is not None and not self.low <= self.initial < self.high:
            raise ValueError(
                f"initial is {self.initial:g}, must be from low, {self.low:g}, to below high, "
                f"{self.high:g}"
            )
        if type(self.buckets) is not int or not 2 <= self.buckets <= MAX_BUCKETS:
            raise ValueError(
                f"buckets is {self.buckets!r}, must be a whole number from 2 to {MAX_BUCKETS:,}"
            )
        if self.buckets != 1 << self.levels:
            raise ValueError(
                f"buckets is {self.buckets}, must be a power of two: give {1 << self.levels - 1} "
                f"or {1 << self.levels}"
            )
        most = self.changes + 1
        if self.signs is not None and (type(self.signs) is not int or not 1 <= self.signs <= most):
            raise ValueError(
                f"signs is {self.signs!r}, must be a whole number from 1 to changes + 1, {most}: "
                "no more flips than that are possible"
            )
        if self.estimator not in ("tree", "prefix"):
            raise ValueError(f"estimator is {self.estimator!r}, must be 'tree' or 'prefix'")
        for name in ("epsilon", "low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.initial is not None:
            object.__setattr__(self, "initial", float(self.initial))

    @property
    def levels(self) -> int:
        """L: there are 2^L buckets."""
        return (self.buckets - 1).bit_length()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class RangeStreamLaw(Constants):
    """All constants of a job: what its devices draw from and its estimators divide by.

    Attributes:
        levels: of the nodes of each level, level 1 first.
        level_weights: one integer for each level; a level is drawn in proportion.

    Raises:
        ValueError: the fields contradict each other.
    """

    levels: tuple[HadamardStreamLaw, ...]
    level_weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if [law.items for law in self.levels] != [2 << index for index in range(len(self.levels))]:
            raise ValueError("levels must have 2, 4, 8, ... nodes")
        if len({law.future_rand.horizon for law in self.levels}) != 1:
            raise ValueError("all levels must have one horizon")
        if len(self.level_weights) != len(self.levels):
            raise ValueError(
                f"{len(self.level_weights)} level weights for {len(self.levels)} levels"
            )
        if any(type(weight) is not int or weight < 0 for weight in self.level_weights):
            raise ValueError("level weights must be integers, none negative")
        if not self.level_weights[-1]:
            raise ValueError("the weight of the last level must be positive")

    @property
    def buckets(self) -> int:
        """Nodes of the last level."""
        return self.levels[-1].items

    @property
    def horizon(self) -> int:
        """Number of epochs, a power of two."""
        return self.levels[0].future_rand.horizon

    @property
    def level_probabilities(self) -> tuple[float, ...]:
        """Probability of each level."""
        total = sum(self.level_weights)
        return tuple(weight / total for weight in self.level_weights)


class RangeStream(Devices[RangeStreamLaw]):
    """The devices of one horizon: each has drawn a level, and what `HadamardStream` draws for it.

    The level is drawn without regard to the values and is no secret, so the guarantee is that of
    the level with the largest loss.

    >>> from randomizers.range_stream.calibration import calibrate
    >>> from randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> parameters = RangeStreamParameters(4.0, 2, low=0, high=80, buckets=8)
    >>> devices = RangeStream(calibrate(parameters, last_epoch=4))
    >>> devices.enrol(1000, rng)
    >>> reports = devices.report(2, np.full(1000, 3), None, rng)  # all values are from 20 to 30
    >>> np.unique(reports >> LEVEL_SHIFT)  # the levels of four and of eight nodes
    array([2, 3], dtype=uint32)

    Args:
        law: the constants of the job.
    """

    word_dtype = np.dtype("<u4")
    width = 1

    def __init__(self, law: RangeStreamLaw) -> None:
        super().__init__(law)
        self._streams = [HadamardStream(level) for level in law.levels]
        levels = range(1, len(law.levels) + 1)
        # No secret, as the row of a stream.
        self._level = self._declare("level", np.uint8, new=None, allowed=levels)
        self._index()

    @property
    def frozen(self) -> int:
        """Number of devices that had to leave out a flip because their signs were used up."""
        return sum(stream.frozen for stream in self._streams)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's whole stream (`FutureRand.guarantee`)."""
        return max(
            (
                stream.guarantee
                for stream, weight in zip(self._streams, self.law.level_weights, strict=True)
                if weight
            ),
            key=lambda guarantee: guarantee.epsilon,
        )

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        levels = 1 + draw_categories(self.law.level_weights, count, rng)
        for level, stream in enumerate(self._streams, start=1):
            stream.enrol(int(np.count_nonzero(levels == level)), rng)
        return {"level": levels}

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint32]:
        """Report what is due.

        Returns:
            uint32, shape (reports, 1): level * 2^20 and, for the node, what `HadamardStream.report`
            returns.
        """
        self._check(epoch, values, present)
        words = []
        for level, (stream, members) in enumerate(
            zip(self._streams, self._members, strict=True), start=1
        ):
            height = len(self._streams) - level
            here = None if present is None else present[members]
            buckets = values[members].astype(np.int64)
            if here is not None:
                buckets[~here] = 0
            # Bucket 0, no value, stays 0.
            nodes = buckets + (1 << height) - 1 >> height
            words.append(stream.report(epoch, nodes, here, rng) | np.uint32(level << LEVEL_SHIFT))
        self.epoch = epoch
        return np.concatenate(words)

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        """As `Devices.state_arrays`, with what `HadamardStream` keeps.

        Returns:
            The arrays of all levels, as wide as the level with the most signs needs.
        """
        parts = [stream.state_arrays() for stream in self._streams]
        arrays = super().state_arrays()
        for name in parts[0]:
            shape = (self.population, *np.max([part[name].shape[1:] for part in parts], axis=0))
            dtype = np.result_type(*(part[name].dtype for part in parts))
            arrays[name] = np.zeros(tuple(map(int, shape)), dtype)
            for members, part in zip(self._members, parts, strict=True):
                arrays[name][_rows(members, part[name])] = part[name]
        return read_only(arrays)

    @classmethod
    def restore(
        cls, law: RangeStreamLaw, arrays: Mapping[str, NDArray[np.generic]], epoch: int
    ) -> Self:
        """As `Devices.restore`."""
        devices = super().restore(law, arrays, epoch)
        for index, members in enumerate(devices._members):
            fresh = devices._streams[index].state_arrays()
            part = {
                name: arrays[name][_rows(members, empty)].astype(empty.dtype)
                for name, empty in fresh.items()
            }
            devices._streams[index] = HadamardStream.restore(law.levels[index], part, epoch)
        return devices

    def _index(self) -> None:
        """List the devices of each level, in the order of enrolment."""
        self._members = [
            np.flatnonzero(self._level == level) for level in range(1, len(self._streams) + 1)
        ]

    def _check(
        self, epoch: int, values: NDArray[np.integer], present: NDArray[np.bool_] | None
    ) -> None:
        if values.shape != (self.population,) or values.dtype.kind not in "biu":
            raise ValueError(
                f"values are {values.dtype} of shape {values.shape}, must be integers of shape "
                f"({self.population},): one a device"
            )
        wrong = (values < 0) | (values > self.law.buckets)
        allowed = f"from 1 to {self.law.buckets}, or 0 for no value"
        refuse_wrong(epoch, values, wrong, present, allowed)


def _rows(
    members: NDArray[np.intp], part: NDArray[np.generic]
) -> tuple[NDArray[np.intp] | slice, ...]:
    """Where, in an array of all devices, the array of one level belongs that may be narrower."""
    return (members, *(slice(length) for length in part.shape[1:]))
