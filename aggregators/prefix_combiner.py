"""Estimate every prefix of a horizon from all of its complete intervals, epoch by epoch.

The epochs 1 to t consist of dyadic intervals, one for each 1 in the binary form of t. Advancing to
t + 1 works like a binary counter. Where a bit is carried, two neighboring intervals become the
halves of the next larger one, and are combined with its own reports. This gives the best linear
unbiased estimate of a prefix (for the given weights). Only the intervals of the current prefix are
stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np

from dpstream.aggregators.estimate import NORMAL_95, Participation
from dpstream.aggregators.increments import Increment, combined, joined

OwnIncrements: TypeAlias = Callable[[range, Participation], Iterable[Sequence[Increment | None]]]
"""Function of a range of epochs and the participation. For each epoch it yields, by order, the
estimates of complete intervals from their own reports; None without reports."""

# Number of epochs whose own estimates are computed in one batch.
_AT_ONCE = 1024


class PrefixCombiner:
    """Dyadic intervals of the epochs so far, each estimated from all reports within it.

    Args:
        counts: Number of counts estimated at once.
        combine: True to combine intervals that have own reports with their halves; False for the
            estimate of Algorithm 2 of "Randomize the Future".
    """

    def __init__(self, counts: int, *, combine: bool = True) -> None:
        self._counts = counts
        self._combine = combine
        self.epoch = 0
        self._pieces: dict[int, Increment] = {}
        self._known: dict[int, int] = {}
        self._squares: dict[int, float] = {}

    @property
    def pieces(self) -> tuple[Increment, ...]:
        """The intervals that make up the epochs so far, the longest first."""
        return tuple(self._pieces[order] for order in sorted(self._pieces, reverse=True))

    def add_epoch(self, own: Sequence[Increment | None]) -> None:
        """Advance by one epoch; `own` has the estimate of each interval that ends, by order."""
        self.epoch += 1
        for order, increment in enumerate(own):
            if increment is not None:
                self._known[order] = self._known.get(order, 0) + 1
                square = float(np.square(increment.value).mean())
                self._squares[order] = self._squares.get(order, 0.0) + square
        piece = own[0] if own[0] is not None else self._gap(0)
        for order in range(1, len(own)):
            halves = joined([self._pieces.pop(order - 1), piece], self._counts)
            # Two completely unknown halves are one larger unknown interval.
            if halves.gaps == (order - 1, order - 1):
                halves = self._gap(order)
            mine = own[order]
            piece = mine if mine is not None and not self._combine else combined(mine, halves)
        self._pieces[len(own) - 1] = piece

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "pieces": [[order, self._pieces[order].to_json()] for order in sorted(self._pieces)],
            "known": [[each, self._known[each], self._squares[each]] for each in self._known],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any], counts: int, *, combine: bool = True) -> Self:
        """Restore a result of `to_json`; later estimates are identical to those of the original."""
        combiner = cls(counts, combine=combine)
        try:
            combiner.epoch = int(body["epoch"])
            combiner._pieces = {
                int(order): Increment.from_json(piece, counts) for order, piece in body["pieces"]
            }
            for order, known, squares in body["known"]:
                combiner._known[int(order)] = int(known)
                combiner._squares[int(order)] = float(squares)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"saved prefix is malformed: {error!r}") from None
        if sum(1 << order for order in combiner._pieces) != combiner.epoch:
            raise ValueError(f"saved intervals do not cover epochs 1 to {combiner.epoch}")
        return combiner

    def total(self) -> Increment:
        return joined(self.pieces, self._counts)

    def half_width(self, population: int) -> float:
        """Return the half-width of the 95 % interval around `total`.

        Each interval without reports widens it by 1.96 times the root mean square of the estimates
        for other intervals of its length, or by 1.96 times the population if none has reports.
        """
        total = self.total()
        unknown = (self._typical_increment(order, population) for order in total.gaps)
        return NORMAL_95 * (math.sqrt(total.variance) + math.fsum(unknown))

    def _typical_increment(self, order: int, population: int) -> float:
        known = self._known.get(order)
        return math.sqrt(self._squares[order] / known) if known else float(population)

    def _gap(self, order: int) -> Increment:
        return Increment(np.zeros(self._counts), 0.0, 0.0, 0, gaps=(order,))


class Prefixes:
    """Prefixes, computed on demand; each epoch takes one call of `PrefixCombiner.add_epoch`."""

    def __init__(self, own: OwnIncrements, counts: int, *, combine: bool = True) -> None:
        self._own = own
        self._counts = counts
        self._combine = combine
        self._combiner = PrefixCombiner(counts, combine=combine)
        self._participation: Participation | None = None
        self._resumed = 0

    def changed(self, first_epoch: int) -> None:
        """Discard prefixes that contain `first_epoch`, whose own estimates have changed."""
        if first_epoch <= self._combiner.epoch:
            assert not self._resumed or first_epoch > self._resumed, (
                "cannot restart: no reports before the resumed epoch"
            )
            self._combiner = PrefixCombiner(self._counts, combine=self._combine)

    def resume(self, body: Mapping[str, Any], participation: Participation) -> None:
        """Start from the saved prefix `body`; later calls must pass the same `participation`."""
        self._combiner = PrefixCombiner.from_json(body, self._counts, combine=self._combine)
        self._participation, self._resumed = participation, self._combiner.epoch

    def at(self, epoch: int, participation: Participation) -> PrefixCombiner:
        """Return the prefix up to an epoch; `participation` must not change between calls."""
        if self._participation is not participation:
            self.changed(first_epoch=0)
            self._participation = participation
        if self._combiner.epoch > epoch:
            self.changed(first_epoch=0)
        while self._combiner.epoch < epoch:
            begin = self._combiner.epoch + 1
            for own in self._own(range(begin, min(begin + _AT_ONCE, epoch + 1)), participation):
                self._combiner.add_epoch(own)
        return self._combiner
