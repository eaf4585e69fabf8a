"""Test counts of independent epochs, and the latest numbers of a publisher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dpstream.aggregators.cell_window import CellWindow
from dpstream.aggregators.estimate import Estimate, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job, validate
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.workers.worker_facts import PublishedNumbers
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.results.counts_queries import Items, Top
from dpstream.pipeline.results.epoch_counts import (
    EpochCounts,
    NoCountsError,
    composed,
    counts_of,
    read_counts,
    read_latest,
)
from dpstream.pipeline.results.query_options import evaluate
from dpstream.pipeline.results.watched_estimates import WatchedEstimates
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError
from dpstream.topics.manifests import WindowStatus
from tests.support.memory_cluster import MemoryCluster
from tests.support.set_jobs import Run, held_by, job_text, within

USERS = 500
MODES = held_by([("walk", 350), ("bus", 150)])
Start = Callable[..., Run]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryCluster:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    return MemoryCluster()


@pytest.fixture
def start(cluster: MemoryCluster) -> Start:
    def start_job(
        protocol: str = "count_min", parameters: str = "domain: [walk, bus, car]", **options: Any
    ) -> Run:
        job = parse_job(job_text(protocol, parameters, **{"minimum": USERS, **options}))
        deploy(cast(Cluster, cluster), job, deployment=bytes(16), now=0)
        return Run(cluster, "sets")

    return start_job


def deployed(parameters: str, protocol: str = "count_min", epochs: int = 3) -> DeployedJob:
    text = job_text(protocol, parameters, minimum=100_000, epochs=epochs)
    return deploy_job(parse_job(text), deployed_at=0)


def test_only_the_counts_of_the_requested_epoch_are_read(start: Start) -> None:
    run = start(epochs=8)
    for epoch in range(1, 6):
        run.report(epoch, MODES if epoch != 3 else MODES[::-1])
    counts = run.driver.run(read_counts(run.job, 3))
    assert (counts.epochs, counts.population, counts.suppressed) == ((3,), USERS, ())
    assert isinstance(counts.counts, CellWindow)
    (bus,) = evaluate(counts, run.job.domain, Items((2,))).answers
    assert bus.standard_error is not None
    assert within(bus.value, 150, bus.standard_error)
    latest = run.driver.run(read_latest(run.job))
    assert latest.epochs == (5,)


@pytest.mark.parametrize("protocol", ["count_min", "hadamard"])
def test_sum_over_epochs_adds_estimates_and_variances(start: Start, protocol: str) -> None:
    run = start(protocol, epochs=4)
    values_of_epochs = {1: MODES, 2: MODES[:450], 3: MODES[100:]}
    for epoch, some in values_of_epochs.items():
        run.report(epoch, [*some, *[""] * (USERS - len(some))])
    single = [run.driver.run(read_counts(run.job, epoch)) for epoch in values_of_epochs]
    total = run.driver.run(read_counts(run.job, 1, 3))
    assert (total.epochs, total.contributors) == ((1, 2, 3), 3 * USERS)

    def values(counts: EpochCounts) -> tuple[list[float], float]:
        answers = evaluate(counts, run.job.domain, Items()).answers
        (deviation,) = {answer.standard_error for answer in answers}
        assert deviation is not None
        return [answer.value for answer in answers], deviation

    sums, deviation = values(total)
    assert sums == pytest.approx(np.sum([values(each)[0] for each in single], axis=0).tolist())
    assert deviation == pytest.approx(np.hypot.reduce([values(each)[1] for each in single]))
    for value, ground_truth in zip(sums, (350 + 350 + 250, 150 + 100 + 150, 0), strict=True):
        assert within(value, ground_truth, deviation)


def test_loss_of_a_sum_over_several_horizons_is_composed(start: Start) -> None:
    text = job_text("count_min", "domain: [walk, bus, car]", minimum=USERS, epochs=2)
    job = parse_job(text.replace("{count: 2}", "{count: 2, renew: true}"))
    counts = composed(deploy_job(job, deployed_at=0), 3)
    assert counts.exact
    of_three = parse_job(job_text("count_min", "domain: [walk, bus, car]", minimum=USERS))
    law: Any = of_three.calibrate()
    assert counts.epsilon == pytest.approx(law.stream_epsilon, rel=1e-9)


def test_loss_of_a_sum_is_the_loss_of_the_horizon_if_mechanisms_differ() -> None:
    job = deployed("domain: [walk, bus, car]")
    body = {**job.constants, "delta": job.constants["delta"] / 2}
    other = validate(DeployedJob, {**job.model_dump(mode="json"), "constants": body})
    assert composed(job, 2).exact
    charged = composed(other, 2)
    assert not charged.exact
    assert charged.epsilon == job.constants["stream_epsilon"] > composed(job, 2).epsilon


def test_suppressed_epochs_cannot_be_queried(start: Start) -> None:
    run = start()
    run.report(1, MODES[:40])
    (counts,) = (counts_of(run.job, epoch) for epoch in EpochLog(run.job).read(run.driver.run))
    with pytest.raises(QueryError, match=r"epoch 1 is suppressed \(fewer than 500 devices\)"):
        evaluate(counts, run.job.domain, Top(1))
    with pytest.raises(NoCountsError, match="fewer than 500 devices"):
        run.driver.run(read_latest(run.job))


def job_of(protocol: str, parameters: str) -> DeployedJob:
    text = f"name: a\nprotocol: {protocol}\nparameters: {{{parameters}}}\nepochs: {{count: 9}}\n"
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


def labels(count: int) -> str:
    return f"[{', '.join(f'item {number}' for number in range(count))}]"


def items_job(count: int) -> DeployedJob:
    return job_of("hadamard_values", f"epsilon: 8, max_changes: 1, domain: {labels(count)}")


def record(epoch: int, estimate: Published | None) -> EstimateRecord:
    return EstimateRecord(bytes(16), epoch, WindowStatus.RELEASED, 0, 90, 100, estimate, {})


def count(value: float, *flags: str) -> Estimate:
    return Estimate.around(value, 10.0, 19.6, 70, 100, flags)


def test_estimates_from_another_domain_are_ignored() -> None:
    watched = WatchedEstimates(items_job(3))
    watched.next(record(1, ItemEstimates(np.zeros(5), 5.0, 9.8, 70, 100)))
    watched.next(record(2, count(50.0)))
    assert watched.latest == PublishedNumbers(2, ())
