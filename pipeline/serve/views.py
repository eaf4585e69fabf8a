"""API responses about a job, as pure functions of the job's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.ground_truths import (
    AveragedGroundTruths,
    ChangedGroundTruths,
    GroundTruths,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import at_midnight, epoch_name, period
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.spare_cells import NEVER_SHOWN
from dpstream.pipeline.results.changes import Changes
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.measure_sentences import other_warnings
from dpstream.pipeline.results.measure_words import measure_label, partial_words
from dpstream.pipeline.results.periods import Aggregate, Periods
from dpstream.pipeline.results.phrases import assumption, capital
from dpstream.pipeline.results.privacy_sentences import (
    budget_line,
    guarantee_description,
)
from dpstream.pipeline.results.sentences import (
    LATEST_ESTIMATES,
    change_words,
    headline_of,
    latest_complete_record,
    sentence_of,
)
from dpstream.pipeline.results.series import (
    MOST_LABELS,
    VALUE,
    Series,
    ground_truth_of,
    known,
)
from dpstream.pipeline.results.smoothing import SmoothedHorizon
from dpstream.pipeline.serve.history import History, Point
from dpstream.pipeline.serve.reduction import Simultaneous
from dpstream.pipeline.serve.trust_view import trust_body
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.times import EpochCalendar, microseconds

NOT_PRIVATE = "ground truth from the input, not private: do not share this page"

MOST_SERIES = 12
MOST_SENT = 256
"""Maximum number of series that are all sent if none is requested."""
MOST_SHORT_LABELS = 64
CHOSEN = 5
"""Number of series that are drawn by default."""


@dataclass(eq=False)
class JobState:
    """State of a job on the live page.

    Attributes:
        counted_from: First epoch of the deployment.
        smooths: True if the job's protocol supports retrospective smoothing.
        changes: True if the job's estimates determine the intervals for changes.
        change: Lag of the shown changes, in epochs or periods; None if estimates are shown.
        interval: Epochs per period if means over periods are shown; None for single epochs.
        ground_truths: Ground truth; None unless the page may show it.
        smoothed: Smoothed horizons by number, up to epoch `smoothed_epoch`.
        issues: Issues that require action.
        lag_seconds: Age in seconds of the oldest waiting record; None if unknown.
        headlined: The last epoch that was summarized, and its summary.
        changing: Computation of changes from one epoch to the next, if they have intervals.
        latest_change: Change at the last epoch; None if unknown.
    """

    job: DeployedJob
    history: History
    counted_from: int = 1
    smooths: bool = False
    changes: bool = False
    change: int | None = None
    interval: int | None = None
    phase: Phase = Phase.RUNNING
    budget: dict[str, Any] = field(default_factory=dict)
    ground_truths: GroundTruths | None = None
    smoothed: dict[int, SmoothedHorizon] = field(default_factory=dict)
    smoothed_epoch: int = 0
    pipeline: dict[str, Any] | None = None
    issues: tuple[str, ...] = ()
    lag_seconds: float | None = None
    headlined: tuple[Point, dict[str, Any]] | None = None
    changing: Changes | None = None
    latest_change: EstimateRecord | None = None

    def add(self, point: Point) -> None:
        if self.history.append(point) and self.changing is not None:
            self.latest_change = self.changing.next(point)


def derived(state: JobState, points: Sequence[Point], periods: Periods) -> JobState:
    """Return the state with means or changes in place of estimates.

    `points` come from the history in the state; epochs published since then are ignored.
    """
    truths, averaged = state.ground_truths, periods.averages
    if truths is not None and averaged is not None:
        truths = AveragedGroundTruths(truths, averaged, sums=periods.aggregate is Aggregate.sum)
    if truths is not None and periods.epochs_back is not None:
        truths = ChangedGroundTruths(truths, periods.epochs_back)
    history = History(state.job.domain, rows=state.history.rows)
    for record in periods.records(points):
        history.append(record if isinstance(record, Point) else Point.of(record, state.job.domain))
    return replace(
        state,
        history=history,
        change=periods.change,
        interval=averaged,
        ground_truths=truths,
        smoothed={},
        headlined=None,
        changing=None,
    )


def json_numbers(values: NDArray[np.float64]) -> list[float | None]:
    """Round numbers to three decimals; NaN becomes null."""
    return [
        None if value != value else value
        for value in np.round(np.asarray(values, np.float64), 3).tolist()
    ]


def triples_json(
    point: Point, series: Sequence[Series]
) -> Iterator[tuple[Series, list[float] | None]]:
    """Yield each series with its value, low and high, rounded to three decimals, or None."""
    triples: list[list[float]] = np.round(point.triples(series), 3).tolist()
    for each, triple in zip(series, triples, strict=True):
        yield each, triple if all(map(math.isfinite, triple)) else None


def summary(state: JobState) -> dict[str, Any]:
    job, last = state.job, state.history.last
    body: dict[str, Any] = {
        "job": job.name,
        "protocol": job.protocol,
        "deployment": job.deployment.hex(),
        "deployed_at": job.deployed_at,
        "phase": state.phase.value,
        "ended": last is not None and job.last_epoch is not None and last.epoch >= job.last_epoch,
        "replay_of": None if job.replay_of is None else job.replay_of.job,
        "epochs": job.last_epoch,
        "counted_from": state.counted_from,
        "horizon": job.epochs.count,
        "population": job.population_name,
        "domain": _domain(state, MOST_SHORT_LABELS),
        "title": job.title or job.name,
        "description": job.description,
        "people": job.people,
        "period": period(job),
        "calendar": calendar_body(job),
        "position": None
        if last is None
        else job.position_of(last.epoch, counted_from=state.counted_from),
        "first_epoch": None if last is None else state.history.points[0].epoch,
        "last_epoch": None if last is None else last.epoch,
        "closed_at": None if last is None else last.closed_at,
        "window_status": None if last is None else last.window_status.value,
        "flags": [] if last is None else list(last.flags),
        "headline": "no estimate yet",
        "estimate": None,
        "sentence": ["No estimate yet; this page updates automatically."],
        "sentence_epoch": None,
        "change": None,
        **assumption(job, () if last is None else last.flags),
        "partial": _partial(job),
        "issues": list(state.issues),
        "lag_seconds": state.lag_seconds,
        "loss": _loss(job),
        "budget": budget_line(state.budget),
    }
    if last is not None:
        if state.headlined is None or state.headlined[0] is not last:
            # Medians take long to compute, and all jobs are summarized whenever any of them has
            # news.
            state.headlined = (
                last,
                {
                    **_headline(state, last),
                    "change": _change(state),
                    "other": " ".join(f"{each}." for each in other_warnings(job, last)),
                },
            )
        body |= state.headlined[1]
        body["warning"] = " ".join(filter(None, (body["warning"], body.pop("other")))) or None
    return body


def _loss(job: DeployedJob) -> dict[str, Any]:
    guarantee = job.guarantee
    each = "horizon" if job.epochs.renew else None
    if guarantee.unit == "epoch":
        each = "epoch"
    return {"epsilon": guarantee.epsilon, "delta": guarantee.delta, "each": each}


def _headline(state: JobState, point: Point) -> dict[str, Any]:
    headline = headline_of(state.job, point)
    value = None
    if headline.value is not None:
        value = {
            "value": headline.value,
            "ci95_low": headline.ci95_low,
            "ci95_high": headline.ci95_high,
        }
    points = state.history.points[state.history.part(None, point.epoch)][-LATEST_ESTIMATES:]
    complete = latest_complete_record(state.job, points)
    assert isinstance(complete, Point)
    return {
        "headline": str(headline),
        "estimate": value,
        "sentence": list(sentence_of(state.job, points, titled=False).parts),
        "sentence_epoch": {
            "epoch": complete.epoch,
            **asdict(epoch_name(state.job, complete.epoch)),
            "contributors": complete.contributors,
            "population": complete.population,
        },
    }


def _change(state: JobState) -> dict[str, str] | None:
    change = state.latest_change
    words = None if change is None else change_words(state.job, change)
    return None if words is None else dict(zip(("number", "description"), words, strict=True))


def calendar_body(job: DeployedJob) -> dict[str, Any] | None:
    """Return data for formatting dates: the zone, and whether epochs are whole days in it."""
    calendar = job.epochs.calendar
    if calendar is None:
        return None
    return {
        "zone": "UTC" if calendar.zone is None else calendar.zone.key,
        "days": at_midnight(calendar),
        "seconds": bool(calendar.length.exact.seconds % 60 or calendar.start.second),
    }


def begins(job: DeployedJob, epoch: int) -> int | None:
    calendar = job.epochs.calendar
    return None if calendar is None else _begins(calendar, epoch)


@lru_cache(maxsize=1 << 16)
def _begins(calendar: EpochCalendar, epoch: int) -> int | None:
    try:
        return microseconds(calendar.start_of(epoch)) // 1_000
    except OverflowError:
        return None


def series_json(job: DeployedJob, series: Series) -> dict[str, Any]:
    if series.row is not None:
        row, starts = series.row, job.first_shown
        first = 1 if starts is None or not series.item else int(starts[series.item - 1])
        return {
            **series.to_json(),
            "measure": row.measure,
            "labels": dict(row.attributes),
            "answer": row.value,
            **({"first_epoch": first} if first > 1 else {}),
        }
    counts = series.id == VALUE.id and series.unit == "users"
    label = kind_of(job.domain).counted(job)[1] if counts else None
    body = {**series.to_json(), "label": label or _label(job, series)}
    crowds = job.domain.crowds_of(np.array([series.item]))
    return body if crowds is None else {**body, "crowd": job.domain.crowds[crowds[0] - 1]}


def _label(job: DeployedJob, series: Series) -> str:
    sentence = job.reads(series.label)
    if series.buckets is None or sentence != series.label:
        return sentence
    assert isinstance(job.domain, NumericDomain)
    return " to ".join(job.domain.edge_labels[edge] for edge in series.buckets)


def _domain(state: JobState, most: int) -> dict[str, Any]:
    domain = state.job.domain
    listed = None
    if domain.size - 1 <= most and domain.items is not None:
        starts = state.job.first_shown
        listed = [
            item
            for index, item in enumerate(domain.items)
            if starts is None or starts[index] != NEVER_SHOWN
        ]
    crowds = {} if domain.column is None else {"crowds": list(domain.crowds)}
    return {"kind": domain.kind, "items": listed, **crowds}


def _partial(job: DeployedJob) -> str | None:
    words = partial_words(job, job.measures or ())
    return None if words is None else f"{capital(words)}."


def _measures(job: DeployedJob) -> dict[str, Any]:
    public = set(job.public_attributes)
    return {
        "measures": [
            {
                "name": name,
                "label": measure_label(job, name),
                "type": measure.type,
                "within": measure.within,
                "statistic": "mean" if measure.answer == "mean" else "count",
                "unit": "value" if measure.answer == "mean" else "users",
                "values": list(measure.labels),
            }
            for name, measure in (job.measures or {}).items()
        ],
        "by": [
            {
                "attributes": list(names),
                "values": {name: list(job.shown_values_of(name)) for name in names},
                "public": public.issuperset(names),
            }
            for names in (job.by or () if job.measures else ())
        ],
        "ratios": [
            {"name": name, "numerator": each.numerator, "denominator": each.denominator}
            for name, each in (job.ratios or {}).items()
        ],
    }


def details(state: JobState) -> dict[str, Any]:
    job, history = state.job, state.history
    last = history.last
    guarantee = job.guarantee if last is None else job.guarantee_over(last.horizons)
    return summary(state) | {
        "domain": _domain(state, MOST_LABELS),
        "guarantee": guarantee,
        "guarantee_description": guarantee_description(guarantee),
        "budget": state.budget,
        "trust": trust_body(job),
        **_measures(job),
        "series": [series_json(job, each) for each in history.listed()],
        "chosen": [each.id for each in history.chosen(CHOSEN)],
        "smoothed": state.smooths,
        "changes": state.changes,
        "roll_up": list(job.roll_up or ()),
        "ground_truth": state.ground_truths is not None,
        "ground_truth_note": ground_truth_note(state),
        "simultaneous": Simultaneous.of(job),
    }


def sent_series(history: History, ids: Sequence[str]) -> tuple[Series, ...]:
    if ids:
        return history.find_all(ids)
    listed = history.listed()
    return listed if len(listed) <= MOST_SENT else history.chosen(CHOSEN)


def requested_series(history: History, ids: Sequence[str]) -> tuple[Series, ...]:
    return history.find_all(ids) if ids else history.chosen(CHOSEN)


def epoch_body(state: JobState, point: Point, series: Sequence[Series]) -> dict[str, Any]:
    return {**_row(state, point, series), **_headline(state, point)}


def ground_truth(state: JobState, point: Point, series: Series) -> float | None:
    if (
        state.ground_truths is None
        or (found := state.ground_truths.known(point.epoch, point.estimate)) is None
    ):
        return None
    return ground_truth_of(series, state.job.domain, point.estimate, found)


def ground_truth_note(state: JobState) -> str | None:
    return None if state.ground_truths is None else NOT_PRIVATE


def table(
    state: JobState, series: Sequence[Series], first: int | None, last: int | None, limit: int
) -> dict[str, Any]:
    points = state.history.points[state.history.part(first, last)]
    return {"rows": [_row(state, point, series) for point in points[: -limit - 1 : -1]]}


def _row(state: JobState, point: Point, series: Sequence[Series]) -> dict[str, Any]:
    first = point.epoch if state.interval is None else point.epoch - state.interval + 1
    body = {
        **point.facts(),
        **({} if state.interval is None else {"first_epoch": first}),
        "begins": begins(state.job, first),
        "series": {each.id: triple for each, triple in triples_json(point, series)},
    }
    if state.ground_truths is not None:
        body["ground_truth"] = {each.id: ground_truth(state, point, each) for each in series}
    return body


def top(state: JobState, point: Point, count: int) -> dict[str, Any]:
    """Return an epoch's `count` largest items or, for numbers, its first buckets in order."""
    estimate, kind = point.estimate, state.history.kind
    notes: list[str] = []
    simultaneous = above = None
    places: Mapping[int, tuple[int, int]] = {}
    series: tuple[Series, ...] = ()
    if estimate is not None and known(estimate):
        series = kind.largest(state.job.domain, estimate, count)
        above = estimate.detection_threshold
        if not kind.quantiles:
            simultaneous = estimate.simultaneous_half_width
            places = kind.ranks(state.job, point)
    averaged = None if estimate is None else estimate.averaged
    if averaged is not None and averaged > 1:
        notes.append(
            f"Estimates are means over {averaged:,} epochs, of which this one is the last."
        )
    if len(series) > 1 and not kind.quantiles:
        notes.append(
            "Selecting the largest items biases their estimates upward: each interval is valid "
            "for an item chosen in advance. Ranks are those consistent with simultaneous "
            "intervals."
        )
    return {
        **_about(point),
        "kind": kind.largest_are,
        "name": epoch_name(state.job, point.epoch).name,
        "items": _answers(
            state,
            point,
            series,
            lambda each: {
                "label": _label(state.job, each),
                "places": list(places[each.item]) if each.item in places else None,
            },
        ),
        "simultaneous_half_width": simultaneous,
        "detection_threshold": above,
        "notes": notes,
    }


def quantiles(state: JobState, point: Point) -> dict[str, Any]:
    series = state.history.kind.quantiles
    return {
        **_about(point),
        "name": epoch_name(state.job, point.epoch).name,
        "quantiles": _answers(state, point, series, lambda each: {"share": each.share}),
    }


def _answers(
    state: JobState,
    point: Point,
    series: Sequence[Series],
    about: Callable[[Series], dict[str, Any]],
) -> list[dict[str, Any]]:
    rows = []
    for each, triple in triples_json(point, series):
        value, low, high = triple or (None, None, None)
        numbers = {
            "value": value,
            "ci95_low": low,
            "ci95_high": high,
            "ground_truth": ground_truth(state, point, each),
        }
        rows.append({"id": each.id, **about(each), **numbers})
    return rows


def _about(point: Point) -> Mapping[str, Any]:
    facts = point.facts()
    return {name: facts[name] for name in ("epoch", "window_status", "flags", "population")}
