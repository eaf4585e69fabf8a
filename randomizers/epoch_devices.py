"""Devices to which every epoch stands alone: how many they are is all that is kept of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

LawT = TypeVar("LawT")


class EpochDevices(Generic[LawT]):
    """A population of such devices. They draw nothing in advance.

    Args:
        law: the constants of the job.
    """

    frozen = 0
    """No change is ever left out."""

    def __init__(self, law: LawT) -> None:
        self.law = law
        self.epoch = 0
        self.population = 0

    def enrol(self, count: int, rng: np.random.Generator) -> None:
        """Add devices; `rng` is not used."""
        self.population += count

    def state_arrays(self) -> dict[str, NDArray[np.generic]]:
        """All that must be kept, with `epoch`: population, int64, shape (1,)."""
        return {"population": np.array([self.population], np.int64)}

    @classmethod
    def restore(cls, law: LawT, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        """The devices as they were.

        Args:
            law: of the job.
            arrays: what `state_arrays` returned.
            epoch: the last epoch reported, 0 if none.

        Raises:
            ValueError: the arrays are not of this protocol.
        """
        if arrays.keys() != {"population"} or arrays["population"].shape != (1,):
            raise ValueError(f"state arrays {sorted(arrays)}, {cls.__name__} keeps a population")
        devices = cls(law)
        devices.epoch = epoch
        devices.population = int(arrays["population"].astype(np.int64)[0])
        return devices


def held_by_a_user(items: int) -> str:
    """What cannot be told apart where a user holds up to so many items, in words."""
    held = "items" if items == 1 else f"sets of at most {items:,} items"
    return f"any two {held} of a user at an epoch, or none at all; who is present is public"
