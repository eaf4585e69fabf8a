"""Curves and sparklines for the API, as pure functions of a job's state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.derived_queries import PairQuery
from dpstream.pipeline.results.roll_ups import WindowRecord
from dpstream.pipeline.results.series import Series, known, size_of
from dpstream.pipeline.serve.reduction import Simultaneous, envelope, reduce_curve
from dpstream.pipeline.serve.views import (
    CHOSEN,
    JobState,
    begins,
    ground_truth,
    ground_truth_note,
    json_numbers,
    series_json,
    triples_json,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord

_SPARKLINE = 64


def curve(
    state: JobState,
    series: Sequence[Series],
    first: int | None,
    last: int | None,
    columns: int,
) -> dict[str, Any]:
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
        "ground_truth_note": ground_truth_note(state),
        "series": drawn,
    }


def pairs(
    job: DeployedJob, query: PairQuery, records: Iterable[EstimateRecord], limit: int
) -> dict[str, Any]:
    rows, sentence = [], None
    for record in [each for each in records if known(each.estimate)][-limit:]:
        start = record.first_epoch if isinstance(record, WindowRecord) else record.epoch
        for answer in query.answers_of(record):
            body = {key: value for key, value in answer.to_json().items() if key != "name"}
            rows.append({"epoch": record.epoch, "begins": begins(job, start), **body})
            sentence = " ".join(query.sentences(record))
    return {
        "job": job.name,
        "statistic": query.derived,
        "name": query.names[0],
        "rows": rows,
        "sentence": sentence,
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
        **series_json(state.job, series),
        "epochs": epochs[kept].tolist(),
        "begins": _begins(state, epochs[kept]),
        "value": json_numbers(triples[kept, 0]),
        "ci95_low": json_numbers(envelope(reduction, epochs, triples[:, 1], columns, np.fmin)),
        "ci95_high": json_numbers(envelope(reduction, epochs, triples[:, 2], columns, np.fmax)),
        "own_ci95_low": json_numbers(triples[kept, 1]),
        "own_ci95_high": json_numbers(triples[kept, 2]),
        "population": _populations(state, series, part, kept),
    }
    simultaneous = None if state.change or state.interval else Simultaneous.of(state.job)
    ends = None if simultaneous is None else simultaneous.ends(series, triples)
    for place, (name, pick) in enumerate((("low", np.fmin), ("high", np.fmax))):
        body[f"simultaneous_{name}"] = (
            None
            if ends is None
            else json_numbers(envelope(reduction, epochs, ends[place], columns, pick))
        )
    for place, name in enumerate(("smoothed", "smoothed_ci95_low", "smoothed_ci95_high")):
        body[name] = None if smoothed is None else json_numbers(smoothed[kept, place])
    body["ground_truth"] = None if true is None else json_numbers(true[kept])
    return body


def _begins(state: JobState, epochs: NDArray[np.int64]) -> list[int | None] | None:
    if state.job.epochs.calendar is None:
        return None
    return [begins(state.job, epoch) for epoch in epochs.tolist()]


def _populations(
    state: JobState, series: Series, part: slice, kept: NDArray[np.int64] | slice = slice(None)
) -> list[int] | None:
    """Return the number of users at each epoch, to clip displayed counts; None for other units."""
    if series.unit != "users" or state.change:
        return None
    sizes = (size_of(series, point) for point in state.history.points[part])
    found: list[int] = np.array(list(sizes), np.int64)[kept].tolist()
    return found


def _true_curve(state: JobState, series: Series, part: slice) -> NDArray[np.float64] | None:
    if state.ground_truths is None:
        return None
    found = (ground_truth(state, point, series) for point in state.history.points[part])
    return np.array([np.nan if each is None else each for each in found], np.float64)


def _smoothed(
    state: JobState, series: Series, epochs: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """Return the value, low and high, shape (n, 3), NaN if not smoothed; None without a curve."""
    if not state.smoothed or not series.number:
        return None
    found = np.full((len(epochs), 3), np.nan)
    for horizon in state.smoothed.values():
        estimates = horizon.estimates
        places = epochs - horizon.first_epoch
        inside = (places >= 0) & (places < len(estimates.values))
        at = places[inside]
        values, widths = estimates.values[at, series.number - 1], estimates.half_widths[at]
        rows = np.stack([values, values - widths, values + widths], axis=1)
        rows[estimates.gaps[at]] = np.nan
        found[inside] = rows
    return found


def recent(state: JobState, count: int) -> dict[str, Any] | None:
    """Return the latest `count` epochs of a job's main series; None before the first estimate."""
    history = state.history
    chosen = history.chosen(CHOSEN)
    if history.last is None or not chosen:
        return None
    series = next((each for each in chosen if each.share == 0.5), chosen[0])
    part = history.part(history.last.epoch - count + 1, None)
    value, low, high = history.triples([series])[0][part].T
    return {
        **series_json(state.job, series),
        "epochs": history.epochs(part).tolist(),
        "begins": _begins(state, history.epochs(part)),
        "value": json_numbers(value),
        "ci95_low": json_numbers(low),
        "ci95_high": json_numbers(high),
        "population": _populations(state, series, part),
    }


def sparklines(state: JobState, count: int) -> dict[str, Any]:
    history = state.history
    series = history.small(count)
    matrix = np.empty((len(history.points), len(series)))
    # Caching a column for each item would take seconds.
    single = [place for place, each in enumerate(series) if each.number]
    others = [place for place, each in enumerate(series) if not each.number]
    matrix[:, single] = history.values([series[place].number for place in single])
    for place, rows in zip(others, history.triples([series[at] for at in others]), strict=True):
        matrix[:, place] = rows[:, 0]
    last = history.last
    points = _few_points(matrix)
    latest = {} if last is None else dict(triples_json(last, series))
    return {
        "last_epoch": None if last is None else last.epoch,
        "population": None if last is None else last.population,
        "columns": len(points),
        "series": [
            {
                **series_json(state.job, each),
                "last": latest.get(each),
                "points": json_numbers(points[:, place]),
            }
            for place, each in enumerate(series)
        ],
    }


def _few_points(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smallest and largest value in each of 32 blocks, in order; NaN for gaps."""
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
