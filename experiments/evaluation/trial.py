"""One trial: a case run with one seed, and the errors of its estimates."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.item_log import ItemLog, ValueLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.simulation.simulated_job import Simulation, simulate
from dpstream.topics.manifests import WindowStatus
from experiments.evaluation.columns import COLUMNS, ONLINE, Series, predicted_online
from experiments.evaluation.counted import CountedEpoch, counted_epochs
from experiments.evaluation.counted_answers import (
    ALL_ITEMS,
    CURATOR,
    CURATOR_PUBLISHED,
    QUESTIONS,
    Answered,
    ask,
)
from experiments.evaluation.curator import exact_deviation, published_deviation
from experiments.evaluation.data import ChangeLogFile, Source
from experiments.evaluation.drawn_items import DrawnItems, SelectionSets
from experiments.evaluation.experiment import Case


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors (in users) of one kind of estimate or answer, over all epochs and items in a trial.

    Attributes:
        predicted_rmse: RMSE predicted before the trial, or None.
        max_error: Largest absolute error.
        bias: Mean error. It includes noise, so only its mean over many seeds estimates the bias.
        coverage: Fraction of 95 % intervals that contain the ground truth; None without intervals.
    """

    rmse: float
    predicted_rmse: float | None
    mean_abs_error: float
    max_error: float
    bias: float
    coverage: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a trial.

    Attributes:
        exhausted: Fraction of users who had to drop a change.
        suppressed: Number of epochs whose window was suppressed.
        epsilon_stream: Exact loss for a user's whole stream; None if the guarantee covers only
            single values.
        delta: Delta for the whole stream.
        accuracies: Accuracy by the name of the column or query; empty without published estimates.
        messages: Mean number of messages per user and epoch, with dummies; None if not counted.
        selected: For `SelectionSets`, True if the item common to all users has the largest
            estimate.
    """

    users: int
    exhausted: float
    suppressed: int
    epsilon_stream: float | None
    delta: float
    accuracies: Mapping[str, Accuracy]
    messages: float | None = None
    selected: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read the result of `to_json`, or raise `AttributeError`, `KeyError` or `TypeError`."""
        accuracies = {name: Accuracy(**one) for name, one in body["accuracies"].items()}
        return cls(**{**body, "accuracies": accuracies})


def case_key(case: Case) -> str:
    """Return a digest of everything that a result depends on, except the seed and the software.

    The digest includes the mechanism's constants, so a recalibrated mechanism is tried again.
    """
    job = case.job
    meaning = {
        "source": case.source.identity(),
        "protocol": job.protocol,
        "parameters": case.parameters,
        "fingerprint": job.fingerprint.hex(),
        "epochs": job.epochs.model_dump(mode="json"),
        "shuffle": job.shuffle.model_dump(mode="json"),
        "columns": list(QUESTIONS if case.of_sets else COLUMNS),
    }
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_trial(job: bytes, source: Source, seed: int) -> Trial:
    """Run a case with one seed; `job` is the result of `DeployedJob.to_bytes`.

    `dpstream simulate --seed` gives the same estimates for the same job and input.
    """
    if isinstance(source, DrawnItems):
        source = source.of_trial(seed)
    inputs = _inputs(job, source)
    log, users = inputs.log, len(inputs.log.users)
    messages = selected = None
    if isinstance(log, ItemLog):
        top_items = source.top_items if isinstance(source, ChangeLogFile) else None
        epochs = counted_epochs(inputs.job, log, seed)
        planned = predicted_online(inputs.job, users)
        if isinstance(source, DrawnItems):
            epochs, planned = _of_drawn(inputs.job, source, epochs, planned)
        accuracies = _of_sets(inputs.job, planned, epochs, seed, top_items)
        if isinstance(source, DrawnItems):
            accuracies = {name: accuracies[name] for name in (ALL_ITEMS,) if name in accuracies}
        suppressed = sum(epoch.counts is None for epoch in epochs)
        messages = sum(epoch.messages for epoch in epochs) / (users * len(epochs))
        selected = _selected(inputs.job, source, epochs[-1])
        exhausted = 0
    else:
        simulation = simulate(inputs.job, log, seed, smooth=True)
        accuracies, exhausted = _of_epochs(simulation, inputs.predicted), simulation.exhausted
        suppressed = sum(
            record.window_status is not WindowStatus.RELEASED for record in simulation.records
        )
        if isinstance(source, DrawnItems):
            # Other protocols count a single epoch of items, which one query answers.
            accuracies = {ALL_ITEMS: accuracies[ONLINE]} if ONLINE in accuracies else {}
            messages = sum(record.summary.reports for record in simulation.records) / users
    guarantee = inputs.job.guarantee
    return Trial(
        users=users,
        exhausted=exhausted / users,
        suppressed=suppressed,
        epsilon_stream=(
            guarantee.epsilon if guarantee.unit == "stream" else guarantee.stream_epsilon
        ),
        delta=guarantee.delta,
        accuracies=accuracies,
        messages=messages,
        selected=selected,
    )


