"""What counts of items are asked, and how that compares with the truth.

Which questions there are, the counts decide: single items (the 100 that most users hold, 400 of the
others, and all), the items found in an open domain, ranges and quantiles, or boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpstream.aggregators.cell_window import FOUND
from dpstream.aggregators.counts import Counts
from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.grid_counts import GridCounts
from dpstream.aggregators.quantiles import quantile
from experiments.evaluation.columns import Array, Series
from experiments.evaluation.counted import CountedEpoch, Truth

TOP: Final = 100
OTHERS: Final = 400
BOXES: Final = 1000
SHARES: Final = tuple(tenth / 10 for tenth in range(1, 10))

TOP_ITEMS: Final = f"top {TOP}"
OTHER_ITEMS: Final = f"random {OTHERS}"
ALL_ITEMS: Final = "all items"
CLIPPED: Final = "all, clipped"
ZEROS: Final = "all zeros"
CURATOR: Final = "curator, clipped"
CURATOR_PUBLISHED: Final = "curator as published, clipped"
FOUND_ITEMS: Final = f"found {FOUND}"
RANGES: Final = "ranges"
QUANTILES: Final = "quantiles"
BOX_COUNTS: Final = "boxes"
QUESTIONS: Final = (
    TOP_ITEMS,
    OTHER_ITEMS,
    ALL_ITEMS,
    FOUND_ITEMS,
    RANGES,
    QUANTILES,
    BOX_COUNTS,
)
ANSWERED: Final = (*QUESTIONS, CLIPPED, ZEROS, CURATOR, CURATOR_PUBLISHED)
"""Names of all kinds of answers."""


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """The answers to one kind of question.

    Attributes:
        series: the answers, shape (answers,), in users.
        truth: of the same shape, float64.
        predicted: their root mean squared error as it was said beforehand; None if it was not.
    """

    series: Series
    truth: Array
    predicted: float | None


def ask(
    epoch: CountedEpoch,
    planned: float | None,
    rng: np.random.Generator,
    most_held: int | None = None,
    curator: Mapping[str, float] | None = None,
) -> Mapping[str, Answered]:
    """The answers of an epoch, by kind of question; none where its window was withheld.

    Where it is known how many users can have an item, there are kinds more: the estimates of all
    items, clipped to what is possible, and to compare them with nothing but zeros, and true counts
    with a curator's normal noise.

    Args:
        epoch: counts and truth.
        planned: the root mean squared error of a single item, as `plan` predicts it.
        rng: draws the items, ranges and boxes.
        most_held: the most users that can have an item; None where it is not known.
        curator: standard deviations of a curator's noise, by the names of the answers.
    """
    if epoch.counts is None:
        return {}
    counts = epoch.counts.estimates
    if counts.tree is not None:
        boxes = _boxes(counts.tree, epoch.truth, rng)
        if len(counts.tree.axes) > 1:
            return {BOX_COUNTS: boxes}
        return {RANGES: boxes, QUANTILES: _quantiles(counts.tree, epoch.truth)}
    listed = counts.listed()
    if listed is not None:
        answers = _items(listed.intervals, epoch.truth, planned, rng)
        if most_held is None:
            return answers
        true = epoch.truth.astype(np.float64)
        alone = {ZEROS: np.zeros(len(true))} | {
            name: true + rng.normal(0.0, deviation, len(true))
            for name, deviation in (curator or {}).items()
        }
        return {**answers, **_clipped({CLIPPED: listed.intervals[0], **alone}, true, most_held)}
    largest = counts.top(FOUND)
    truth = epoch.truth[largest.items - 1].astype(np.float64)
    return {FOUND_ITEMS: Answered(Series(*largest.intervals), truth, planned)}


def item_intervals(counts: Counts) -> Array:
    """Values, lows and highs of all items of a domain that is not open, shape (3, items)."""
    listed = counts.listed()
    assert listed is not None
    intervals = listed.intervals
    if counts.tree is not None:
        # Single values of a tree have errors of their own.
        intervals[1:] = np.nan
    return intervals


def _items(
    intervals: Array, truth: Truth, planned: float | None, rng: np.random.Generator
) -> Mapping[str, Answered]:
    by_count = np.argsort(-truth, kind="stable")
    others = by_count[TOP:]
    chosen = {
        TOP_ITEMS: by_count[:TOP],
        OTHER_ITEMS: rng.choice(others, min(OTHERS, len(others)), replace=False),
        ALL_ITEMS: by_count,
    }
    return {
        name: Answered(Series(*intervals[:, items]), truth[items].astype(np.float64), planned)
        for name, items in chosen.items()
        if len(items)
    }


def _clipped(estimates: Mapping[str, Array], truth: Array, most: int) -> Mapping[str, Answered]:
    """Without intervals, which clipping would cut, and without a prediction."""
    unknown = np.full(len(truth), np.nan)
    return {
        name: Answered(Series(np.clip(values, 0.0, most), unknown, unknown), truth, None)
        for name, values in estimates.items()
    }


def _boxes(grid: GridCounts, truth: Truth, rng: np.random.Generator) -> Answered:
    sizes = grid.values.shape
    points = truth.reshape(sizes)
    estimates, true = [], []
    for _ in range(BOXES):
        ends = [np.sort(rng.choice(size + 1, 2, replace=False)).tolist() for size in sizes]
        estimates.append(grid.box(*zip(*ends, strict=True)))
        true.append(float(points[tuple(slice(*each) for each in ends)].sum()))
    deviations = np.array([estimate.standard_deviation for estimate in estimates], np.float64)
    return Answered(
        Series(*np.array(list(_intervals(estimates)), np.float64).T),
        np.array(true),
        float(np.sqrt(np.square(deviations).mean())),
    )


def _intervals(estimates: list[Estimate]) -> Iterator[tuple[float | None, ...]]:
    for estimate in estimates:
        yield estimate.value, estimate.low, estimate.high


def _quantiles(grid: GridCounts, truth: Truth) -> Answered:
    """Ranks instead of values: how many users are below, the nearest number that is right of all.

    The interval of a quantile becomes that of the ranks of the values in it.
    """
    below = np.insert(np.cumsum(truth), 0, 0).astype(np.float64)
    wanted = np.array(SHARES) * below[-1]
    quantiles = [quantile(grid, share) for share in SHARES]
    first, last = (np.array([getattr(each, end) for each in quantiles]) for end in ("low", "high"))
    values = np.array([each.value for each in quantiles])
    ranks = np.clip(wanted, below[values], below[values + 1])
    return Answered(Series(ranks, below[first], below[last + 1]), wanted, None)
