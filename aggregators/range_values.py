"""Track numeric values over time, from symbols on every level and least squares over the tree.

Each level is treated like a job with the level's nodes as its items. A device's level does not
depend on its values, so the users who report on a level are representative of all users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.divided_counts import DividedCounts
from dpstream.aggregators.estimate import GAP, NORMAL_95, Participation
from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.law_aggregator import check_format
from dpstream.aggregators.range_estimates import RangeEstimates
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.aggregators.tree_smoothing import consistent_buckets
from dpstream.randomizers.value_stream.range_values import LEVEL_SHIFT, RangeValuesLaw
from dpstream.randomizers.value_tree import range_variances

Array: TypeAlias = NDArray[np.float64]


class RangeValuesAggregator(DividedCounts[RangeValuesLaw, HadamardValuesAggregator]):
    """Sum symbols; the state is independent of input order, splits and merges.

    >>> import numpy as np
    >>> from dpstream.randomizers.value_stream.range_values.calibration import calibrate
    >>> from dpstream.randomizers.value_stream.range_values import RangeValuesParameters
    >>> law = calibrate(RangeValuesParameters(1.0, 2, low=0, high=80, buckets=2), last_epoch=2)
    >>> aggregator = RangeValuesAggregator(law)
    >>> aggregator.add(1, np.array([[(1 << LEVEL_SHIFT) + 3 * 256 + 88]], np.uint32), None)
    >>> aggregator.levels[0].sums(1)
    array([1, 0, 0, 0, 8])
    """

    part_name = "level"

    def __init__(self, law: RangeValuesLaw) -> None:
        super().__init__(law, list(map(HadamardValuesAggregator, law.levels)))

    @property
    def levels(self) -> list[HadamardValuesAggregator]:
        return self.parts

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, np.uint32)
        drawn = np.flatnonzero([0, *self.law.level_weights])
        wrong = ~np.isin(words[:, 0] >> LEVEL_SHIFT, drawn)
        if wrong.any():
            word = int(words[wrong.argmax(), 0])
            raise ValueError(
                f"message at epoch {epoch} has level {word >> LEVEL_SHIFT}; expected one of "
                f"{', '.join(map(str, drawn))}"
            )
        self.check_parts(epoch, words)

    @classmethod
    def from_bytes(cls, law: RangeValuesLaw, data: bytes) -> Self:
        return cls(law).read_parts(data)

    def estimate(self, epoch: int, participation: Participation) -> RangeEstimates | None:
        """Estimate the number of devices with values in each bucket; return None if unknown.

        Every enrolled device is assumed to have a value. A level with a gap is left out. If that is
        the buckets themselves, all levels are used, standard errors include the error that gaps
        cause, and the result is flagged `GAP`.
        """
        found = [level.estimate(epoch, participation) for level in self.levels]
        if found[-1] is None:
            return None
        population = int(participation.population[epoch])
        nodes = [level or _nothing(2 << index, population) for index, level in enumerate(found)]
        widths = np.array([[level.half_width] for level in nodes])
        gaps = np.array([[GAP in level.flags] for level in nodes])
        variances = self._level_variances(widths, gaps)[:, 0]
        values = consistent_buckets([level.values for level in nodes], variances, population)
        deviation = math.sqrt(float(range_variances(variances, 0, 1)))
        return RangeEstimates(
            values=values,
            standard_error=deviation,
            half_width=NORMAL_95 * deviation,
            reports=sum(
                level.reports
                for level, variance in zip(nodes, variances, strict=True)
                if np.isfinite(variance)
            ),
            population=population,
            flags=(GAP,) if gaps[-1, 0] else (),
            level_variances=tuple(variances.tolist()),
        )

    def smoothed(self, last_epoch: int, participation: Participation) -> SmoothedEstimates:
        nodes = [level.smoothed(last_epoch, participation) for level in self.levels]
        gaps = np.array([level.gaps for level in nodes])
        variances = self._level_variances(np.array([level.half_widths for level in nodes]), gaps)
        population = nodes[-1].population

        def over_the_tree(levels: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
            epochs = range(last_epoch)
            return np.array(
                [
                    consistent_buckets(
                        [values[epoch] for values in levels], variances[:, epoch], population[epoch]
                    )
                    for epoch in epochs
                ]
            )

        deviations = np.sqrt(range_variances(variances, 0, 1))
        return SmoothedEstimates(
            values=over_the_tree([level.values for level in nodes]),
            standard_errors=deviations,
            half_widths=NORMAL_95 * deviations,
            gaps=gaps[-1],
            population=population,
            online_shrunk=_of_all([level.online_shrunk for level in nodes], over_the_tree),
            shrunk=_of_all([level.shrunk for level in nodes], over_the_tree),
            level_variances=variances,
        )

    def _level_variances(
        self, half_widths: NDArray[np.float64], gaps: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return the variances of nodes, shape (levels, epochs), infinite for levels left out.

        `half_widths` of 95 % intervals and `gaps` (intervals without reports) have that shape.
        """
        drawn = np.array(self.law.level_weights)[:, None] > 0
        return np.where(drawn & (gaps[-1] | ~gaps), np.square(half_widths / NORMAL_95), np.inf)

    def by_part(
        self, words: NDArray[np.uint32]
    ) -> Iterator[tuple[HadamardValuesAggregator, NDArray[np.bool_], NDArray[np.uint32]]]:
        levels = words[:, 0] >> LEVEL_SHIFT
        for number, (level, weight) in enumerate(
            zip(self.levels, self.law.level_weights, strict=True), start=1
        ):
            if weight:
                where = levels == number
                yield level, where, words[where] & np.uint32((1 << LEVEL_SHIFT) - 1)


def _nothing(nodes: int, population: int) -> ItemEstimates:
    return ItemEstimates(np.zeros(nodes), math.inf, math.inf, 0, population, (GAP,))


def _of_all(
    levels: Sequence[Array | None], over_the_tree: Callable[[Sequence[Array]], Array]
) -> Array | None:
    made = [values for values in levels if values is not None]
    return over_the_tree(made) if len(made) == len(levels) else None
