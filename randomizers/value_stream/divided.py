"""Populations in which each device permanently belongs to one part, with devices of its own kind.

A device's part is public, and independent of its values. So the guarantee of the population is that
of the part with the largest loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices, LawT, read_only
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.guarantee import Guarantee


class DividedDevices(Devices[LawT]):
    """Devices that each draw a part, by the integer `weights`, and the state of a device in it.

    Args:
        parts: Empty populations, one for each part.
        name: Name of the state array with the parts of devices, numbered from 1.
    """

    def __init__(
        self, law: LawT, parts: Sequence[Devices[Any]], weights: Sequence[int], name: str
    ) -> None:
        super().__init__(law)
        self._parts, self._weights, self._part_name = [*parts], weights, name
        numbers = range(1, len(parts) + 1)
        setattr(self, f"_{name}", self._declare(name, np.uint8, new=None, allowed=numbers))
        self._index()

    @property
    def exhausted(self) -> int:
        return sum(part.exhausted for part in self._parts)

    @property
    def guarantee(self) -> Guarantee:
        drawn = zip(self._parts, self._weights, strict=True)
        losses = [part.guarantee for part, weight in drawn if weight]
        largest = max(losses, key=lambda guarantee: guarantee.epsilon)
        return replace(largest, delta=max(loss.delta for loss in losses))

    def least_delta(self) -> float:
        return max(part.least_delta() for part in self._parts)

    def due(self, epoch: int) -> NDArray[np.intp]:
        return np.concatenate(self._members)

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        numbers = 1 + draw_categories(self._weights, count, rng)
        for number, part in enumerate(self._parts, start=1):
            part.enroll(int(np.count_nonzero(numbers == number)), rng)
        return {self._part_name: numbers}

    @abstractmethod
    def _words(
        self,
        number: int,
        epoch: int,
        values: NDArray[np.int64],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        """Return the messages of the devices in a part; values of absent devices are 0."""

    def _report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[Any]:
        words = []
        for number, members in enumerate(self._members, start=1):
            here = None if present is None else present[members]
            own = values[members].astype(np.int64)
            if here is not None:
                own[~here] = 0
            words.append(self._words(number, epoch, own, here, rng))
        self.epoch = epoch
        return np.concatenate(words)

    def _messages(
        self,
        number: int,
        epoch: int,
        values: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        reports = self._parts[number - 1].report(epoch, values, present, rng)
        assert not isinstance(reports, CountedMessages)
        return reports

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        states = [part.state_arrays() for part in self._parts]
        arrays = super().state_arrays()
        for name in dict.fromkeys(name for state in states for name in state):
            having = [
                (members, state[name])
                for members, state in zip(self._members, states, strict=True)
                if name in state
            ]
            shape = np.max([array.shape[1:] for _, array in having], axis=0)
            dtype = np.result_type(*(array.dtype for _, array in having))
            arrays[name] = np.zeros((self.population, *map(int, shape)), dtype)
            for members, array in having:
                arrays[name][_rows(members, array)] = array
        return read_only(arrays)

    @classmethod
    def restore(cls, law: LawT, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        devices = super().restore(law, arrays, epoch)
        for index, members in enumerate(devices._members):
            part = devices._parts[index]
            state = {
                name: arrays[name][_rows(members, empty)].astype(empty.dtype)
                for name, empty in part.state_arrays().items()
            }
            devices._parts[index] = part.restored(state, epoch)
        return devices

    def _index(self) -> None:
        numbers = self._kept(self._part_name)
        self._members = [
            np.flatnonzero(numbers == number) for number in range(1, len(self._parts) + 1)
        ]


def _rows(
    members: NDArray[np.intp], state: NDArray[np.generic]
) -> tuple[NDArray[np.intp] | slice, ...]:
    """Return the index of a part's rows in an array of all devices, which may be wider."""
    return (members, *(slice(length) for length in state.shape[1:]))
