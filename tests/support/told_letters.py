"""What letters tell of a stream: the law of a device, recomputed from its constants alone.

For whoever checks the guarantee, or audits a device whose values and reports are known: how much
more likely letters are for a stream than for a device that is noise. The logarithm of the ratio of
two streams is what these letters lose between them. No device imports this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw
from dpstream.randomizers.value_stream.lattice import FIRST, LAST, STEP, WEIGHT_BITS, ZERO, weights
from dpstream.randomizers.value_stream.tilt import reach

LETTERS = np.arange(FIRST - ZERO, LAST + 1 - ZERO, dtype=np.int16)
"""All there are, less 80."""

Chooser: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.int16]]
"""From the tilts of all letters, shape (devices, letters), the letter of each device, less 80."""


class Histories(ValueStream):
    """Devices whose letters are told instead of drawn.

    >>> from dpstream.randomizers.value_stream import ValueStreamParameters
    >>> from dpstream.randomizers.value_stream.calibration import calibrate
    >>> law = calibrate(ValueStreamParameters(epsilon=1, changes=2), last_epoch=170)
    >>> zero, one = Histories(law, 1), Histories(law, 1)
    >>> for epoch in range(1, 6):
    ...     zero.tell(epoch, np.array([0]), np.array([20], np.int16))
    ...     one.tell(epoch, np.array([1]), np.array([20], np.int16))
    >>> float(np.log(one.likelihoods / zero.likelihoods)[0].round(3))  # of 1, for 170 epochs
    0.749

    Args:
        law: the constants of the job.
        devices: how many.
    """

    def __init__(self, law: ValueStreamLaw, devices: int) -> None:
        super().__init__(law)
        # Likelihoods of noise are known; what is followed here are all others.
        self._tilt = np.ones(devices)
        self._letters_told: NDArray[np.int16] | Chooser = np.zeros(0, np.int16)
        self._rng = cryptographic_generator()
        self.enrol(devices, self._rng)
        self._noise[:] = 0

    @property
    def likelihoods(self) -> NDArray[np.float64]:
        """P(letters | stream) over that of a device that is noise, shape (devices,)."""
        noise = self.law.probability_of_noise
        return noise + (1 - noise) * self._tilt

    def tell(
        self,
        epoch: int,
        values: NDArray[np.integer],
        letters: NDArray[np.int16] | Chooser,
        present: NDArray[np.bool_] | None = None,
    ) -> None:
        """Go on by an epoch.

        Args:
            epoch: later than the last one.
            values: 0 or 1, shape (devices,).
            letters: what each has sent, less 80, shape (devices,), those of silent devices ignored;
                or what chooses it from the tilts of all letters.
            present: bool, shape (devices,), who is; None for everybody.
        """
        self._letters_told = letters
        self.follow(epoch, values, present, self._rng)

    def _tilted_letters(
        self,
        devices: NDArray[np.intp],
        steps: NDArray[np.float64],
        sums: NDArray[np.float64],
        left: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> NDArray[np.int16]:
        tilts = tilts_of_letters(steps, sums, left, self._goal)
        told = self._letters_told
        letters = told(tilts) if callable(told) else told[devices]
        self._tilt[devices] *= tilts[np.arange(len(steps)), letters - LETTERS[0]]
        return letters


def tilts_of_letters(
    steps: NDArray[np.float64],
    sums: NDArray[np.float64],
    left: NDArray[np.float64],
    goal: float,
) -> NDArray[np.float64]:
    """By how much each letter is likelier than by the base law, shape (devices, letters)."""
    moved = sums[:, None] + steps[:, None] * (LETTERS * STEP)
    reached = reach(moved, np.broadcast_to(left[:, None], moved.shape), goal)
    base = np.array(weights(), np.float64) / (1 << WEIGHT_BITS)
    tilts: NDArray[np.float64] = reached / (reached @ base)[:, None]
    return tilts
