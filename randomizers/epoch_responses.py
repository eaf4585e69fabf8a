"""Devices that answer at every epoch, with one bit: their value, or what stands for it, randomized.

A report is the bit itself. Nothing is spread over epochs, so a value may change at any time and as
often as it likes; what that costs is the business of the protocols that build on this.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.devices import Devices, LawT
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.given_values import check_epoch, checked_booleans

MAX_EPOCHS = 1 << 20
"""The most epochs with a report at each."""


class EpochResponses(Devices[LawT]):
    """A population of such devices.

    Args:
        law: the constants of the job.
        last_epoch: number of epochs.
        response: the law of one sign, by which every answer is randomized.
    """

    word_dtype: ClassVar[np.dtype[np.uint8]] = np.dtype(np.uint8)
    width: ClassVar[int] = 1

    def __init__(self, law: LawT, last_epoch: int, response: ComposedLaw) -> None:
        super().__init__(law)
        self._last_epoch = last_epoch
        self._response = response

    @abstractmethod
    def _answers(self, devices: NDArray[np.intp], values: NDArray[np.int8]) -> NDArray[np.uint8]:
        """What these devices would answer without randomizing it, 0 or 1."""

    def due(self, epoch: int) -> NDArray[np.intp]:
        """Everybody's: see `Devices.due`."""
        return np.arange(self.population)

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        """The randomized answers, 0 or 1, of everybody present."""
        check_epoch(epoch, after=self.epoch, last_epoch=self._last_epoch)
        values = checked_booleans(epoch, values, present, self.population)
        here = np.arange(self.population) if present is None else np.flatnonzero(present)
        reversed_ = draw_categories(self._response.weights, len(here), rng).astype(np.uint8)
        self.epoch = epoch
        return (self._answers(here, values[here]) ^ reversed_)[:, None]


def check_response(name: str, response: ComposedLaw, last_epoch: int) -> None:
    """Raise `ValueError` unless a law is of one sign, and there are 1 to 2^20 epochs."""
    if response.k != 1:
        raise ValueError(f"{name} is a law of {response.k} signs, must be of one")
    if type(last_epoch) is not int or not 1 <= last_epoch <= MAX_EPOCHS:
        raise ValueError(f"{last_epoch} epochs, must be from 1 to {MAX_EPOCHS}")
