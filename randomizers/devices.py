"""Base class of device populations: enroll devices, and save and restore their state.

A subclass declares the arrays it stores, and defines what a device draws and reports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.guarantee import Guarantee, RollingGuarantee

LawT = TypeVar("LawT")


@dataclass(frozen=True, slots=True)
class _Declared:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    new: int | None
    allowed: range | None

    def of_new(self, count: int) -> NDArray[Any]:
        return np.full((count, *self.shape), self.new or 0, self.dtype)


class Devices(ABC, Generic[LawT]):
    """A population of enrolled devices, processed together.

    A subclass declares each stored array in its constructor with `_declare`; without arrays only
    the number of devices is stored. `law` holds the constants of the job, and `epoch` is the last
    reported epoch, 0 if none. `lasting` names the arrays, of one number per device, that remain for
    all horizons of a recurring job; everything else is drawn again for each horizon.
    """

    lasting: ClassVar[tuple[str, ...]] = ()

    def __init__(self, law: LawT) -> None:
        self.law = law
        self.epoch = 0
        self.population = 0
        self._declared: dict[str, _Declared] = {}

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Guarantee of the mechanism for every device."""

    @property
    def rolling(self) -> RollingGuarantee | None:
        """A recurring job's guarantee for any short run of epochs; None if none is stated."""
        return None

    @property
    def assumed_contributors(self) -> int:
        """Number of contributors per window that the guarantee assumes; 0 if it assumes none."""
        return 0

    @property
    def answers(self) -> int | None:
        """Number of epochs in a horizon in which a device answers; None if it answers in all."""
        return None

    def least_delta(self) -> float:
        """Return a lower bound on delta at the declared epsilon, from the declared noise.

        The bound is 0 if the mechanism computes epsilon and delta from its own distribution.
        """
        return 0.0

    @property
    def exhausted(self) -> int:
        """Number of devices that dropped a change after exhausting their change budget."""
        return 0

    @abstractmethod
    def report(
        self,
        epoch: int,
        values: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[Any] | CountedMessages:
        """Randomize one epoch of values and return the reports due.

        Args:
            epoch: Epoch to report, later than the last reported one and within the horizon. All
                devices are absent in skipped epochs.
            values: Values in enrollment order; those of absent devices are ignored. Integers or
                bool, shape (population,): 0 or 1; or items numbered from 1, with 0 for no item. For
                sets of items, integers of shape (population, slots): items in any order, 0 in empty
                slots.
            present: True for devices that are present, shape (population,); None if all are.
            rng: Cryptographic randomness; seeded in tests only.

        Returns:
            Messages, unsigned, shape (reports, width), or counted if many are identical. Their
            order must not be disclosed: sort or shuffle them first.

        Raises:
            ValueError: If the epoch is out of range, an array has the wrong shape or dtype, or a
                value is invalid. The state is then unchanged.
        """

    def due(self, epoch: int) -> NDArray[np.intp] | None:
        """Return the device that sends each report in an epoch, if all devices are always present.

        No earlier epoch may have been skipped. The result has shape (reports,), in the order of the
        reports: device numbers in enrollment order, from 0. It is None unless each device sends at
        most one report at an epoch, and it is public which devices report.
        """
        return None

    def enroll(
        self,
        count: int,
        rng: np.random.Generator,
        kept: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add devices; each draws its permanent randomness now, once and for all epochs.

        Enroll many devices in one call: each call copies the state of the existing population.
        `rng` is cryptographic randomness; seeded in tests only. `kept` has the `lasting` arrays of
        these devices, shape (count,), if they were drawn in an earlier horizon.
        """
        drawn = {**self._draw(count, rng), **(kept or {})}
        for name, declared in self._declared.items():
            more = drawn[name] if declared.new is None else declared.of_new(count)
            more = more.astype(declared.dtype, copy=False)
            self._keep(name, np.concatenate([self._kept(name), more]))
        self.population += count
        self._index()

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return read-only views of all state except `epoch`; store them, and keep them secret."""
        if not self._declared:
            return {"population": np.array([self.population], np.int64)}
        return read_only({name: self._kept(name) for name in self._declared})

    @classmethod
    def restore(cls, law: LawT, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        """Restore devices from stored state; enrolling them again would spend privacy again.

        `arrays` is a result of `state_arrays`, and is copied. `epoch` is the last reported epoch, 0
        if none. Raises `ValueError` if the arrays are of another class or do not fit the mechanism.
        """
        devices = cls(law)
        devices.population = devices._population_of(arrays)
        devices.epoch = epoch
        for name, declared in devices._declared.items():
            array = arrays[name].astype(declared.dtype)
            if declared.allowed is not None and not np.isin(array, declared.allowed).all():
                raise ValueError(
                    f"state array {name} has a value out of range; expected {declared.allowed[0]} "
                    f"to {declared.allowed[-1]}. The state belongs to another job"
                )
            devices._keep(name, array)
        devices._index()
        return devices

    def restored(self, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
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
        """Declare a stored array; assign the result, an array for zero devices, to `self._<name>`.

        `shape` is the shape per device. `new` is the value for a newly enrolled device; None if
        `_draw` draws it. `allowed` is the contiguous range of valid values; None allows any value.
        """
        self._declared[name] = _Declared(np.dtype(dtype), shape, new, allowed)
        return self._declared[name].of_new(0)

    def _draw(self, count: int, rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
        return {}

    def _index(self) -> None:
        """Update attributes that are derived from the arrays and not stored."""

    def _kept(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = getattr(self, f"_{name}")
        return array

    def _keep(self, name: str, array: NDArray[Any]) -> None:
        setattr(self, f"_{name}", array)

    def _population_of(self, arrays: Mapping[str, NDArray[np.generic]]) -> int:
        empty = self.state_arrays()
        if arrays.keys() != empty.keys():
            raise ValueError(
                f"state arrays are {sorted(arrays)}; expected {sorted(empty)} for "
                f"{type(self).__name__}"
            )
        length = len(arrays[next(iter(empty))]) if self._declared else 1
        for name, of_none in empty.items():
            shape = (length, *of_none.shape[1:])
            if arrays[name].dtype != of_none.dtype or arrays[name].shape != shape:
                raise ValueError(
                    f"state array {name} is {arrays[name].dtype} of shape {arrays[name].shape}; "
                    f"expected {of_none.dtype} of shape {shape}"
                )
        return length if self._declared else int(arrays["population"].astype(np.int64)[0])


def read_only(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views
