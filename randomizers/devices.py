"""Populations of devices: what every protocol's devices have in common.

A class of devices declares the arrays it keeps, and says what a device draws and reports; how
devices are enrolled, stored and restored is written here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.guarantee import Guarantee

LawT = TypeVar("LawT")


@dataclass(frozen=True, slots=True)
class _Declared:
    """An array that has one entry for each device."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    new: int | None
    allowed: range | None

    def of_new(self, count: int) -> NDArray[Any]:
        return np.full((count, *self.shape), self.new or 0, self.dtype)


class Devices(ABC, Generic[LawT]):
    """A population of enrolled devices, run as one.

    A subclass declares in its constructor, by `_declare`, every array that it keeps. One that
    declares none has its devices counted.

    Args:
        law: the constants of the job.

    Attributes:
        epoch: the last one reported, 0 if none.
        population: devices enrolled.
    """

    def __init__(self, law: LawT) -> None:
        self.law = law
        self.epoch = 0
        self.population = 0
        self._declared: dict[str, _Declared] = {}

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What the law promises every device."""

    @property
    def assumed_contributors(self) -> int:
        """Contributors of a window that the guarantee assumes; 0 if it assumes none."""
        return 0

    def least_delta(self) -> float:
        """Lower bound on delta at the stated epsilon, from the stated noise.

        0 where the law computes its epsilon and delta from what it draws.
        """
        return 0.0

    @property
    def frozen(self) -> int:
        """Devices that had to leave out a change because their budget of changes was used up."""
        return 0

    @abstractmethod
    def report(
        self,
        epoch: int,
        values: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[Any] | CountedWords:
        """Take in everybody's values of an epoch, and report what is due.

        Args:
            epoch: later than the last one, at most the last of the horizon. Epochs left out are
                epochs at which everybody was silent.
            values: in the order of enrolment; those of silent devices are ignored. Integers or
                bool, shape (population,): 0 or 1, or items from 1 on, 0 for none. Where a device
                has a set, integers of shape (population, slots): items in any order and place, 0
                for none.
            present: shape (population,), which devices are not silent; None for all of them.
            rng: cryptographic randomness; seeded in tests only.

        Returns:
            Words, unsigned, shape (reports, width), in no order that others may see: sort or
            shuffle them first. Counted where many are equal.

        Raises:
            ValueError: the epoch is not a later one, an array has another shape or dtype, or a
                value is none that there is. Nothing has changed then.
        """

    def due(self, epoch: int) -> NDArray[np.intp] | None:
        """Whose the reports of an epoch are, in their order, if everybody is always present.

        Said of devices that send one report at an epoch or none, which is public.

        Args:
            epoch: none before it was left out.

        Returns:
            shape (reports,), each the number of a device in the order of enrolment, from 0 on; None
            where that is not said.
        """
        return None

    def enrol(self, count: int, rng: np.random.Generator) -> None:
        """Add devices; what they draw in advance they draw now, once and for all.

        Enrol many at once: the cost includes that of the population.

        Args:
            count: how many.
            rng: cryptographic randomness; seeded in tests only.
        """
        drawn = self._draw(count, rng)
        for name, declared in self._declared.items():
            more = drawn[name] if declared.new is None else declared.of_new(count)
            more = more.astype(declared.dtype, copy=False)
            self._keep(name, np.concatenate([self._kept(name), more]))
        self.population += count
        self._index()

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        """All that must be kept, with `epoch`, and must be kept secret: read-only views.

        Returns:
            The declared arrays by name; the population, int64 of shape (1,), if there are none.
        """
        if not self._declared:
            return {"population": np.array([self.population], np.int64)}
        return read_only({name: self._kept(name) for name in self._declared})

    @classmethod
    def restore(cls, law: LawT, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        """The devices as they were: drawing again would spend the privacy loss again.

        Args:
            law: of the job.
            arrays: what `state_arrays` returned; copied.
            epoch: the last epoch reported, 0 if none.

        Raises:
            ValueError: the arrays are not of these devices, or do not fit the law.
        """
        devices = cls(law)
        devices.population = devices._population_of(arrays)
        devices.epoch = epoch
        for name, declared in devices._declared.items():
            array = arrays[name].astype(declared.dtype)
            if declared.allowed is not None and not np.isin(array, declared.allowed).all():
                raise ValueError(
                    f"state array {name} has a value that is not from {declared.allowed[0]} to "
                    f"{declared.allowed[-1]}: it is of another law"
                )
            devices._keep(name, array)
        devices._index()
        return devices

    def restored(self, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        """Devices of the same law as they were; arguments of `restore`."""
        return self.restore(self.law, arrays, epoch)

    def _declare(
        self,
        name: str,
        dtype: DTypeLike,
        shape: tuple[int, ...] = (),
        *,
        new: int | None = 0,
        allowed: range | None = None,
    ) -> NDArray[Any]:
        """Keep an array in the attribute of this name, with an underscore before it.

        Args:
            name: in the state.
            dtype: of it.
            shape: of what is kept of one device.
            new: what a device has that has just been enrolled; None: what it draws, by `_draw`.
            allowed: the values that it may have, without gaps; None: not looked at.

        Returns:
            The array of no device, for that attribute.
        """
        self._declared[name] = _Declared(np.dtype(dtype), shape, new, allowed)
        return self._declared[name].of_new(0)

    def _draw(self, count: int, rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
        """What devices that are being enrolled draw, by name of the array."""
        return {}

    def _index(self) -> None:
        """Bring up to date what follows from the arrays, and is not kept; nothing by default."""

    def _kept(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = getattr(self, f"_{name}")
        return array

    def _keep(self, name: str, array: NDArray[Any]) -> None:
        setattr(self, f"_{name}", array)

    def _population_of(self, arrays: Mapping[str, NDArray[np.generic]]) -> int:
        """How many devices arrays are the state of; `ValueError` if they cannot be of these."""
        empty = self.state_arrays()
        if arrays.keys() != empty.keys():
            raise ValueError(
                f"state arrays {sorted(arrays)}, {type(self).__name__} keeps {sorted(empty)}"
            )
        length = len(arrays[next(iter(empty))]) if self._declared else 1
        for name, of_none in empty.items():
            shape = (length, *of_none.shape[1:])
            if arrays[name].dtype != of_none.dtype or arrays[name].shape != shape:
                raise ValueError(
                    f"state array {name} is {arrays[name].dtype} of shape {arrays[name].shape}, "
                    f"must be {of_none.dtype} of shape {shape}"
                )
        return length if self._declared else int(arrays["population"].astype(np.int64)[0])


def read_only(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """Views that cannot be written to."""
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views
