"""Track items over time: sum symbols by row and estimate every item's count.

A device with row r and item x has a bit b, where b - 1/2 = H[r, x] / 2 (`hadamard_values`). Its
mean symbol, divided by the gain, is b - 1/2 plus the boosts for changes of b. The mean of H[r, x]
H[r, z] over all rows is 1 if x = z and 0 otherwise. So the count of item z is twice the sum over
rows of H[r, z] times the estimate from a row's symbols. Boosts are removed row by row
(`dpstream.aggregators.value_stream`). One fast Walsh-Hadamard transform gives all items.

Rows are drawn uniformly, and absent devices are assumed to be like present ones. Estimates are
scaled by the number of all devices. Scaling each row by its own size would divide by small numbers,
and by zero for empty rows. The 1/2 is not added back, so a device contributes exactly 1 to its own
item, on any row, and 1 or -1 to each other item. With the 1/2, it would contribute 0 or 2 to its
own item, and 0, 2 or -2 to each other item, with twice the mean square.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95, Participation
from dpstream.aggregators.followed import Followed
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.law_aggregator import LawAggregator, check_format, entries_by_epoch
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.randomizers.value_stream.hadamard_values import SYMBOL_BITS, HadamardValuesLaw
from dpstream.randomizers.value_stream.lattice import FIRST, LAST, STEP, ZERO

_COUNT_CAP = 2**40
_MOST = LAST - ZERO


class HadamardValuesAggregator(LawAggregator[HadamardValuesLaw]):
    """Sum symbols; the state is independent of input order, splits and merges.

    The state of an epoch is int64, shape (1 + rows,): the number of its reports, then the sum of
    symbols of each row, in steps of 1/8.

    >>> from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesParameters
    >>> from dpstream.randomizers.value_stream.hadamard_values.calibration import calibrate
    >>> law = calibrate(HadamardValuesParameters(1.0, 2, ("walk", "bus", "car")), last_epoch=16)
    >>> aggregator = HadamardValuesAggregator(law)
    >>> words = np.array([[3 * 256 + 88], [3 * 256 + 76], [2 * 256 + 79]], np.uint32)
    >>> aggregator.add(1, words, None)
    >>> aggregator.sums(1)
    array([ 3,  0,  0, -1,  4])
    """

    def __init__(self, law: HadamardValuesLaw) -> None:
        super().__init__(law)
        self._sums: dict[int, NDArray[np.int64]] = {}
        self._path = _Path(law)
        self._participation: Participation | None = None

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, np.uint32)
        row, symbol = words[:, 0] >> SYMBOL_BITS, words[:, 0] & ((1 << SYMBOL_BITS) - 1)
        wrong = (row >= self.law.rows) | (symbol < FIRST) | (symbol > LAST)
        if wrong.any():
            place = wrong.argmax()
            raise ValueError(
                f"message at epoch {epoch} is {words[place, 0]}: row {row[place]} and symbol "
                f"{symbol[place]} are out of range; expected rows 0 to {self.law.rows - 1} and "
                f"symbols {FIRST} to {LAST}"
            )

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        times = np.ones(len(words), np.int64) if counts is None else counts.astype(np.int64)
        symbols = (words[:, 0] & ((1 << SYMBOL_BITS) - 1)).astype(np.int64) - ZERO
        sums = np.zeros(1 + self.law.rows, np.int64)
        sums[0] = times.sum()
        np.add.at(sums, 1 + (words[:, 0] >> SYMBOL_BITS).astype(np.intp), symbols * times)
        self._add(epoch, sums)

    def sums(self, epoch: int) -> NDArray[np.int64]:
        return self._sums.get(epoch, np.zeros(1 + self.law.rows, np.int64))

    def _merge(self, other: Self) -> None:
        for epoch, sums in other._sums.items():
            self._add(epoch, sums)

    def to_bytes(self) -> bytes:
        """Serialize epoch (uint64) and `sums` (int64) for every epoch with reports, ascending."""
        entries = np.zeros(len(self._sums), self._entry)
        for entry, epoch in zip(entries, sorted(self._sums), strict=True):
            entry["epoch"], entry["sums"] = epoch, self._sums[epoch]
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, law: HadamardValuesLaw, data: bytes) -> Self:
        aggregator = cls(law)
        for epoch, entry in entries_by_epoch(data, aggregator._entry, law.last_epoch, "sums"):
            sums = entry["sums"].astype(np.int64)
            reports = int(sums[0])
            within = np.clip(sums[1:], -_MOST * _COUNT_CAP, _MOST * _COUNT_CAP)
            symbols = float(np.abs(within).sum(dtype=np.float64))
            if not 1 <= reports <= _COUNT_CAP or symbols > _MOST * reports:
                raise ValueError(f"sums of epoch {epoch} are out of range for {reports} symbols")
            aggregator._sums[epoch] = sums
        return aggregator

    def estimate(self, epoch: int, participation: Participation) -> ItemEstimates | None:
        """Estimate the number of devices with each item; return None before the first reports.

        An epoch without reports repeats the previous estimates, flagged `GAP`. The entries of one
        `participation` object up to the epoch must not change between calls.
        """
        if self._participation is not participation or self._path.followed.epoch > epoch:
            self._path, self._participation = _Path(self.law), participation
        while self._path.followed.epoch < epoch:
            after = self._path.followed.epoch + 1
            self._path.advance(self.sums(after), int(participation.population[after]))
        return self._path.estimates(int(participation.population[epoch]))

    def smoothed(self, last_epoch: int, participation: Participation) -> SmoothedEstimates:
        path = _Path(self.law)
        values = np.zeros((last_epoch, self.law.items))
        deviations = np.full(last_epoch, np.inf)
        gaps = np.ones(last_epoch, np.bool_)
        population = participation.population[1 : last_epoch + 1]
        for epoch in range(1, last_epoch + 1):
            path.advance(self.sums(epoch), int(participation.population[epoch]))
            found = path.estimates(int(participation.population[epoch]))
            if found is None:
                # Any count up to the population is possible.
                deviations[epoch - 1] = population[epoch - 1]
                continue
            values[epoch - 1], deviations[epoch - 1] = found.values, found.standard_error
            gaps[epoch - 1] = GAP in found.flags
        return SmoothedEstimates(
            values=values,
            standard_errors=deviations,
            half_widths=NORMAL_95 * deviations,
            gaps=gaps,
            population=population,
        )

    @property
    def _entry(self) -> np.dtype[np.void]:
        return np.dtype([("epoch", "<u8"), ("sums", "<i8", (1 + self.law.rows,))])

    def _add(self, epoch: int, sums: NDArray[np.int64]) -> None:
        if sums[0]:
            self._sums[epoch] = self.sums(epoch) + sums
            if epoch <= self._path.followed.epoch:
                self._participation = None


class _Path:
    def __init__(self, law: HadamardValuesLaw) -> None:
        self._law = law
        self.followed: Followed = Followed()
        self._reports = 0
        # Variance that the random rows of devices with other items add to an item.
        self._chance = 0.0

    def advance(self, sums: NDArray[np.int64], population: int) -> None:
        law = self._law.booleans
        self._reports = int(sums[0])
        if not self._reports:
            self.followed = self.followed.without_reports(law.decay)
            return
        scale = population / self._reports * math.sqrt(law.squared_norm_budget) / law.gain
        self._chance = population**2 / self._reports
        received = np.asarray(2 * scale * STEP * sums[1:], np.float64)
        value = self.followed.next_value(law.boost, law.decay, received)
        # The variance of an item is that of all rows together.
        self.followed = self.followed.with_reports(
            law.boost, law.decay, value, 4 * scale**2 * self._reports, unseen=0.0
        )

    def estimates(self, population: int) -> ItemEstimates | None:
        if not self.followed.known:
            return None
        deviation = math.sqrt(self.followed.variance + self._chance)
        return ItemEstimates(
            values=walsh_hadamard(self.followed.value)[1 : 1 + self._law.items],
            standard_error=deviation,
            half_width=NORMAL_95 * deviation,
            reports=self._reports,
            population=population,
            flags=() if self.followed.released else (GAP,),
        )


def walsh_hadamard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply by the Sylvester-Hadamard matrix, along the last axis, in B log2 B additions.

    `values` are float64, shape (..., B), B a power of two. Element z of the result is the sum over
    r of (-1)^popcount(r & z) times element r.

    >>> walsh_hadamard(np.array([1.0, 0.0, 0.0, 2.0]))
    array([ 3., -1., -1.,  3.])
    """
    size = values.shape[-1]
    result, spare = np.array(values, np.float64), np.empty(values.shape, np.float64)
    half = 1
    while half < size:
        # Neighboring blocks of `half` elements become their sum and their difference.
        before = result.reshape(*values.shape[:-1], -1, 2, half)
        after = spare.reshape(before.shape)
        np.add(before[..., 0, :], before[..., 1, :], out=after[..., 0, :])
        np.subtract(before[..., 0, :], before[..., 1, :], out=after[..., 1, :])
        result, spare = spare, result
        half *= 2
    return result
