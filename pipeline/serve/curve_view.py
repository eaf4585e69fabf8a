"""Curves and sparklines as the API gives them: pure functions of what is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.serve.reduction import envelope, reduce_curve
from pipeline.serve.series import Series, item_series
from pipeline.serve.views import (
    JobState,
    chosen_series,
    json_numbers,
    listed_series,
    triples_json,
    truth,
    truth_note,
)

_SPARKLINE = 64


def curve(
    state: JobState,
    series: Sequence[Series],
    first: int | None,
    last: int | None,
    columns: int,
) -> dict[str, Any]:
    """The curves of some series, from one epoch to another."""
    history = state.history
    part = history.part(first, last)
    epochs = history.epochs(part)
    drawn = [
        _curve(state, each, triples[part], part, epochs, columns)
        for each, triples in zip(series, history.triples(series), strict=True)
    ]
    return {
        "job": state.job.name,
        "from": int(epochs[0]) if len(epochs) else None,
        "to": int(epochs[-1]) if len(epochs) else None,
        "last_epoch": None if history.last is None else history.last.epoch,
        "reduced": len(epochs) > 2 * columns,
        "truth_note": truth_note(state),
        "series": drawn,
    }


def _curve(
    state: JobState,
    series: Series,
    triples: NDArray[np.float64],
    part: slice,
    epochs: NDArray[np.int64],
    columns: int,
) -> dict[str, Any]:
    smoothed = _smoothed(state, series, epochs)
    true = _true_curve(state, series, part)
    others = [each for each in (None if smoothed is None else smoothed[:, 0], true)
              if each is not None]  # fmt: skip
    reduction = reduce_curve(epochs, [triples[:, 0], *others], columns)
    kept = reduction.kept
    body: dict[str, Any] = {
        **series.to_json(),
        "epochs": epochs[kept].tolist(),
        "value": json_numbers(triples[kept, 0]),
        "low": json_numbers(envelope(reduction, epochs, triples[:, 1], columns, np.fmin)),
        "high": json_numbers(envelope(reduction, epochs, triples[:, 2], columns, np.fmax)),
    }
    for place, name in enumerate(("smoothed", "smoothed_low", "smoothed_high")):
        body[name] = None if smoothed is None else json_numbers(smoothed[kept, place])
    body["truth"] = None if true is None else json_numbers(true[kept])
    return body


def _true_curve(state: JobState, series: Series, part: slice) -> NDArray[np.float64] | None:
    if state.truths is None:
        return None
    found = (truth(state, point, series) for point in state.history.points[part])
    return np.array([np.nan if each is None else each for each in found], np.float64)


def _smoothed(
    state: JobState, series: Series, epochs: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """Value, low and high of every epoch, (n, 3), nan where not looked back at; None: no curve."""
    if not state.smoothed or series.share:
        return None
    found = np.full((len(epochs), 3), np.nan)
    for horizon in state.smoothed.values():
        estimates = horizon.estimates
        places = epochs - horizon.first_epoch
        inside = (places >= 0) & (places < len(estimates.values))
        at = places[inside]
        if series.buckets is not None:
            start, stop = series.buckets
            if stop - start > 1:
                return None
            column = start
        else:
            column = max(series.item - 1, 0)
        values, widths = estimates.values[at, column], estimates.half_widths[at]
        rows = np.stack([values, values - widths, values + widths], axis=1)
        rows[estimates.gaps[at]] = np.nan
        found[inside] = rows
    return found


def recent(state: JobState, count: int) -> dict[str, Any] | None:
    """The last so many epochs of the series that says most of a job; None before an estimate."""
    history = state.history
    chosen = chosen_series(history)
    if history.last is None or not chosen:
        return None
    series = next((each for each in chosen if each.share == 0.5), chosen[0])
    part = history.part(history.last.epoch - count + 1, None)
    value, low, high = history.triples([series])[0][part].T
    return {
        **series.to_json(),
        "epochs": history.epochs(part).tolist(),
        "value": json_numbers(value),
        "low": json_numbers(low),
        "high": json_numbers(high),
    }


def sparklines(state: JobState, count: int) -> dict[str, Any]:
    """Many series, each as a few points."""
    history = state.history
    if history.kind in ("value", "numbers"):
        series = listed_series(history)[:count]
        columns = [each for each in series if each.buckets is None]
        # Every bucket is an item; to keep a column of each would take seconds.
        buckets = [each.buckets[1] for each in series if each.buckets is not None]
        matrix = np.column_stack(
            [*(rows[:, 0] for rows in history.triples(columns)), history.values(buckets)]
        )
    else:
        items = history.ranked(count)
        series = item_series(history.domain, items)
        matrix = history.values(items)
    last = history.last
    points = _few_points(matrix)
    latest = {} if last is None else dict(triples_json(last, series))
    return {
        "last_epoch": None if last is None else last.epoch,
        "columns": len(points),
        "series": [
            {
                **each.to_json(),
                "last": latest.get(each),
                "points": json_numbers(points[:, place]),
            }
            for place, each in enumerate(series)
        ],
    }


def _few_points(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The smallest and the largest value of each of 32 parts, in the order in which they come.

    Args:
        matrix: float64 (epochs, series), nan for gaps.
    """
    if len(matrix) <= _SPARKLINE:
        return matrix
    rows = []
    for block in np.array_split(matrix, _SPARKLINE // 2):
        empty = np.isnan(block)
        least = np.where(empty, np.inf, block).argmin(axis=0)
        most = np.where(empty, -np.inf, block).argmax(axis=0)
        across = np.arange(block.shape[1])
        rows += [
            block[np.minimum(least, most), across],
            block[np.maximum(least, most), across],
        ]
    return np.array(rows)