def _selected(job: DeployedJob, source: Source, epoch: CountedEpoch) -> bool | None:
    if not isinstance(source, SelectionSets) or epoch.counts is None:
        return None
    listed = epoch.counts.estimates.listed()
    return None if listed is None else int(listed.values.argmax()) == source.top_items(job)


def _of_epochs(
    simulation: Simulation, predicted: Mapping[str, float | None]
) -> Mapping[str, Accuracy]:
    found = {name: column.series(simulation) for name, column in COLUMNS.items()}
    return {
        name: accuracy(series, simulation.ground_truth[1:], predicted[name])
        for name, series in found.items()
        if not np.isnan(series.values).all()
    }


def _of_drawn(
    job: DeployedJob, source: DrawnItems, epochs: list[CountedEpoch], planned: float | None
) -> tuple[list[CountedEpoch], float | None]:
    """Use the ground truth of drawn items, and add the variance of the draw to the prediction."""
    ground_truth, variance = source.ground_truth(job), source.drawn_variance(job)
    if ground_truth is not None:
        epochs = [replace(epoch, ground_truth=ground_truth) for epoch in epochs]
    return epochs, None if planned is None else math.hypot(planned, math.sqrt(variance))


def _of_sets(
    job: DeployedJob,
    planned: float | None,
    epochs: Sequence[CountedEpoch],
    seed: int,
    top_items: int | None,
) -> Mapping[str, Accuracy]:
    curator = _curator(job)
    rng = np.random.default_rng(seed)
    answers: dict[str, list[Answered]] = {}
    for epoch in epochs:
        for name, answered in ask(epoch, planned, rng, top_items, curator).items():
            answers.setdefault(name, []).append(answered)
    return {name: _together(each) for name, each in answers.items()}


def _curator(job: DeployedJob) -> Mapping[str, float]:
    """Return a curator's standard deviations for single items, at the job's epsilon and delta."""
    requested = job.parameters
    epsilon, delta = (getattr(requested, name, 0.0) for name in ("epsilon", "delta"))
    if not epsilon or not delta or getattr(requested, "items", 1) != 1:
        return {}
    if getattr(requested, "neighbors", "replacement") == "removal":
        return {
            CURATOR: exact_deviation(epsilon, delta),
            CURATOR_PUBLISHED: published_deviation(epsilon, delta),
        }
    # A user who changes items changes two counts by one each.
    return {CURATOR: exact_deviation(epsilon, delta, math.sqrt(2))}


def _together(answers: Sequence[Answered]) -> Accuracy:
    columns = ("values", "low", "high")
    series = (np.concatenate([getattr(each.series, key) for each in answers]) for key in columns)
    ground_truth = np.concatenate([each.ground_truth for each in answers])
    return accuracy(Series(*series), ground_truth, answers[0].predicted)


def accuracy(
    series: Series, ground_truth: NDArray[np.int64] | NDArray[np.float64], predicted: float | None
) -> Accuracy:
    errors = series.values - ground_truth
    known = ~np.isnan(series.low)
    covered = (series.low <= ground_truth) & (ground_truth <= series.high)
    return Accuracy(
        rmse=float(np.sqrt(np.nanmean(np.square(errors)))),
        predicted_rmse=predicted,
        mean_abs_error=float(np.nanmean(np.abs(errors))),
        max_error=float(np.nanmax(np.abs(errors))),
        bias=float(np.nanmean(errors)),
        coverage=float(covered[known].mean()) if known.any() else None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Inputs:
    job: DeployedJob
    log: ValueLog
    predicted: Mapping[str, float | None]


@lru_cache(maxsize=1)
def _inputs(job: bytes, source: Source) -> _Inputs:
    deployed = DeployedJob.from_bytes(job)
    log = source.load(deployed)
    users = len(log.users)
    predicted = {name: column.predicted(deployed, users) for name, column in COLUMNS.items()}
    return _Inputs(deployed, log, predicted)
