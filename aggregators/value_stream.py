"""Sum value_stream symbols and estimate the number of devices with value 1.

The sum of an epoch's symbols, divided by the gain, estimates the count plus the sum of the boosts
that devices add for changes. Boosts are removed epoch by epoch, in constant time and memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.change_use import ChangeUse
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.followed import Followed, FollowedCounts, Received, unseen_deviation
from dpstream.aggregators.law_aggregator import check_format, entries_by_epoch
from dpstream.randomizers.value_stream import ValueStreamLaw
from dpstream.randomizers.value_stream.lattice import FIRST, LAST, STEP, ZERO

_ENTRY = np.dtype([("epoch", "<u8"), ("reports", "<i8"), ("symbols", "<i8"), ("squares", "<i8")])
_COUNT_CAP = 2**40
_MOST = LAST - ZERO


@dataclass(frozen=True, slots=True)
class SymbolSums:
    """Sums of an epoch's symbols, in steps of 1/8, and of their squares, in steps of 1/64."""

    reports: int = 0
    symbols: int = 0
    squares: int = 0

    @classmethod
    def of(cls, symbols: NDArray[np.int64], counts: NDArray[np.int64]) -> SymbolSums:
        return cls(int(counts.sum()), int(symbols @ counts), int(np.square(symbols) @ counts))

    def __add__(self, other: SymbolSums) -> SymbolSums:
        return SymbolSums(
            self.reports + other.reports,
            self.symbols + other.symbols,
            self.squares + other.squares,
        )

    def possible(self) -> bool:
        most = self.reports * _MOST
        return (
            1 <= self.reports <= _COUNT_CAP
            and abs(self.symbols) <= most
            and self.symbols**2 <= self.reports * self.squares
            and self.squares <= most * _MOST
            and (self.symbols - self.squares) % 2 == 0
        )


_NO_SYMBOLS = SymbolSums()


class ValueStreamAggregator(FollowedCounts[ValueStreamLaw]):
    """Sum symbols; the state is independent of input order, splits and merges.

    >>> from dpstream.randomizers.value_stream import ValueStreamParameters
    >>> from dpstream.randomizers.value_stream.calibration import calibrate
    >>> law = calibrate(ValueStreamParameters(epsilon=1, max_changes=2), last_epoch=170)
    >>> aggregator = ValueStreamAggregator(law)
    >>> aggregator.add(1, np.array([[80], [88], [76]], np.uint8), None)
    >>> aggregator.sums(1)
    SymbolSums(reports=3, symbols=4, squares=80)
    """

    def __init__(self, law: ValueStreamLaw) -> None:
        super().__init__(law)
        self._sums: dict[int, SymbolSums] = {}
        # Value of one step of a symbol, in users.
        self._worth = _spread(law) * STEP

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, np.uint8)
        if words.size and not FIRST <= int(words.min()) <= int(words.max()) <= LAST:
            wrong = words[(words < FIRST) | (words > LAST)][0]
            raise ValueError(f"message at epoch {epoch} is {wrong}; expected {FIRST} to {LAST}")

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        if counts is None:
            table = np.bincount(words[:, 0], minlength=LAST + 1)
        else:
            table = np.zeros(LAST + 1, np.int64)
            np.add.at(table, words[:, 0], counts.astype(np.int64))
        self._add(epoch, SymbolSums.of(np.arange(-ZERO, LAST + 1 - ZERO), table))

    def sums(self, epoch: int) -> SymbolSums:
        return self._sums.get(epoch, _NO_SYMBOLS)

    def _merge(self, other: Self) -> None:
        for epoch, sums in other._sums.items():
            self._add(epoch, sums)

    def to_bytes(self) -> bytes:
        """Serialize epoch (uint64) and `SymbolSums` (int64) of every epoch with reports."""
        entries = [
            (epoch, sums.reports, sums.symbols, sums.squares)
            for epoch, sums in sorted(self._sums.items())
        ]
        return np.array(entries, _ENTRY).tobytes()

    @classmethod
    def from_bytes(cls, law: ValueStreamLaw, data: bytes) -> Self:
        aggregator = cls(law)
        for epoch, entry in entries_by_epoch(data, _ENTRY, law.last_epoch, "sums"):
            _, *numbers = entry.tolist()
            sums = SymbolSums(*numbers)
            if not sums.possible():
                raise ValueError(
                    f"epoch {epoch}: no set of symbols has the count, sum and sum of squares "
                    f"{numbers}"
                )
            aggregator._sums[epoch] = sums
        return aggregator

    def reports(self, epoch: int, participation: Participation) -> int:
        return self.sums(epoch).reports

    def _received(self, epoch: int, participation: Participation) -> Received | None:
        sums = self.sums(epoch)
        if not sums.reports:
            return None
        population, reports = int(participation.population[epoch]), sums.reports
        total = population / reports * (self._worth * sums.symbols + reports / 2)
        return Received(total, _variance(self.law, reports, population), reports, population)

    def _used(self, use: ChangeUse, found: Followed, received: Received) -> ChangeUse:
        law, sums = self.law, self.sums(found.epoch)
        use = super()._used(use, found, received)
        if not law.boost:
            # Without a boost, changes leave no trace in the squares.
            return use
        return use.after_squares(
            sums.squares * STEP * STEP / sums.reports - 1,
            sums.reports,
            found.epoch,
            law.last_epoch,
            unit=law.theta * law.gain / law.squared_norm_budget,
            change=law.boost / (1 - law.decay) + law.boost**2 / (1 - law.decay**2),
        )

    def _add(self, epoch: int, sums: SymbolSums) -> None:
        if sums.reports:
            self._sums[epoch] = self.sums(epoch) + sums
            self._drop(epoch)


def received_errors(
    law: ValueStreamLaw, reports: int, population: int, value: float
) -> tuple[float, float]:
    """Return the errors of an epoch's received count, which includes the boosts.

    They are the count's noise variance, and its standard deviation due to absent devices
    (`unseen_deviation`). About `value` of all devices have value 1; at least one reports.
    """
    unseen = unseen_deviation(value, population, reports)
    return _variance(law, reports, population), unseen


def _variance(law: ValueStreamLaw, reports: int, population: int) -> float:
    return (population / reports) ** 2 * reports * _spread(law) ** 2


def _spread(law: ValueStreamLaw) -> float:
    """Return the standard deviation of one symbol, converted to users."""
    return math.sqrt(law.squared_norm_budget) / law.gain
