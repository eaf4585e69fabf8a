"""Privacy loss of value_stream symbols, recomputed only from a device's constants.

For checks of the guarantee, and audits of a device with known values and reports, this module
computes the likelihood ratio of symbols between a stream and an input-independent device. The log
of the ratio between two streams is the privacy loss of the symbols. No device imports this module.
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

SYMBOLS = np.arange(FIRST - ZERO, LAST + 1 - ZERO, dtype=np.int16)
"""All symbols, offset by -80."""

Chooser: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.int16]]
"""Function from tilts, shape (devices, symbols), to each device's symbol, offset by -80."""


class Histories(ValueStream):
    """Devices with given instead of drawn symbols.

    >>> from dpstream.randomizers.value_stream import ValueStreamParameters
    >>> from dpstream.randomizers.value_stream.calibration import calibrate
    >>> law = calibrate(ValueStreamParameters(epsilon=1, max_changes=2), last_epoch=170)
    >>> zero, one = Histories(law, 1), Histories(law, 1)
    >>> for epoch in range(1, 6):
    ...     zero.tell(epoch, np.array([0]), np.array([20], np.int16))
    ...     one.tell(epoch, np.array([1]), np.array([20], np.int16))
    >>> float(np.log(one.likelihoods / zero.likelihoods)[0].round(3))  # of 1, for 170 epochs
    0.749
    """

    def __init__(self, law: ValueStreamLaw, devices: int) -> None:
        super().__init__(law)
        # Likelihoods for input-independent devices are known; the others are tracked here.
        self._tilt = np.ones(devices)
        self._sent_symbols: NDArray[np.int16] | Chooser = np.zeros(0, np.int16)
        self._rng = cryptographic_generator()
        self.enroll(devices, self._rng)
        self._noise[:] = 0

    @property
    def likelihoods(self) -> NDArray[np.float64]:
        """P(symbols | stream) / P(symbols | input-independent), shape (devices,)."""
        noise = self.law.probability_of_noise
        return noise + (1 - noise) * self._tilt

    def tell(
        self,
        epoch: int,
        values: NDArray[np.integer],
        symbols: NDArray[np.int16] | Chooser,
        present: NDArray[np.bool_] | None = None,
    ) -> None:
        """Advance by an epoch.

        Args:
            values: 0 or 1, shape (devices,).
            symbols: Symbol of each device, offset by -80, shape (devices,), ignored for absent
                devices; or a function that chooses symbols from the tilts of all symbols.
            present: bool, shape (devices,); None for all devices.
        """
        self._sent_symbols = symbols
        self.follow(epoch, values, present, self._rng)

    def _tilted_symbols(
        self,
        devices: NDArray[np.intp],
        steps: NDArray[np.float64],
        sums: NDArray[np.float64],
        left: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> NDArray[np.int16]:
        tilts = tilts_of_symbols(steps, sums, left, self._goal)
        told = self._sent_symbols
        symbols = told(tilts) if callable(told) else told[devices]
        self._tilt[devices] *= tilts[np.arange(len(steps)), symbols - SYMBOLS[0]]
        return symbols


def tilts_of_symbols(
    steps: NDArray[np.float64],
    sums: NDArray[np.float64],
    left: NDArray[np.float64],
    goal: float,
) -> NDArray[np.float64]:
    """Return each symbol's likelihood ratio to the base distribution, shape (devices, symbols)."""
    moved = sums[:, None] + steps[:, None] * (SYMBOLS * STEP)
    reached = reach(moved, np.broadcast_to(left[:, None], moved.shape), goal)
    base = np.array(weights(), np.float64) / (1 << WEIGHT_BITS)
    tilts: NDArray[np.float64] = reached / (reached @ base)[:, None]
    return tilts
