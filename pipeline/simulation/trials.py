"""Repeat a simulation on all cores."""

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
from dpstream.pipeline.results.counts_queries import Answer, CountsQuery, Query
from dpstream.pipeline.results.smoothing import SmoothedHorizon
from dpstream.pipeline.simulation.item_accuracy import ItemAccuracy
from dpstream.pipeline.simulation.simulated_job import Simulation, simulate
from dpstream.pipeline.stages.estimate_records import EstimateRecord


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy over all answers.

    Attributes:
        rmse, predicted: In users, without the answers that are means of numbers; for quantiles, or
            if all answers are means, in the unit of the values.
    """

    rmse: float
    predicted: float | None
    coverage: float


def accuracy(query: Query, simulations: Sequence[Simulation]) -> Accuracy | None:
    answers = [answer for each in simulations for answer in _answers(query, each)]
    if not answers:
        return None
    ground_truths = np.array([answer.ground_truth for answer in answers], np.float64)
    values = np.array([answer.value for answer in answers])
    lows, highs = np.array([(answer.ci95_low, answer.ci95_high) for answer in answers]).T
    counts = np.array([not query.is_mean(answer) for answer in answers])
    comparable = counts if counts.any() else ~counts
    variances = [
        answer.standard_error**2
        for answer, compared in zip(answers, comparable.tolist(), strict=True)
        if compared and answer.standard_error is not None
    ]
    return Accuracy(
        rmse=float(np.sqrt(np.square(values - ground_truths)[comparable].mean())),
        predicted=math.sqrt(math.fsum(variances) / len(variances)) if variances else None,
        coverage=float(((lows <= ground_truths) & (ground_truths <= highs)).mean()),
    )


def simulations_json(query: Query, simulations: Sequence[Simulation]) -> Mapping[str, Any]:
    """Return the JSON of `simulate --json` for a query, with the first trial's epochs."""
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
            spans.dated(query.to_json(record, first.ground_truth[record.epoch]))
            for record in first.records
        ],
    }


def _answers(query: Query, simulation: Simulation) -> Iterator[Answer]:
    for record in simulation.records:
        yield from query.answers(record.estimate, simulation.ground_truth[record.epoch])


def trial_seed(seed: int | None, trial: int) -> int | None:
    """Return the seed for a trial: `seed` itself for trial 0; None stays None."""
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
    counts_query: CountsQuery | None = None,
) -> list[Simulation]:
    """Simulate a job several times; `on_epoch` is called only if there is a single trial."""
    if trials == 1:
        simulation = simulate(
            job,
            change_log,
            seed,
            on_epoch=lambda record: on_epoch(),
            smooth=smooth,
            counts_query=counts_query,
        )
        on_trial()
        return [simulation]
    pool = trial_processes(min(trials, os.cpu_count() or 1))
    try:
        encoded = job.to_bytes()
        futures = [
            pool.submit(
                _run_trial, encoded, change_log, trial_seed(seed, trial), smooth, counts_query
            )
            for trial in range(trials)
        ]
        for future in as_completed(futures):
            future.result()
            on_trial()
        return [Simulation(job, *future.result()) for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def trial_processes(count: int) -> ProcessPoolExecutor:
    """Return a pool of processes that run trials and exit when this process ends for any reason."""
    # Spawned, because forking a process that has threads is unsafe.
    return ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=_end_with_the_parent
    )


def _end_with_the_parent() -> None:
    # Ctrl-C ends the process silently, because the parent prints the message.
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
    counts_query: CountsQuery | None,
) -> tuple[
    tuple[EstimateRecord, ...],
    NDArray[np.int64],
    int,
    Mapping[int, SmoothedHorizon],
    Mapping[int, ItemAccuracy],
]:
    deployed = DeployedJob.from_bytes(job)
    done = simulate(deployed, change_log, seed, smooth=smooth, counts_query=counts_query)
    return done.records, done.ground_truth, done.exhausted, done.smoothed, done.accuracies
