"""Items over time, reported as symbols for one Boolean: value_stream on a Hadamard matrix.

A device draws one permanent row r of the Hadamard matrix H; the row is public. For its item x it
tracks the Boolean b = (1 + H[r, x]) / 2 (`dpstream.randomizers.hadamard_rows`). At every epoch it
reports a symbol for b (`dpstream.randomizers.value_stream`).

When the item changes, b flips for only half of the rows. So it suffices to boost fewer flips than
the item can have changes; later flips are tracked more slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.given_values import check_items
from dpstream.randomizers.hadamard_rows import (
    check_labels,
    check_size,
    rows_for,
    tracked,
)
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.value_stream import (
    MAX_CHANGES,
    SymbolDevices,
    ValueStreamLaw,
    ValueStreamParameters,
)

SYMBOL_BITS = 8
"""Bits of a symbol; a message is row * 2^8 + symbol, where the row is public."""


@dataclass(frozen=True, slots=True)
class HadamardValuesParameters:
    """Parameters of items over time.

    Attributes:
        epsilon: Privacy loss of a user's whole stream.
        max_changes: Number of item changes per user after the first item.
        domain: Labels of the items, at most 4,096.
        boosted: Number of boosted flips of the tracked Boolean; None for that with the least error.
    """

    epsilon: float
    max_changes: int
    domain: tuple[str, ...]
    boosted: int | None = None

    def __post_init__(self) -> None:
        # The Boolean has the same epsilon.
        object.__setattr__(self, "epsilon", ValueStreamParameters(self.epsilon, 1).epsilon)
        check_changes(self.max_changes, self.boosted)
        check_labels(self.domain)


def check_changes(max_changes: int, boosted: int | None) -> None:
    if type(max_changes) is not int or not 0 <= max_changes < MAX_CHANGES:
        raise ValueError(
            f"max_changes is {max_changes!r}; expected an integer from 0 to {MAX_CHANGES - 1:,}"
        )
    most = max_changes + 1
    if boosted is not None and (type(boosted) is not int or not 1 <= boosted <= most):
        raise ValueError(
            f"boosted is {boosted!r}; expected an integer from 1 to {most} (max_changes + 1, the "
            "maximum number of flips)"
        )


@dataclass(frozen=True, slots=True)
class HadamardValuesLaw(Constants):
    """All constants of a job.

    Attributes:
        max_changes: Requested item changes after the first item, at most the number of epochs.
        unboosted_share: Fraction of users with more flips than are boosted, if every user changes
            `max_changes` times, each time to a random other item.
        booleans: Constants for the tracked Booleans.
    """

    items: int
    max_changes: int
    unboosted_share: float
    booleans: ValueStreamLaw

    def __post_init__(self) -> None:
        check_size(self.items)

    @property
    def last_epoch(self) -> int:
        return self.booleans.last_epoch

    @property
    def rows(self) -> int:
        return rows_for(self.items)


class HadamardValues(SymbolDevices[HadamardValuesLaw]):
    """Devices of one horizon, each with a public row.

    The row is drawn independently of the values, so the guarantee is that of the Boolean: for any
    two streams of items and any row, it covers the two streams of b.

    >>> from dpstream.randomizers.value_stream.hadamard_values.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> parameters = HadamardValuesParameters(4.0, 2, ("walk", "bus", "car"))
    >>> devices = HadamardValues(calibrate(parameters, last_epoch=16))
    >>> devices.enroll(1000, rng)
    >>> reports = devices.report(1, np.full(1000, 3), None, rng)  # all users came by car
    >>> rows, symbols = reports[:, 0] >> 8, reports[:, 0] & 255
    >>> np.array([symbols[rows == row].mean() for row in range(4)]).round() > 80
    array([ True, False, False,  True])
    """

    word_dtype = np.dtype("<u4")
    width = 1

    def __init__(self, law: HadamardValuesLaw) -> None:
        super().__init__(law, law.booleans)
        # Rows are public.
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
        """Return row * 256 + symbol for each present device: uint32, shape (devices, 1)."""
        check_items(epoch, values, present, self.population, self.law.items)
        symbols = self.follow(epoch, tracked(self._row, values), present, rng)
        rows = self._row if present is None else self._row[present]
        return (rows.astype(np.uint32) << np.uint32(SYMBOL_BITS) | symbols)[:, None]
