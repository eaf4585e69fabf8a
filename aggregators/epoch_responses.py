"""Estimate the number of devices with value 1 from one randomized bit per device and epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95, Estimate, Participation
from dpstream.aggregators.law_aggregator import LawAggregator, check_format, entries_by_epoch

if TYPE_CHECKING:
    from dpstream.aggregators.smoothed_estimates import SmoothedEstimates

FEW_REPORTS = 30
"""Number of reports below which the variance uses 1/2 for the unknown fraction of ones."""

_COUNT_CAP = 2**53
_ENTRY = np.dtype([("epoch", "<u8"), ("zeros", "<i8"), ("ones", "<i8")])


class ResponseLaw(Protocol):
    @property
    def last_epoch(self) -> int: ...

    @property
    def c_gap(self) -> float:
        """P(a report equals its device's value) - P(it differs)."""


class EpochResponsesAggregator(LawAggregator[ResponseLaw]):
    def __init__(self, law: ResponseLaw) -> None:
        super().__init__(law)
        self._counts: dict[int, NDArray[np.int64]] = {}

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, np.uint8)
        if words.size and int(words.max()) > 1:
            raise ValueError(f"message at epoch {epoch} is {words.max()}; expected 0 or 1")

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        ones = words[:, 0].astype(np.bool_)
        if counts is None:
            positive, received = int(np.count_nonzero(ones)), len(words)
        else:
            positive = int(counts[ones].sum(dtype=np.int64))
            received = int(counts.sum(dtype=np.int64))
        if received:
            self._add(epoch, np.array([received - positive, positive], np.int64))

    def _merge(self, other: Self) -> None:
        for epoch, counts in other._counts.items():
            self._add(epoch, counts)

    def to_bytes(self) -> bytes:
        """Serialize epoch (uint64) and counts of zeros and ones (int64) by epoch, ascending."""
        entries = np.empty(len(self._counts), _ENTRY)
        for entry, epoch in zip(entries, sorted(self._counts), strict=True):
            entry["epoch"] = epoch
            entry["zeros"], entry["ones"] = self._counts[epoch]
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, law: ResponseLaw, data: bytes) -> Self:
        aggregator = cls(law)
        for epoch, entry in entries_by_epoch(data, _ENTRY, law.last_epoch, "counts"):
            _, zeros, ones = entry.tolist()
            if min(zeros, ones) < 0 or max(zeros, ones) > _COUNT_CAP or not zeros + ones:
                raise ValueError(
                    "the number of 0s or of 1s is out of range; expected 0 to 2^53 each, and not "
                    "both 0"
                )
            aggregator._counts[epoch] = np.array([zeros, ones], np.int64)
        return aggregator

    def estimate(self, epoch: int, participation: Participation) -> Estimate | None:
        """Estimate the number of devices with value 1 at an epoch, or None without reports.

        Absent devices are assumed to be like those that report. If a fraction p of N devices has
        the value 1 and a random m of them report, responses and sampling have the variance

            N^2 ((1 / c_gap^2 - 1) / 4m + p (1 - p) (N - m) / m (N - 1)).
        """
        counts = self._counts.get(epoch)
        if counts is None:
            return None
        zeros, ones = counts.tolist()
        received, population = zeros + ones, int(participation.population[epoch])
        share = ((ones - zeros) / received / self.law.c_gap + 1) / 2
        known = min(max(share, 0.0), 1.0) if received >= FEW_REPORTS else 0.5
        absent = max(0, population - received) / max(1, population - 1)
        variance = response_variance(self.law, 1) + known * (1 - known) * absent
        deviation = population * math.sqrt(variance / received)
        value = population * share
        return Estimate.around(value, deviation, NORMAL_95 * deviation, received, population)

    def state_after(self, epoch: int, participation: Participation) -> dict[str, Any]:
        counts = self._counts.get(epoch)
        return {"epoch": epoch, "counts": [0, 0] if counts is None else counts.tolist()}

    def resume(self, state: Mapping[str, Any], participation: Participation) -> None:
        epoch, (zeros, ones) = state["epoch"], state["counts"]
        if not all(type(each) is int and each >= 0 for each in (epoch, zeros, ones)):
            raise ValueError(f"saved state is {dict(state)}; expected nonnegative integers")
        self._counts = {epoch: np.array([zeros, ones], np.int64)} if zeros + ones else {}

    def _add(self, epoch: int, counts: NDArray[np.int64]) -> None:
        self._counts[epoch] = self._counts.get(epoch, np.zeros(2, np.int64)) + counts


class SampledResponseAggregator(EpochResponsesAggregator):
    def estimate(self, epoch: int, participation: Participation) -> Estimate | None:
        counts = self._counts.get(epoch)
        if counts is None:
            return None
        ones, received = int(counts[1]), int(counts.sum())
        population, gap = max(1, int(participation.population[epoch])), self.law.c_gap
        share = ones / received
        known = min(max(share, (1 - gap) / 2), (1 + gap) / 2)
        spread = max(0.0, 1 / received - 1 / population) * known * (1 - known)
        flips = (1 - gap**2) / 4 / population
        unbiased = received / max(1, received - 1)
        sample = known * (1 - known) / (spread + flips)
        middle = (share + NORMAL_95**2 / 2 / sample) / (1 + NORMAL_95**2 / sample)
        half_width = (
            NORMAL_95
            * math.sqrt(share * (1 - share) / sample + (NORMAL_95 / 2 / sample) ** 2)
            / (1 + NORMAL_95**2 / sample)
        )

        def users(ones: float) -> float:
            return population * ((2 * ones - 1) / gap + 1) / 2

        return Estimate(
            users(share),
            population / gap * math.sqrt(unbiased * spread + flips),
            users(middle - half_width),
            users(middle + half_width),
            received,
            population,
        )

    def smoothed(self, last_epoch: int, participation: Participation) -> SmoothedEstimates:
        from dpstream.aggregators.smoothed_estimates import smoothed_samples

        found = [self.estimate(epoch, participation) for epoch in range(1, last_epoch + 1)]
        variance = response_variance(self.law, 1)
        return smoothed_samples(
            found,
            participation.population[1 : last_epoch + 1],
            1,
            lambda shares: np.full(shares.shape, variance),
        )


def response_variance(law: ResponseLaw, users: int) -> float:
    """Return the exact variance of an estimate if all devices report."""
    return users * (law.c_gap**-2 - 1) / 4
