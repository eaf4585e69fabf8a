"""Items over time, each device reporting letters of one Boolean: the Hadamard lift of value_stream.

A device draws a row of the Hadamard matrix, once and for all and for everybody to see, and follows
whether its item has +1 there, b = (1 + H[r, x]) / 2 (`dpstream.randomizers.hadamard_rows`). What it
reports of b at every epoch is a letter (`dpstream.randomizers.value_stream`).

When the item changes to another one, b flips for half of the rows only. So fewer flips have to be
boosted than an item may have changes; later ones are followed more slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.hadamard_rows import (
    check_items,
    check_labels,
    check_size,
    rows_for,
    tracked,
)
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.value_stream import (
    MAX_CHANGES,
    LetterDevices,
    ValueStreamLaw,
    ValueStreamParameters,
)

LETTER_BITS = 8
"""A word is row * 2^8 + letter: the row is public, the letter one byte."""


@dataclass(frozen=True, slots=True)
class HadamardValuesParameters:
    """What a job says about items over time.

    Attributes:
        epsilon: the privacy loss of a user's whole stream.
        changes: how many times a user's item may change after the first one it has.
        domain: the labels of the items, up to 4,096.
        boosted: how many flips of the tracked Boolean are followed at once; None for the number
            with the least error (`dpstream.randomizers.value_stream.hadamard_values.calibration`).

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    changes: int
    domain: tuple[str, ...]
    boosted: int | None = None

    def __post_init__(self) -> None:
        # Epsilon is that of the Boolean.
        object.__setattr__(self, "epsilon", ValueStreamParameters(self.epsilon, 1).epsilon)
        check_changes(self.changes, self.boosted)
        check_labels(self.domain)


def check_changes(changes: int, boosted: int | None) -> None:
    """Raise `ValueError` unless so many changes of a value can be followed."""
    if type(changes) is not int or not 0 <= changes < MAX_CHANGES:
        raise ValueError(
            f"changes is {changes!r}, must be a whole number from 0 to {MAX_CHANGES - 1:,}"
        )
    most = changes + 1
    if boosted is not None and (type(boosted) is not int or not 1 <= boosted <= most):
        raise ValueError(
            f"boosted is {boosted!r}, must be a whole number from 1 to changes + 1, {most}: no "
            "more flips than that are possible"
        )


@dataclass(frozen=True, slots=True)
class HadamardValuesLaw(Constants):
    """All constants of a job: what its devices draw from and its estimators divide by.

    Attributes:
        items: size of the domain.
        changes: item changes after the first item that were asked for, as far as epochs allow.
        unboosted_share: of the users who change their item as often as that, each time to another
            one chosen at random: the share that has more flips than are boosted.
        booleans: of the tracked Booleans.

    Raises:
        ValueError: a field is out of range.
    """

    items: int
    changes: int
    unboosted_share: float
    booleans: ValueStreamLaw

    def __post_init__(self) -> None:
        check_size(self.items)

    @property
    def last_epoch(self) -> int:
        """Number of epochs."""
        return self.booleans.last_epoch

    @property
    def rows(self) -> int:
        """Rows and columns of the matrix: the least power of two above the number of items."""
        return rows_for(self.items)


class HadamardValues(LetterDevices[HadamardValuesLaw]):
    """The devices of one horizon: each has drawn a row, and whether it is noise.

    The row is drawn without regard to the values and is no secret, so the guarantee is that of the
    Boolean: for any two streams of items and any row it holds for the two streams of b.

    >>> from dpstream.randomizers.value_stream.hadamard_values.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> parameters = HadamardValuesParameters(4.0, 2, ("walk", "bus", "car"))
    >>> devices = HadamardValues(calibrate(parameters, last_epoch=16))
    >>> devices.enrol(1000, rng)
    >>> reports = devices.report(1, np.full(1000, 3), None, rng)  # everybody has come by car
    >>> rows, letters = reports[:, 0] >> 8, reports[:, 0] & 255
    >>> np.array([letters[rows == row].mean() for row in range(4)]).round() > 80
    array([ True, False, False,  True])

    Args:
        law: the constants of the job.
    """

    word_dtype = np.dtype("<u4")
    width = 1

    def __init__(self, law: HadamardValuesLaw) -> None:
        super().__init__(law, law.booleans)
        # No secret.
        self._row = self._declare("row", np.uint16, new=None, allowed=range(law.rows))

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        drawn = super()._draw(count, rng)
        return {**drawn, "row": rng.integers(0, self.law.rows, count, dtype=np.uint16)}

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint32]:
        """One letter of everybody present: uint32, shape (devices, 1), row * 256 + letter."""
        check_items(epoch, values, present, self.population, self.law.items)
        letters = self.follow(epoch, tracked(self._row, values), present, rng)
        rows = self._row if present is None else self._row[present]
        return (rows.astype(np.uint32) << np.uint32(LETTER_BITS) | letters)[:, None]
