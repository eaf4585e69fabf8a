"""Repeats a simulation, on all cores."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.results.questions import Answer, Query, Question
from dpstream.pipeline.results.smoothing import SmoothedHorizon
from dpstream.pipeline.simulation.item_accuracy import ItemAccuracy
from dpstream.pipeline.simulation.simulated_job import Simulation, simulate
from dpstream.pipeline.stages.estimate_records import EstimateRecord


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of all answers, at all epochs of all trials, freezing bias included.

    Attributes:
        rmse: root mean squared error, in users; of quantiles, in values.
        predicted: the same as the published standard deviations have it; None for quantiles.
        coverage: share of the intervals that hold the truth.
    """

    rmse: float
    predicted: float | None
    coverage: float


def accuracy(query: Query, simulations: Sequence[Simulation]) -> Accuracy | None:
    """How accurate the answers are; None if there is not one."""
    answers = [answer for each in simulations for answer in _answers(query, each)]
    if not answers:
        return None
    truths = np.array([answer.truth for answer in answers], np.float64)
    values = np.array([answer.value for answer in answers])
    lows, highs = np.array([(answer.low, answer.high) for answer in answers]).T
    variances = [
        answer.standard_deviation**2 for answer in answers if answer.standard_deviation is not None
    ]
    return Accuracy(
        rmse=float(np.sqrt(np.square(values - truths).mean())),
        predicted=math.sqrt(math.fsum(variances) / len(variances)) if variances else None,
        coverage=float(((lows <= truths) & (truths <= highs)).mean()),
    )


def simulations_json(query: Query, simulations: Sequence[Simulation]) -> Mapping[str, Any]:
    """What ``dpstream simulate --json`` prints for a query: the epochs are those of trial 1."""
    first, found = simulations[0], accuracy(query, simulations)
    spans = EpochSpans(first.job)
    return {
        "job": first.job.name,
        "guarantee": first.job.guarantee,
        "trials": len(simulations),
        "rmse": None if found is None else found.rmse,
        "predicted_rmse": None if found is None else found.predicted,
        "coverage": None if found is None else found.coverage,
        "epochs": [
            spans.dated(query.to_json(record, first.truth[record.epoch]))
            for record in first.records
        ],
    }


def _answers(query: Query, simulation: Simulation) -> Iterator[Answer]:
    for record in simulation.records:
        yield from query.answers(record.estimate, simulation.truth[record.epoch])


def trial_seed(seed: int | None, trial: int) -> int | None:
    """The seed of a trial: the first one has `seed` itself, None stays None."""
    if seed is None or trial == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{trial}".encode()).digest()[:8], "big")


def run_trials(
    job: DeployedJob,
    change_log: ValueLog,
    trials: int,
    *,
    seed: int | None = None,
    on_epoch: Callable[[], None] = lambda: None,
    on_trial: Callable[[], None] = lambda: None,
    smooth: bool = False,
    question: Question | None = None,
) -> list[Simulation]:
    """Simulate a job so many times, each with its own randomness.

    Args:
        job: deployed with empty topics.
        change_log: the input of every trial.
        trials: how many, at least 1.
        seed: makes all of them repeatable.
        on_epoch: is called after every epoch of a single trial.
        on_trial: is called after every trial.
        smooth: as for `simulate`.
        question: the same.

    Returns:
        The trials, in an order that depends on nothing but the seed.
    """
    if trials == 1:
        simulation = simulate(
            job,
            change_log,
            seed,
            on_epoch=lambda record: on_epoch(),
            smooth=smooth,
            question=question,
        )
        on_trial()
        return [simulation]
    pool = trial_processes(min(trials, os.cpu_count() or 1))
    try:
        encoded = job.to_bytes()
        futures = [
            pool.submit(_run_trial, encoded, change_log, trial_seed(seed, trial), smooth, question)
            for trial in range(trials)
        ]
        for future in as_completed(futures):
            future.result()
            on_trial()
        return [Simulation(job, *future.result()) for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def trial_processes(count: int) -> ProcessPoolExecutor:
    """Processes that run trials, and end with this one however it ends."""
    # Spawned: a child of a process that holds threads is not safe to go on after a fork.
    return ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=_end_with_the_parent
    )


def _end_with_the_parent() -> None:
    # Ctrl-C ends it without a word: the parent says what there is to say.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _run_trial(
    job: bytes,
    change_log: ValueLog,
    seed: int | None,
    smooth: bool,
    question: Question | None,
) -> tuple[
    tuple[EstimateRecord, ...],
    NDArray[np.int64],
    int,
    Mapping[int, SmoothedHorizon],
    Mapping[int, ItemAccuracy],
]:
    deployed = DeployedJob.from_bytes(job)
    done = simulate(deployed, change_log, seed, smooth=smooth, question=question)
    return done.records, done.truth, done.frozen, done.smoothed, done.accuracies
