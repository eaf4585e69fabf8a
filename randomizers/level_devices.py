"""Numeric values: devices that each draw one level of a tree over the values, and report on it.

The values are cut up into 2^L buckets, numbered from 1; level l of the tree over them has 2^l
nodes, each of 2^(L-l) neighbouring buckets. What a device reports of the node that its value lies
in, as one of 2^l items, is a matter of the protocol.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.devices import Devices, read_only
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.given_values import refuse_wrong
from dpstream.randomizers.guarantee import Guarantee


class LevelLaw:
    """What laws of several levels have in common.

    Attributes:
        levels: the laws of the nodes of each level, level 1 first.
        level_weights: one integer for each level; a level is drawn in proportion.
    """

    __slots__ = ()

    levels: tuple[Any, ...]
    level_weights: tuple[int, ...]

    def check_levels(self) -> None:
        """Raise `ValueError` if levels and weights contradict each other."""
        if [law.items for law in self.levels] != [2 << index for index in range(len(self.levels))]:
            raise ValueError("levels must have 2, 4, 8, ... nodes")
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
        last: int = self.levels[-1].items
        return last

    @property
    def level_probabilities(self) -> tuple[float, ...]:
        """Probability of each level."""
        total = sum(self.level_weights)
        return tuple(weight / total for weight in self.level_weights)


LevelsT = TypeVar("LevelsT", bound=LevelLaw)


class LevelDevices(Devices[LevelsT]):
    """The devices of one horizon: each has drawn a level, and what that level's devices draw.

    The level is drawn without regard to the values and is no secret, so the guarantee is that of
    the level with the largest loss.

    Args:
        law: the constants of the job.
    """

    shift: int
    """Of the level in a word: below it is what the devices of the level report."""

    def __init__(self, law: LevelsT) -> None:
        super().__init__(law)
        self._streams = [self.level_devices(level, None, 0) for level in law.levels]
        levels = range(1, len(law.levels) + 1)
        # No secret, as the row of a stream.
        self._level = self._declare("level", np.uint8, new=None, allowed=levels)
        self._index()

    @staticmethod
    @abstractmethod
    def level_devices(
        law: Any, arrays: Mapping[str, NDArray[np.generic]] | None, epoch: int
    ) -> Devices[Any]:
        """Devices that report on one level: new ones, or those with a state, as of an epoch."""

    @property
    def frozen(self) -> int:
        """See `Devices.frozen`, of all levels."""
        return sum(stream.frozen for stream in self._streams)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's whole stream on the level with the largest loss."""
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

    def due(self, epoch: int) -> NDArray[np.intp] | None:
        """Level by level: see `Devices.due`."""
        found = []
        for stream, members in zip(self._streams, self._members, strict=True):
            due = stream.due(epoch)
            if due is None:
                return None
            found.append(members[due])
        return np.concatenate(found)

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint32]:
        """Report what is due.

        Returns:
            uint32, shape (reports, 1): level * 2^shift and what the level's devices report of the
            node.
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
            reports = stream.report(epoch, nodes, here, rng)
            assert not isinstance(reports, CountedWords)
            words.append(reports | np.uint32(level << self.shift))
        self.epoch = epoch
        return np.concatenate(words)

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        """As `Devices.state_arrays`, with what the devices of levels keep.

        Returns:
            The arrays of all levels, as wide as the widest level needs.
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
    def restore(cls, law: LevelsT, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        """As `Devices.restore`."""
        devices = super().restore(law, arrays, epoch)
        for index, members in enumerate(devices._members):
            fresh = devices._streams[index].state_arrays()
            part = {
                name: arrays[name][_rows(members, empty)].astype(empty.dtype)
                for name, empty in fresh.items()
            }
            devices._streams[index] = cls.level_devices(law.levels[index], part, epoch)
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
