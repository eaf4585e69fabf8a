"""Estimated number of users with values in any range, if each answer is about a level of a tree.

Least squares combines independent estimates of the nodes of all levels. The estimate for a range is
a weighted sum of node counts. The weights of a level's nodes are a function of the buckets: a sum
of indicators of the buckets before an edge of a node that contains an end of the range.

Let W be the weights of a level about which n of N users answer. If the estimate from one answer has
the variance (first part) * sum of W^2 over nodes + (second part) * W(own node)^2, the level adds

    N^2 / n * (first part * sum of W^2 + second part * E W^2) + N^3 / (n (N - 1)) * Var W

to the variance for a range, with mean and variance over the users. The second term is due to
sampling. No user answers about two levels, which subtracts N^2 / (N - 1) * p (1 - p) in total, for
a range with a share p of the users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import EstimatedCounts
from dpstream.aggregators.estimate import NORMAL_95, Estimate
from dpstream.aggregators.item_estimates import ItemEstimates, norm_sub
from dpstream.aggregators.range_estimates import Ends, OrderedEstimates

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AskedLevel:
    """A level that users answer about, with the parts of a range's variance that it adds.

    Attributes:
        nodes: Number of nodes.
        precision: Weight of a node in least squares, relative to the other levels.
        flips: Factor of the sum of W^2 over all nodes.
        held: Factor of the mean of W^2 over all users.
        sampled: Factor of the square of the mean of W over all users, which is subtracted.
    """

    nodes: int
    precision: float
    flips: float
    held: float
    sampled: float

    @classmethod
    def of(
        cls,
        nodes: int,
        precision: float,
        parts: tuple[float, float],
        reports: float,
        population: float,
    ) -> Self:
        """Return a level with `reports` answers; `parts` are the variance parts of one answer."""
        first, second = (population**2 / reports * part for part in parts)
        sampled = population**3 / reports / max(1.0, population - 1)
        return cls(nodes, precision, first, second + sampled, sampled)

    def times(self, factor: float) -> Self:
        parts = {name: factor * getattr(self, name) for name in ("flips", "held", "sampled")}
        return replace(self, **parts)

    def plus(self, other: Self) -> Self:
        parts = ("flips", "held", "sampled")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in parts})


@dataclass(frozen=True, slots=True, eq=False)
class OwnErrors(OrderedEstimates):
    def intervals_of(self, items: NDArray[np.int64]) -> Array:
        return self.ranges(items - 1, items)

    def item(self, index: int) -> Estimate:
        return self.range(index, index + 1)


@dataclass(frozen=True, slots=True, eq=False)
class SampledRanges(OwnErrors):
    """Number of users with values in each of 2^L buckets; all users have a value.

    Every bucket and range has its own variance. `standard_error` and `half_width` are those of the
    least accurate bucket.

    Attributes:
        levels: Levels with answers, by increasing number of nodes; the last nodes are the buckets.
        epochs: Number of epochs whose mean these estimates are.
    """

    levels: tuple[AskedLevel, ...] = field(kw_only=True)
    epochs: int = field(default=1, kw_only=True)

    @classmethod
    def of(
        cls,
        values: Array,
        levels: tuple[AskedLevel, ...],
        reports: int,
        population: int,
        flags: tuple[str, ...] = (),
        epochs: int = 1,
    ) -> Self:
        found = cls(values, 0.0, 0.0, reports, population, flags, levels=levels, epochs=epochs)
        ends = np.arange(len(values) + 1)
        deviation = math.sqrt(float(found.variances(ends[:-1], ends[1:]).max()))
        return replace(found, standard_error=deviation, half_width=NORMAL_95 * deviation)

    @property
    def total(self) -> float:
        return float(self.population)

    @property
    def below(self) -> Array:
        """Share of users in the buckets before each edge, increasing, shape (buckets + 1,)."""
        users = max(1.0, float(self.population))
        shares = np.insert(np.cumsum(norm_sub(self.values, users) / users), 0, 0.0)
        shares[-1] = 1.0
        return np.minimum(shares, 1.0)

    def spread(self, starts: Ends, ends: Ends) -> Array:
        """Return p (1 - p), the variance over users of being in a range with a share p."""
        inside = self.below[ends] - self.below[starts]
        return np.asarray(inside * (1 - inside), np.float64)

    def variances(self, starts: Ends, ends: Ends) -> Array:
        shape = np.broadcast(starts, ends).shape
        first, last = (np.broadcast_to(each, shape).reshape(-1) for each in (starts, ends))
        size, users = len(self.values), max(1.0, float(self.population))
        evenly, below = np.linspace(0.0, 1.0, size + 1), self.below
        result = -(users**2) / max(1.0, users - 1) / self.epochs * self.spread(first, last)
        places, weights = _steps(self.levels, first, last, size)
        for level, of_level in zip(self.levels, weights, strict=True):
            _, squares = _moments(places, of_level, evenly)
            mean, held = _moments(places, of_level, below)
            result += level.flips * level.nodes * squares
            result += level.held * held - level.sampled * np.square(mean)
        return np.asarray(np.maximum(result, 0.0).reshape(shape), np.float64)

    def of_window(self, mean: ItemEstimates, window: Sequence[ItemEstimates]) -> ItemEstimates:
        """Return the mean of a window's epochs, whose errors are treated as independent.

        If epochs lack different levels, each epoch is treated like the one with the fewest levels.
        """
        epochs = [each for each in window if isinstance(each, SampledRanges)]
        population = round(sum(each.population for each in epochs) / len(epochs))
        alike = len({tuple(level.nodes for level in each.levels) for each in epochs}) == 1
        if not alike:
            fewest = max(epochs, key=lambda each: (-len(each.levels), each.standard_error))
            epochs = [fewest] * len(epochs)
        first, *others = (each.levels for each in epochs)
        for levels in others:
            first = tuple(one.plus(other) for one, other in zip(first, levels, strict=True))
        count = len(epochs)
        levels = tuple(level.times(1 / count**2) for level in first)
        return type(self).of(mean.values, levels, mean.reports, population, mean.flags, count)

    def change_from(self, earlier: EstimatedCounts, standard_error: float) -> ItemEstimates | None:
        change = ItemEstimates.change_from(self, earlier, standard_error)
        if change is None or not isinstance(earlier, SampledRanges):
            return change
        largest = (each.headline.standard_error or 0.0 for each in (self, earlier))
        independent = math.hypot(*largest) * (1 + 1e-9)
        return RangeChanges(
            change.values,
            standard_error,
            change.half_width,
            *change.about,
            earlier=earlier,
            later=self,
            others=standard_error > independent,
        )

    def to_json(self) -> dict[str, Any]:
        levels = [
            [level.nodes, level.precision, level.flips, level.held, level.sampled]
            for level in self.levels
        ]
        return {**ItemEstimates.to_json(self), "asked_levels": levels, "epochs": self.epochs}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        shared = cls._shared(body)
        size, epochs = len(shared["values"]), int(body["epochs"])
        levels = tuple(
            AskedLevel(int(nodes), *map(float, parts)) for nodes, *parts in body["asked_levels"]
        )
        nodes = [level.nodes for level in levels]
        if nodes != sorted(set(nodes)) or not nodes or nodes[-1] != size or epochs < 1:
            raise ValueError(
                f"levels have {nodes} nodes, which do not match {size} buckets and {epochs} epochs"
            )
        if any(size % each for each in nodes) or not all(
            math.isfinite(part) and part > 0 for level in levels for part in (level.precision,)
        ):
            raise ValueError(f"levels of {nodes} nodes are invalid for {size} buckets")
        return cls(**shared, levels=levels, epochs=epochs)


@dataclass(frozen=True, slots=True, eq=False)
class RangeChanges(OwnErrors):
    """Changes of the number of users in each range; quantiles of changes do not exist.

    Attributes:
        earlier, later: The estimates.
        others: True if different users answered, so that errors are negatively correlated where
            values persist. Variances are then upper bounds, as in
            `dpstream.aggregators.change_errors.SampledChanges`.
    """

    earlier: SampledRanges = field(kw_only=True)
    later: SampledRanges = field(kw_only=True)
    others: bool = field(kw_only=True)

    @property
    def total(self) -> float:
        return 0.0

    def variances(self, starts: Ends, ends: Ends) -> Array:
        before, now = self.earlier, self.later
        result = before.variances(starts, ends) + now.variances(starts, ends)
        if not self.others:
            return result
        one, other = before.spread(starts, ends), now.spread(starts, ends)
        epochs = min(before.epochs, now.epochs)
        both = 2 * np.sqrt(one * other) if epochs == 1 else (one + other) / epochs
        users = float(now.population)
        return np.asarray(result + users**2 / max(1.0, users - 1) * both, np.float64)


def _steps(
    levels: Sequence[AskedLevel], starts: NDArray[np.int64], ends: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], list[Array]]:
    """Return the edges at which the weights of levels change, and the indicators' coefficients.

    The range's indicator, averaged within each node of a level, is a combination of indicators with
    four edges. The weights of a level are a combination of these averages for all levels up to it.
    Edges have shape (edges, ranges), and so have the coefficients for each level. A last row is the
    constant part, an indicator of all buckets.
    """
    edges, means = [], []
    for level in levels:
        width = size // level.nodes
        places, weights = [], []
        for sign, at in ((1.0, ends), (-1.0, starts)):
            before, part = np.divmod(at, width)
            places += [before * width, np.minimum((before + 1) * width, size)]
            weights += [sign * (1 - part / width), sign * (part / width)]
        edges.append(np.stack(places))
        means.append(np.stack(weights))
    precision = np.array([size // level.nodes * level.precision for level in levels])
    # Row j: weights of all levels for the differences between nodes of level j and their parents.
    shares = np.triu(np.broadcast_to(precision, (len(levels), len(levels))))
    shares = shares / shares.sum(axis=1, keepdims=True)
    combined = []
    for index in range(len(levels)):
        of_means = -np.diff(shares[:, index], append=0.0)
        rows = [factor * mean for factor, mean in zip(of_means, means, strict=True)]
        constant = -shares[0, index] * (ends - starts)[None] / size
        combined.append(np.concatenate([*rows, constant]))
    everything = np.full((1, len(starts)), size)
    return np.concatenate([*edges, everything]), combined


def _moments(places: NDArray[np.int64], weights: Array, below: Array) -> tuple[Array, Array]:
    """Return mean and mean square of sums of weighted indicators of the buckets before an edge.

    `places` and `weights` have shape (edges, ranges); `below`, shape (buckets + 1,), is the share
    of users in the buckets before each edge.
    """
    order = np.argsort(places, axis=0, kind="stable")
    masses = np.diff(below[np.take_along_axis(places, order, axis=0)], axis=0, prepend=0.0)
    values = np.take_along_axis(weights, order, axis=0)[::-1].cumsum(axis=0)[::-1]
    return (masses * values).sum(axis=0), (masses * np.square(values)).sum(axis=0)
