"""Count items by crowd, with one aggregator per crowd.

Of a crowd's n messages, the shuffler keeps m = n + Z - shift, where Z is noise, if this is between
0 and n. So m + shift is an unbiased estimate of n with the variance of Z. The m messages are a
uniform sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.crowd_estimates import SUPPRESSED, CrowdEstimate, CrowdEstimates
from dpstream.aggregators.epoch_tables import EpochTables
from dpstream.aggregators.estimate import NORMAL_95, Estimate, Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.law_aggregator import LawAggregator, check_format
from dpstream.randomizers.crowds import CrowdCounts, CrowdsLaw

_HEADER = np.dtype([("crowd", "<u4"), ("bytes", "<u8")])
_OUTSIDE: Final = 0.05
"""Probability that a 95 % interval misses the true number."""


class Contents(Protocol):
    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None: ...

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.uint32] | None,
    ) -> None: ...

    def merge(self, other: Any, /) -> None: ...

    def to_bytes(self) -> bytes: ...

    def estimate(self, epoch: int, participation: Participation) -> Any:
        """Return the `ItemEstimates` of an epoch, or None."""


ContentsT = TypeVar("ContentsT", bound=Contents)


class CrowdsAggregator(LawAggregator[CrowdsLaw], Generic[ContentsT]):
    def __init__(self, law: CrowdsLaw, empty: Callable[[], ContentsT]) -> None:
        super().__init__(law)
        self._empty = empty
        self._checks = empty()
        self._left = EpochTables(law.crowds)
        self._contents: dict[int, ContentsT] = {}

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        law, form = self.law, self.law.message_format
        check_format(epoch, law.last_epoch, words, form.dtype, form.width)
        largest = int(law.crowds_of(words).max(initial=0))
        if largest > law.crowds:
            raise ValueError(
                f"crowd {largest} at epoch {epoch} is out of range: there are {law.crowds:,} crowds"
            )
        self._checks.check_messages(epoch, words[:, law.digits :])

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        law, crowds = self.law, self.law.crowds_of(words)
        if not crowds.all():
            raise ValueError(
                f"message without a crowd at epoch {epoch}: the shuffler must remove such messages"
            )
        # Integers below 2^53: sums are exact.
        weights = None if counts is None else counts.astype(np.float64)
        table = np.bincount(crowds - 1, weights, law.crowds).astype(np.int64)
        self._left.add_table(epoch, table)
        messages = words[:, law.digits :]
        for crowd in np.unique(crowds).tolist():
            here = crowds == crowd
            contents = self._contents.setdefault(crowd, self._empty())
            contents.add(epoch, messages[here], None if counts is None else counts[here])

    def _merge(self, other: Self) -> None:
        self._left.merge(other._left)
        for crowd, contents in other._contents.items():
            self._contents.setdefault(crowd, self._empty()).merge(contents)

    def to_bytes(self) -> bytes:
        """Serialize the counts of remaining messages (as crowd 0), then the state of each crowd."""
        parts = {0: self._left.to_bytes()}
        parts |= {crowd: self._contents[crowd].to_bytes() for crowd in sorted(self._contents)}
        return b"".join(
            np.array([(crowd, len(part))], _HEADER).tobytes() + part
            for crowd, part in parts.items()
            if part
        )

    @classmethod
    def from_bytes(
        cls,
        law: CrowdsLaw,
        empty: Callable[[], ContentsT],
        read: Callable[[bytes], ContentsT],
        data: bytes,
    ) -> Self:
        aggregator, position, last = cls(law, empty), 0, -1
        while position < len(data):
            if len(data) - position < _HEADER.itemsize:
                raise ValueError(f"crowd counts are truncated after {len(data)} bytes")
            header = np.frombuffer(data, _HEADER, 1, position)[0]
            crowd, size = int(header["crowd"]), int(header["bytes"])
            position += _HEADER.itemsize
            if not last < crowd <= law.crowds:
                raise ValueError(
                    f"crowd {crowd} is out of order or out of range; expected {last + 1} to "
                    f"{law.crowds}"
                )
            if not 0 < size <= (left := len(data) - position):
                raise ValueError(f"state of crowd {crowd} has {size} bytes; expected 1 to {left}")
            part = data[position : position + size]
            if crowd:
                aggregator._contents[crowd] = read(part)
            else:
                aggregator._left = EpochTables.from_bytes(law.crowds, law.last_epoch, part)
            position, last = position + size, crowd
        return aggregator

    def estimate(self, epoch: int, participation: Participation) -> CrowdEstimates | None:
        law = self.law
        contributors = int(participation.contributors[epoch])
        if contributors < law.minimum:
            return None
        population = int(participation.population[epoch])
        left = self._left.counts(epoch)
        if left is None:
            left = np.zeros(law.crowds, np.int64)
        crowds = tuple(
            self._crowd(place + 1, epoch, number, contributors, population)
            for place, number in enumerate(left.tolist())
        )
        flags = (SUPPRESSED,) if None in crowds else ()
        return CrowdEstimates(crowds, law.contents.items, int(left.sum()), population, flags)

    def _crowd(
        self, crowd: int, epoch: int, left: int, contributors: int, population: int
    ) -> CrowdEstimate | None:
        """Estimate a crowd of which `left` messages remain; return None if it is suppressed."""
        contents = self._contents.get(crowd)
        if contents is None or left < self.law.minimum:
            return None
        size = size_of_crowd(self.law.counts, left, contributors, population)
        assert size.value is not None
        people = Participation.empty(self.law.last_epoch)
        people.set(epoch, left, max(left, round(size.value)))
        items = contents.estimate(epoch, people)
        if items is None:
            return None
        assert isinstance(items, ItemEstimates)
        return CrowdEstimate(left, size, with_size_unknown(items, size))


def size_of_crowd(counts: CrowdCounts, left: int, contributors: int, population: int) -> Estimate:
    """Estimate the number of users in a crowd from the number of its remaining messages.

    Absent users are assumed to be like present ones.

    >>> law = CrowdCounts((2797128963144291325, 4611686018427387904), 30, 1e-6)
    >>> size = size_of_crowd(law, 970, 5000, 5000)
    >>> size.value, round(size.standard_error, 2), size.ci95_low, size.ci95_high
    (1000.0, 2.8, 994.0, 1006.0)
    """
    scale = population / contributors
    share = min(1.0, (left + counts.shift) / contributors)
    absent = max(0, population - contributors) / max(1, population - 1) / contributors
    sampling = population**2 * share * (1 - share) * absent
    deviation = math.sqrt(scale**2 * counts.variance + sampling)
    half_width = math.hypot(scale * half_width_of_noise(counts), NORMAL_95 * math.sqrt(sampling))
    value = scale * (left + counts.shift)
    return Estimate.around(value, deviation, half_width, left, population)


def half_width_of_noise(counts: CrowdCounts) -> int:
    """Return the smallest integer that |Z| exceeds with a probability of at most 5 %.

    The tails of Z are not Gaussian: P(|Z| > t) = 2 decay^(t + 1) / (1 + decay).
    """
    decay = float(counts.ratio)
    return max(0, math.ceil(math.log(_OUTSIDE * (1 + decay) / 2) / math.log(decay) - 1))


def with_size_unknown(items: ItemEstimates, size: Estimate) -> ItemEstimates:
    """Add the error of a crowd's size to its item estimates, which all scale with the size.

    The error added is that of the most frequent item: an upper bound for all others.
    """
    assert size.value is not None
    assert size.standard_error is not None
    assert size.ci95_high is not None
    share = min(1.0, max(0.0, float(items.values.max()) / size.value))
    half_width = share * (size.ci95_high - size.value)
    return replace(
        items,
        standard_error=math.hypot(items.standard_error, share * size.standard_error),
        half_width=math.hypot(items.half_width, half_width),
    )
