"""What attackers see: trial by trial, and nobody's values among another's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dpstream.pipeline.audit import targets
from dpstream.pipeline.audit.hockey_stick import Reports, Sights
from dpstream.pipeline.audit.targets import History, Windows
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.simulation.simulate import SimulatedCluster
from dpstream.randomizers.randomness import seeded_generator

TRIALS = 5


def loud_job(epochs: int, **values: Any) -> DeployedJob:
    """Devices that say nearly always what they hold."""
    job = {
        "name": "loud",
        "protocol": "split_budget",
        "parameters": {"epsilon": min(15 * epochs, 64)},
    }
    values = {**job, "epochs": {"count": epochs}, "shuffle": {"minimum": 1}, **values}
    return deploy_job(make_job(values), deployed_at=0)


def told(sights: Sights, trial: int) -> list[Reports]:
    return [table[code] for table, code in zip(sights.tables, sights.codes[trial], strict=True)]


@pytest.mark.parametrize(
    ("epochs", "stream", "runs"),
    [(3, (0, 1, 1), 1), (10, (0, 1, 1, 0, 1, 0, 0, 0), TRIALS)],
    ids=["horizons that follow each other", "the beginning of a longer one"],
)
def test_of_each_trial_its_own_epochs_are_seen(
    epochs: int, stream: tuple[int, ...], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[DeployedJob] = []

    def cluster(job: DeployedJob, generators: Any) -> SimulatedCluster:
        begun.append(job)
        return SimulatedCluster(job, generators)

    monkeypatch.setattr(targets, "SimulatedCluster", cluster)
    windows = Windows(loud_job(epochs))
    assert windows.epochs == len(stream)
    released, published = windows.sights(stream, TRIALS, seeded_generator(1))
    assert released.trials == published.trials == TRIALS
    # What devices have drawn for a horizon is of one person.
    assert [job.epochs.renew for job in begun] == [runs == 1] * runs
    for trial in range(TRIALS):
        assert told(released, trial) == [(((value,), 1),) for value in stream]
        estimates = [seen[0][0][0] / 1000 for seen in told(published, trial)]
        assert estimates == pytest.approx(stream, abs=0.01)


def test_of_epochs_that_stand_alone_each_is_a_trial() -> None:
    job = loud_job(
        4, protocol="laplace_histogram", parameters={"epsilon": 12, "domain": ["a", "b"]}
    )
    windows = Windows(job)
    assert windows.epochs == 1
    released, published = windows.sights(((2,),), 7, seeded_generator(2))
    assert released.codes.shape == published.codes.shape == (7, 1)
    # Noise moves a count in one of some hundred trials.
    assert Counter(dict(published.times(0)))[(((0, 1000), 1),)] >= 5
    assert max(often for _, often in released.times(0)) >= 5


def test_devices_that_are_run_as_one_are_each_seen_alone() -> None:
    stream = (1, 0, 0, 1)
    (sights,) = History(loud_job(4)).sights(stream, 40_500, seeded_generator(3))
    assert sights.trials == 40_500
    # Of hundreds of thousands of bits a few are turned round.
    wrong = sum(
        often
        for epoch, value in enumerate(stream)
        for seen, often in sights.times(epoch)
        if seen != (((value,), 1),)
    )
    assert wrong < 10
