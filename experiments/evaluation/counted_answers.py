"""Query the counts of items and compare the answers with the ground truth.

The kind of counts determines the queries: single items (the 100 most frequent, 400 other items, and
all items), items found in an open domain, ranges and quantiles, or boxes.
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
    """Answers to one kind of query.

    Attributes:
        series: Answers in users, shape (answers,).
        ground_truth: True answers, float64, in the same shape.
        predicted: Predicted RMSE, or None.
    """

    series: Series
    ground_truth: Array
    predicted: float | None


def ask(
    epoch: CountedEpoch,
    planned: float | None,
    rng: np.random.Generator,
    top_items: int | None = None,
    curator: Mapping[str, float] | None = None,
) -> Mapping[str, Answered]:
    """Return an epoch's answers by kind of query; empty if its window was suppressed.

    `planned` is the RMSE that `plan` predicts for a single item. If the maximum number of users
    with an item is known (`top_items`), there are more kinds of answers: estimates of all items,
    clipped to the possible range, and, for comparison, zeros and true counts plus Gaussian noise.
    `curator` contains the standard deviations of this noise by the name of the answer.
    """
    if epoch.counts is None:
        return {}
    counts = epoch.counts.estimates
    if counts.tree is not None:
        boxes = _boxes(counts.tree, epoch.ground_truth, rng)
        if len(counts.tree.axes) > 1:
            return {BOX_COUNTS: boxes}
        return {RANGES: boxes, QUANTILES: _quantiles(counts.tree, epoch.ground_truth)}
    listed = counts.listed()
    if listed is not None:
        answers = _items(listed.intervals, epoch.ground_truth, planned, rng)
        if top_items is None:
            return answers
        true = epoch.ground_truth.astype(np.float64)
        alone = {ZEROS: np.zeros(len(true))} | {
            name: true + rng.normal(0.0, deviation, len(true))
            for name, deviation in (curator or {}).items()
        }
        return {**answers, **_clipped({CLIPPED: listed.intervals[0], **alone}, true, top_items)}
    largest = counts.top(FOUND)
    ground_truth = epoch.ground_truth[largest.items - 1].astype(np.float64)
    return {FOUND_ITEMS: Answered(Series(*largest.intervals), ground_truth, planned)}


def item_intervals(counts: Counts) -> Array:
    """Return estimates and interval ends of all items of a closed domain, shape (3, items)."""
    listed = counts.listed()
    assert listed is not None
    intervals = listed.intervals
    if counts.tree is not None:
        # Standard errors of a tree differ by value.
        intervals[1:] = np.nan
    return intervals


def _items(
    intervals: Array, ground_truth: Truth, planned: float | None, rng: np.random.Generator
) -> Mapping[str, Answered]:
    by_count = np.argsort(-ground_truth, kind="stable")
    others = by_count[TOP:]
    chosen = {
        TOP_ITEMS: by_count[:TOP],
        OTHER_ITEMS: rng.choice(others, min(OTHERS, len(others)), replace=False),
        ALL_ITEMS: by_count,
    }
    return {
        name: Answered(
            Series(*intervals[:, items]), ground_truth[items].astype(np.float64), planned
        )
        for name, items in chosen.items()
        if len(items)
    }


def _clipped(
    estimates: Mapping[str, Array], ground_truth: Array, most: int
) -> Mapping[str, Answered]:
    """Return clipped estimates, without a prediction and without intervals."""
    unknown = np.full(len(ground_truth), np.nan)
    return {
        name: Answered(Series(np.clip(values, 0.0, most), unknown, unknown), ground_truth, None)
        for name, values in estimates.items()
    }


def _boxes(grid: GridCounts, ground_truth: Truth, rng: np.random.Generator) -> Answered:
    sizes = grid.values.shape
    points = ground_truth.reshape(sizes)
    estimates, true = [], []
    for _ in range(BOXES):
        ends = [np.sort(rng.choice(size + 1, 2, replace=False)).tolist() for size in sizes]
        estimates.append(grid.box(*zip(*ends, strict=True)))
        true.append(float(points[tuple(slice(*each) for each in ends)].sum()))
    deviations = np.array([estimate.standard_error for estimate in estimates], np.float64)
    return Answered(
        Series(*np.array(list(_intervals(estimates)), np.float64).T),
        np.array(true),
        float(np.sqrt(np.square(deviations).mean())),
    )


def _intervals(estimates: list[Estimate]) -> Iterator[tuple[float | None, ...]]:
    for estimate in estimates:
        yield estimate.value, estimate.ci95_low, estimate.ci95_high


def _quantiles(grid: GridCounts, ground_truth: Truth) -> Answered:
    """Return the ranks of estimated quantiles, in users, instead of their values.

    If a value has several ranks, the rank closest to the target is used. The ends of a quantile's
    interval are replaced by their ranks.
    """
    below = np.insert(np.cumsum(ground_truth), 0, 0).astype(np.float64)
    target = np.array(SHARES) * below[-1]
    quantiles = [quantile(grid, share) for share in SHARES]
    first, last = (
        np.array([getattr(each, end) for each in quantiles]) for end in ("ci95_low", "ci95_high")
    )
    values = np.array([each.value for each in quantiles])
    ranks = np.clip(target, below[values], below[values + 1])
    return Answered(Series(ranks, below[first], below[last + 1]), target, None)
