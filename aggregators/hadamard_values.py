"""Items over time, server side: sums of letters by row, and every item's count.

A letter of a device with row r is, on average and over the gain, b - 1/2 plus what it adds for the
flips of b that it follows, b - 1/2 = H[r, x] / 2 (`hadamard_values`). Over the rows H[r, x] H[r, z]
averages 1 if x = z and 0 otherwise: so twice the sum over rows of H[r, z] times what the letters of
a row say is the count of item z. What devices add for changes is undone row by row
(`dpstream.aggregators.value_stream`), and one fast Walsh-Hadamard transform gives all items at
once.

Rows are drawn uniformly, so those present speak for all devices, by the number of all of them: to
scale each row by its own size would divide by small numbers, and by none where a row is empty. The
half is left out rather than added back: then a device counts by exactly 1 for its own item, on
whatever row, and by 1 or -1 for each other one; else by 0 or 2, which is twice the variance.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95, Attendance
from dpstream.aggregators.followed import Followed
from dpstream.aggregators.hadamard_matches import walsh_hadamard
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.law_aggregator import LawAggregator, check_form
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.randomizers.value_stream.hadamard_values import LETTER_BITS, HadamardValuesLaw
from dpstream.randomizers.value_stream.lattice import FIRST, LAST, STEP, ZERO

_COUNT_CAP = 2**40
_MOST = LAST - ZERO


class HadamardValuesAggregator(LawAggregator[HadamardValuesLaw]):
    """Sums of letters; equal whatever the order, and however they were split and merged.

    What is kept of an epoch are the number of its reports, and the sum of letters of each row, in
    steps of 1/8: int64, shape (1 + rows,).

    >>> from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesParameters
    >>> from dpstream.randomizers.value_stream.hadamard_values.calibration import calibrate
    >>> law = calibrate(HadamardValuesParameters(1.0, 2, ("walk", "bus", "car")), last_epoch=16)
    >>> aggregator = HadamardValuesAggregator(law)
    >>> words = np.array([[3 * 256 + 88], [3 * 256 + 76], [2 * 256 + 79]], np.uint32)
    >>> aggregator.add(1, words, None)
    >>> aggregator.sums(1)
    array([ 3,  0,  0, -1,  4])

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: HadamardValuesLaw) -> None:
        super().__init__(law)
        self._sums: dict[int, NDArray[np.int64]] = {}
        self._path = _Path(law)
        self._attendance: Attendance | None = None

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint32 of shape
                (reports, 1), or a word names a row that there is not, or no letter.
        """
        check_form(epoch, self.law.last_epoch, words, np.uint32)
        row, letter = words[:, 0] >> LETTER_BITS, words[:, 0] & ((1 << LETTER_BITS) - 1)
        wrong = (row >= self.law.rows) | (letter < FIRST) | (letter > LAST)
        if wrong.any():
            place = wrong.argmax()
            raise ValueError(
                f"word {words[place, 0]} at epoch {epoch}: row {row[place]} and letter "
                f"{letter[place]}, the {self.law.rows} rows begin at 0, and letters are from "
                f"{FIRST} to {LAST}"
            )

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        times = np.ones(len(words), np.int64) if counts is None else counts.astype(np.int64)
        letters = (words[:, 0] & ((1 << LETTER_BITS) - 1)).astype(np.int64) - ZERO
        sums = np.zeros(1 + self.law.rows, np.int64)
        sums[0] = times.sum()
        np.add.at(sums, 1 + (words[:, 0] >> LETTER_BITS).astype(np.intp), letters * times)
        self._add(epoch, sums)

    def sums(self, epoch: int) -> NDArray[np.int64]:
        """Of an epoch: the number of reports, and letters by row."""
        return self._sums.get(epoch, np.zeros(1 + self.law.rows, np.int64))

    def _merge(self, other: Self) -> None:
        for epoch, sums in other._sums.items():
            self._add(epoch, sums)

    def to_bytes(self) -> bytes:
        """For every epoch with reports: epoch (u8), then `sums` (i8 each); ascending."""
        entries = np.zeros(len(self._sums), self._entry)
        for entry, epoch in zip(entries, sorted(self._sums), strict=True):
            entry["epoch"], entry["sums"] = epoch, self._sums[epoch]
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, law: HadamardValuesLaw, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no sums of letters of this horizon and domain.
        """
        aggregator, before = cls(law), 0
        if len(data) % aggregator._entry.itemsize:
            raise ValueError(
                f"sums of {len(data)} bytes, an epoch takes {aggregator._entry.itemsize}"
            )
        for entry in np.frombuffer(data, aggregator._entry):
            epoch, sums = int(entry["epoch"]), entry["sums"].astype(np.int64)
            if not before < epoch <= law.last_epoch:
                raise ValueError(
                    f"sums of epoch {epoch} after {before}, the horizon has {law.last_epoch}"
                )
            reports = int(sums[0])
            within = np.clip(sums[1:], -_MOST * _COUNT_CAP, _MOST * _COUNT_CAP)
            letters = float(np.abs(within).sum(dtype=np.float64))
            if not 1 <= reports <= _COUNT_CAP or letters > _MOST * reports:
                raise ValueError(f"no {reports} letters of epoch {epoch} have such sums")
            aggregator._sums[epoch] = sums
            before = epoch
        return aggregator

    def estimate(self, epoch: int, attendance: Attendance) -> ItemEstimates | None:
        """How many devices have each item at an epoch; None before any has reported.

        An epoch without reports has the estimates of the one before, flagged `GAP`. All items have
        one error bar: that of an item that nobody has, and larger for none.

        Args:
            epoch: 1 to the last one.
            attendance: head counts of the epochs up to this one; those of one and the same object
                must not change afterwards.
        """
        if self._attendance is not attendance or self._path.followed.epoch > epoch:
            self._path, self._attendance = _Path(self.law), attendance
        while self._path.followed.epoch < epoch:
            after = self._path.followed.epoch + 1
            self._path.advance(self.sums(after), int(attendance.population[after]))
        return self._path.estimates(int(attendance.population[epoch]))

    def smoothed(self, last_epoch: int, attendance: Attendance) -> SmoothedEstimates:
        """The estimates of every epoch: those published of it, since later letters add nothing.

        Args:
            last_epoch: 1 to the last one of the horizon.
            attendance: head counts of the epochs up to this one.
        """
        path = _Path(self.law)
        values = np.zeros((last_epoch, self.law.items))
        deviations = np.full(last_epoch, np.inf)
        gaps = np.ones(last_epoch, np.bool_)
        population = attendance.population[1 : last_epoch + 1]
        for epoch in range(1, last_epoch + 1):
            path.advance(self.sums(epoch), int(attendance.population[epoch]))
            found = path.estimates(int(attendance.population[epoch]))
            if found is None:
                # Anything up to all of them.
                deviations[epoch - 1] = population[epoch - 1]
                continue
            values[epoch - 1], deviations[epoch - 1] = found.values, found.standard_deviation
            gaps[epoch - 1] = GAP in found.flags
        return SmoothedEstimates(
            values=values,
            standard_deviations=deviations,
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
                self._attendance = None


class _Path:
    """The estimates of all rows, epoch by epoch."""

    def __init__(self, law: HadamardValuesLaw) -> None:
        self._law = law
        self.followed: Followed = Followed()
        self._reports = 0
        # Of an item: what the rows of devices with other items add by chance.
        self._chance = 0.0

    def advance(self, sums: NDArray[np.int64], population: int) -> None:
        """Take in the sums of the next epoch."""
        law = self._law.booleans
        self._reports = int(sums[0])
        if not self._reports:
            self.followed = self.followed.without_reports(law.decay)
            return
        scale = population / self._reports * math.sqrt(law.clock) / law.gain
        self._chance = population**2 / self._reports
        received = np.asarray(2 * scale * STEP * sums[1:], np.float64)
        value = self.followed.next_value(law.boost, law.decay, received)
        # The variance is that of all rows together, which is that of an item.
        self.followed = self.followed.with_reports(
            law.boost, law.decay, value, 4 * scale**2 * self._reports, unseen=0.0
        )

    def estimates(self, population: int) -> ItemEstimates | None:
        """Of the epoch taken in last."""
        if not self.followed.known:
            return None
        deviation = math.sqrt(self.followed.variance + self._chance)
        return ItemEstimates(
            values=walsh_hadamard(self.followed.value)[1 : 1 + self._law.items],
            standard_deviation=deviation,
            half_width=NORMAL_95 * deviation,
            reports=self._reports,
            population=population,
            flags=() if self.followed.released else (GAP,),
        )
