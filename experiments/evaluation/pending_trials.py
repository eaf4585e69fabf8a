"""Run the pending trials of an experiment on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing import active_children

from dpstream.pipeline.simulation.trials import trial_processes
from experiments.evaluation.experiment import Case, Experiment
from experiments.evaluation.journal import Journal
from experiments.evaluation.trial import Trial, case_key, run_trial


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    case: Case
    seed: int
    key: str


def planned_trials(experiment: Experiment) -> list[Planned]:
    return [
        Planned(case, seed, f"{key}-{seed}")
        for case in experiment.cases
        for key in [case_key(case)]
        for seed in range(1, experiment.seeds + 1)
    ]


def unfinished(trials: list[Planned], journal: Journal) -> list[Planned]:
    """Return trials missing from the journal; cases that differ only in labels share trials."""
    return list({one.key: one for one in trials if journal.get(one.key) is None}.values())


def check_inputs(pending: list[Planned]) -> list[str]:
    """Read every input once and return warnings about unused parts, or raise `InputError`."""
    inputs = {
        (case.source, case.job.epochs, case.job.domain.items): case
        for case in {id(one.case): one.case for one in pending}.values()
    }
    return [warning for case in inputs.values() for warning in case.source.check(case.job)]


def run_pending(
    pending: list[Planned],
    journal: Journal,
    *,
    processes: int | None = None,
    on_trial: Callable[[], None] = lambda: None,
) -> None:
    """Run trials with checked inputs, and append each to the journal when it finishes.

    The default is one process per core; 1 uses the current process. Ctrl-C ends all processes.
    """

    def keep(planned: Planned, trial: Trial) -> None:
        journal.append(planned.key, trial)
        on_trial()

    processes = processes or os.cpu_count() or 1
    if processes > 1 and pending:
        _on_cores(pending, min(processes, len(pending)), keep)
    else:
        for one in pending:
            keep(one, run_trial(one.case.job.to_bytes(), one.case.source, one.seed))


def _on_cores(
    pending: list[Planned], processes: int, keep: Callable[[Planned, Trial], None]
) -> None:
    others = set(active_children())
    pool = trial_processes(processes)
    running: dict[Future[Trial], Planned] = {}
    waiting = iter(pending)

    def submit(count: int) -> None:
        for one in islice(waiting, count):
            job = one.case.job.to_bytes()
            running[pool.submit(run_trial, job, one.case.source, one.seed)] = one

    try:
        submit(2 * processes)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                keep(running.pop(future), future.result())
            submit(len(done))
    except BaseException:
        # Trials that still run are abandoned.
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
