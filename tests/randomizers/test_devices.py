"""Test that enrollment, state and restoring of devices follow from their declared arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.devices import Devices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.randomness import seeded_generator


class Counted(Devices[int]):
    @property
    def guarantee(self) -> Guarantee:
        raise NotImplementedError

    def report(
        self,
        epoch: int,
        values: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[Any]:
        raise NotImplementedError


class Dice(Counted):
    def __init__(self, law: int) -> None:
        super().__init__(law)
        self._dice = self._declare("dice", np.uint8, (2,), new=None, allowed=range(1, law + 1))
        self._purse = self._declare("purse", np.int16, new=5)
        self._index()

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        return {"dice": rng.integers(1, self.law + 1, (count, 2))}

    def _index(self) -> None:
        self.doubles = int(np.count_nonzero(self._dice[:, 0] == self._dice[:, 1]))


def enrolled() -> Dice:
    devices, rng = Dice(6), seeded_generator(1)
    for count in (30, 0, 70):
        devices.enroll(count, rng)
    return devices


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cards": np.zeros(100)}, r"arrays are \['cards', 'dice', .*; expected \['dice', 'p"),
        ({"purse": None}, r"arrays are \['dice'\]; expected \['dice', 'purse'\] for Dice"),
        (
            {"purse": np.zeros(99, np.int16)},
            r"purse is int16 of shape \(99,\); expected .*\(100,\)",
        ),
        ({"purse": np.zeros(100)}, r"purse is float64 of shape \(100,\); expected int16"),
        ({"dice": np.ones((100, 3), np.uint8)}, r"dice is .*\(100, 3\); expected .*\(100, 2\)"),
        ({"dice": np.full((100, 2), 7, np.uint8)}, "has a value out of range; expected 1 to"),
        ({"dice": np.zeros((100, 2), np.uint8)}, "has a value out of range; expected 1 to"),
    ],
)
def test_restore_rejects_invalid_state_arrays(changed: dict[str, Any], message: str) -> None:
    arrays = {**enrolled().state_arrays(), **changed}
    known = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        Dice.restore(6, known, 0)
