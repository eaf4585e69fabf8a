"""Find the top items of a domain too large to list, by searching the cells of their prefixes.

Prefixes of the first level with significant counts are extended to prefixes of the next level, and
so on. A candidate's score is at most the smallest of its cells. False candidates share cells with
true ones. So the search accepts the best candidate, subtracts its count from its cells on all
levels, and repeats. A cell that an accepted item explains supports no other candidate.

Reference: Ghazi, Golowich, Kumar, Pagh, Velingker, "On the Power of Multiple Anonymous Messages",
2019, appendix D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.randomizers.cell_codes.prefixes import PrefixCells

MOST_CANDIDATES: Final = 1 << 22
"""Maximum number of prefixes examined per level."""

# Maximum probability that noise hides an item above `HeavyHitters.detection_threshold`. If counts
# are nearly equal, a false item that shares cells with several true items can be accepted. The
# other cells of the true items then remain unexplained, and `detection_threshold` is larger.
_HIDDEN_BY_NOISE: Final = 0.01
_FALSE_CANDIDATES: Final = 0.05
_FALSE_PREFIXES: Final = 8.0
"""Expected number of false prefixes extended per level. They are harmless until items are listed,
and a lower threshold loses fewer true prefixes."""
_WIDTH_PER_ITEM: Final = 16
_FEWEST_SEARCHED: Final = 32
_ACCEPTED_PER_ITEM: Final = 4

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Cells:
    """Counts by level, minus the mean of the noise.

    Attributes:
        counts: For each level, the counts of its cells, float64, shape (buckets,).
        background: Mean count that other items add to a cell, by level; 0 if items share no cells.
        deviation: Standard deviation of a cell's noise.
        held_variance: Upper bound on the variance that a cell's own users add to its count.
    """

    code: PrefixCells
    counts: list[Array]
    background: list[float]
    deviation: float
    held_variance: float

    def estimates(self, index: int, prefixes: Numbers) -> Array:
        buckets = self.code.level_buckets(index, prefixes)
        return np.asarray(self.counts[index][buckets] - self.background[index], np.float64)

    def shortfall(self, index: int) -> float:
        return max(self.background[index], 0.0) + self.noise

    @property
    def noise(self) -> float:
        """Error due to noise; the probability that it is exceeded on any level is at most 0.01."""
        quantile = _quantile(_HIDDEN_BY_NOISE / self.code.messages)
        return quantile * self.with_users(self.deviation)

    def with_users(self, deviation: float) -> float:
        return math.sqrt(deviation * deviation + self.held_variance)


def heavy_items(
    code: PrefixCells,
    counts: Numbers | Array,
    noise_mean: float,
    noise_variance: float,
    contributors: int,
    top: int,
    width: int | None = None,
    held_variance: float = 0.0,
) -> HeavyHitters:
    """Find the top items.

    Args:
        code: Encoding of prefixes as cells.
        counts: Number of messages per cell, shape (code.cells,).
        noise_mean: Mean number of dummies in a cell.
        noise_variance: Variance of the number of dummies in a cell.
        contributors: Number of users who sent the messages.
        top: Maximum number of items to return.
        width: Maximum number of prefixes to extend per level. Default: 16 per requested item, at
            least 512, so that false prefixes do not crowd out the largest item.
        held_variance: Upper bound on the variance that a cell's own users add to its count.
    """
    if counts.shape != (code.cells,):
        raise ValueError(f"counts have shape {counts.shape}; expected ({code.cells},)")
    width = _WIDTH_PER_ITEM * max(top, _FEWEST_SEARCHED) if width is None else width
    if min(top, width) < 1:
        raise ValueError(f"'top' is {top} and 'width' is {width}; expected at least 1 for both")
    starts = code.starts
    levels = [counts[starts[index] : starts[index + 1]] for index in range(code.messages)]
    known = [level.astype(np.float64) - noise_mean for level in levels]
    cells = _Cells(
        code=code,
        counts=known,
        background=[
            0.0 if level.direct else float(known[index].mean())
            for index, level in enumerate(code.levels)
        ],
        deviation=math.sqrt(noise_variance),
        held_variance=held_variance,
    )
    prefixes, cuts = _candidates(cells, width)
    return _listed(cells, prefixes, cuts, contributors, top)


def _candidates(cells: _Cells, width: int) -> tuple[Numbers, list[float]]:
    """Return candidate items and the thresholds that their prefixes exceed, by level."""
    levels = cells.code.levels
    prefixes = np.zeros(1, np.int64)
    scores = np.full(1, math.inf)
    length, cuts = 0, list[float]()
    for index, level in enumerate(levels):
        extension = level.length - length
        if 1 << extension > MOST_CANDIDATES:
            raise ValueError(
                f"level {index} adds {extension} bits to the previous level and "
                f"requires checking more than {MOST_CANDIDATES} prefixes. Add levels in between"
            )
        length = level.length
        children = np.arange(1 << extension, dtype=np.int64)
        prefixes = ((prefixes[:, None] << extension) + children).ravel()
        scores = np.repeat(scores, len(children))
        estimates = cells.estimates(index, prefixes)
        last = index + 1 == len(levels)
        false = _FALSE_CANDIDATES if last else _FALSE_PREFIXES
        cut = _significant(len(prefixes), false) * cells.deviation
        standing = estimates > cut
        prefixes, scores = prefixes[standing], np.minimum(scores, estimates)[standing]
        kept = width
        if not last:
            kept = max(1, min(width, MOST_CANDIDATES >> (levels[index + 1].length - length)))
        if len(scores) > kept:
            least = float(np.partition(scores, -kept - 1)[-kept - 1])
            prefixes, scores = prefixes[scores > least], scores[scores > least]
            cut = max(cut, least)
        cuts.append(cut)
    return prefixes, cuts


def _listed(
    cells: _Cells, candidates: Numbers, cuts: list[float], contributors: int, top: int
) -> HeavyHitters:
    code = cells.code
    last = code.messages - 1
    buckets = np.stack(
        [
            code.level_buckets(index, candidates >> (code.bits - level.length))
            for index, level in enumerate(code.levels)
        ]
    )
    # At least half of the cells remain to measure the noise.
    room = min(_ACCEPTED_PER_ITEM * top, max(1, code.levels[last].buckets // 2))
    accepted: list[int] = []
    taken: list[float] = []
    cut, least = max(cuts), np.array(cuts)[:, None]
    left = _left(cells, buckets)
    highest = left.min(axis=0)
    while len(candidates):
        scores = np.where((left > least).all(axis=0), left.min(axis=0), -math.inf)
        best = int(scores.argmax())
        if scores[best] == -math.inf or len(accepted) == room:
            cut = max(cut, float(scores[best]))
            break
        accepted.append(best)
        taken.append(float(scores[best]))
        for level, cell in zip(cells.counts, buckets[:, best], strict=True):
            level[cell] -= taken[-1]
        left = _left(cells, buckets)
    shortfall = max(cells.shortfall(index) for index in range(code.messages))
    # If another item explains a cell of an item, the item's other cells remain unexplained.
    by_level = zip(cells.counts, buckets, strict=True)
    unexplained = np.max([level[cell] - np.median(level) for level, cell in by_level], axis=0)
    others = np.delete(np.minimum(highest + shortfall, unexplained + cells.noise), accepted)
    detection_threshold = float(others.max(initial=cut + shortfall))
    if not accepted:
        deviation = cells.with_users(cells.deviation)
        none = np.zeros(0, np.int64), np.zeros(0), deviation, NORMAL_95 * deviation
        return HeavyHitters(*none, detection_threshold, contributors, contributors)

    own = buckets[:, accepted]
    background, measured = _measured(cells, own[last])
    deviation = cells.with_users(measured)
    counts = np.stack([level[cell] + taken for level, cell in zip(cells.counts, own, strict=True)])
    # Other items in a cell can only add to its count.
    most = counts.min(axis=0) + cells.noise
    values = np.minimum(counts[last] - background, most)
    order = np.argsort(-values, kind="stable")
    if len(order) > top:
        detection_threshold = max(detection_threshold, float(values[order[top]]) + shortfall)
    first = order[:top]
    errors = deviation, NORMAL_95 * deviation
    items = candidates[accepted][first] + 1
    return HeavyHitters(
        items, values[first], *errors, detection_threshold, contributors, contributors
    )


def _left(cells: _Cells, buckets: Numbers) -> Array:
    levels = zip(cells.counts, buckets, cells.background, strict=True)
    return np.stack([level[cell] - background for level, cell, background in levels])


def _measured(cells: _Cells, own: Numbers) -> tuple[float, float]:
    """Return mean and standard deviation of last-level cells without an accepted item."""
    last = len(cells.counts) - 1
    free = np.delete(cells.counts[last], own)
    if cells.code.levels[last].direct or len(free) < 2:
        return cells.background[last], cells.deviation
    return float(free.mean()), max(float(free.std(ddof=1)), cells.deviation)


def _significant(candidates: int, false: float) -> float:
    """Return the z-score that, on average, `false` of the candidates exceed by noise alone."""
    return _quantile(min(0.5, false / max(candidates, 1)))


def _quantile(tail: float) -> float:
    return NormalDist().inv_cdf(1 - tail)
