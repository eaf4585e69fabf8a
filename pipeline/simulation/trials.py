"""Repeats a simulation, on all cores."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.questions import Question
from dpstream.pipeline.results.smoothing import SmoothedHorizon
from dpstream.pipeline.simulation.item_accuracy import ItemAccuracy
from dpstream.pipeline.simulation.simulate import Simulation, simulate
from dpstream.pipeline.stages.estimate_records import EstimateRecord


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
