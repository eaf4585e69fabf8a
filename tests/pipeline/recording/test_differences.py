"""Test the comparison of two jobs: same and differing fields, and the size of differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate, Published
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.level_estimates import LevelEstimates
from dpstream.aggregators.range_estimates import RangeEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.recording.differences import (
    Difference,
    IncomparableError,
    check_comparable,
    compare,
    differences,
)
from dpstream.pipeline.results.coverage import EpochResult
from dpstream.pipeline.stages.epoch_log import EpochLog, LostEpochError
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.set_jobs import Run, held_by, job_text

USERS = 1_000
MODES = held_by([("walk", 700), ("bus", 300)])
DOMAIN = "domain: [walk, bus, car]"
SD = 4.0
Deploy = Callable[..., Run]


def result(estimate: Published | None = None, epoch: int = 1, **changed: Any) -> EpochResult:
    return replace(
        EpochResult(epoch, WindowStatus.RELEASED, 90, 100, b"counts", estimate),
        **changed,
    )


def single(value: float | None, deviation: float | None = SD) -> Estimate:
    return Estimate(value, deviation, None, None, 90, 100)


def items(*values: float, deviation: float = SD) -> ItemEstimates:
    return ItemEstimates(np.array(values), deviation, 2 * deviation, 90, 100)


def ranges(*values: float) -> RangeEstimates:
    return RangeEstimates(np.array(values), SD, 2 * SD, 90, 100, level_variances=(1.0, 1.0))


def levels(*values: float) -> LevelEstimates:
    return LevelEstimates(
        np.array(values),
        SD,
        2 * SD,
        90,
        100,
        levels=Levels(4, (2, 2)),
        noise_variance=1.0,
        rooted=False,
        absence_error=0.0,
    )


def heavy_hitters(*pairs: tuple[int, float]) -> HeavyHitters:
    numbers, values = zip(*pairs, strict=True)
    return HeavyHitters(np.array(numbers), np.array(values), SD, 2 * SD, 30.0, 90, 100)


PUBLISHED = [
    single(5.0),
    items(1, 2),
    ranges(1, 2, 3, 4),
    levels(1, 2, 3, 4),
    heavy_hitters((7, 9.0)),
]


@pytest.mark.parametrize("published", [None, *PUBLISHED], ids=lambda each: type(each).__name__)
def test_identical_results_have_no_differences(published: Published | None) -> None:
    difference = compare(result(published), result(published))
    assert not difference.differs
    assert difference.deviations == (None if published is None else 0.0)
    assert (difference.item, difference.unmatched) == (None, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_status", WindowStatus.EMPTY),
        ("contributors", 89),
        ("population", 101),
        ("counts", b"others"),
    ],
)
def test_differing_integers_are_reported_by_name(name: str, value: Any) -> None:
    difference = compare(result(), result(**{name: value}))
    assert difference == Difference(1, integers=(name,))
    assert difference.differs


@pytest.mark.parametrize(
    ("one", "other", "deviations", "item", "unmatched"),
    [
        (single(10), single(16), 1.5, None, 0),
        (items(10, 20, 30), items(11, 10, 32), 2.5, 2, 0),
        (ranges(1, 2, 3, 4), ranges(1, 2, 3, 6), 0.5, 4, 0),
        (heavy_hitters((7, 90), (3, 50)), heavy_hitters((3, 48), (7, 91)), 0.5, 3, 0),
        (heavy_hitters((7, 90), (3, 50)), heavy_hitters((7, 94), (5, 60)), 1.0, 7, 2),
        (heavy_hitters((7, 90)), heavy_hitters((5, 60)), None, None, 2),
        (single(10), None, None, None, 1),
        (single(10), single(None), None, None, 1),
        (single(10, 0.0), single(11, 0.0), None, None, 0),
    ],
)
def test_largest_difference_is_stated_in_standard_deviations(
    one: Published, other: Published, deviations: float | None, item: int | None, unmatched: int
) -> None:
    for pair in ((one, other), (other, one)):
        difference = compare(*map(result, pair))
        assert (difference.estimates, difference.integers) == (True, ())
        assert difference.deviations == deviations
        assert (difference.item, difference.unmatched) == (item, unmatched)


def test_estimates_differ_when_only_standard_errors_differ() -> None:
    difference = compare(result(items(1, 2)), result(items(1, 2, deviation=2 * SD)))
    assert difference.differs
    assert difference.deviations == 0.0


def test_epochs_are_compared_in_order_and_unmatched_epochs_are_reported() -> None:
    one = [result(epoch=epoch) for epoch in (2, 3, 5)]
    other = [result(epoch=epoch, contributors=89 + (epoch < 5)) for epoch in (1, 2, 5, 6, 7)]
    assert list(differences(one, other)) == [
        Difference(1, only=1),
        Difference(2),
        Difference(3, only=0),
        Difference(5, integers=("contributors",)),
        Difference(6, only=1),
        Difference(7, only=1),
    ]
    assert all(each.differs for each in differences(one, []))
    assert list(differences([], [])) == []


def deployed(protocol: str, parameters: str, name: str = "sets") -> DeployedJob:
    text = job_text(protocol, parameters, minimum=100_000, name=name)
    return deploy_job(parse_job(text), deployed_at=0)


def test_only_jobs_with_the_same_domain_are_compared() -> None:
    job = deployed("count_min", DOMAIN, "one")
    check_comparable(job, deployed("count_min", f"{DOMAIN}, items: 2"))
    numbers = "domain: {low: 0, high: 64, buckets: 32}"
    check_comparable(deployed("count_min", numbers), deployed("count_min", numbers))
    with pytest.raises(IncomparableError, match=r"one and sets .* count_min and hadamard"):
        check_comparable(job, deployed("hadamard", DOMAIN))
    for other in ("domain: [walk, bus, tram]", "domain: [walk, bus]", numbers):
        with pytest.raises(IncomparableError, match=r"one and sets .* with the same domain"):
            check_comparable(job, deployed("count_min", other))


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(capsys)


@pytest.fixture
def deploy(dpstream: Commands, cluster: MemoryCluster, tmp_path: Path) -> Deploy:
    """Deploy a job; equal values give equal reports, since all runs use the same randomness."""

    def deploy_named(name: str, parameters: str = DOMAIN, protocol: str = "count_min") -> Run:
        path = tmp_path / f"{name}.yaml"
        path.write_text(job_text(protocol, parameters, minimum=USERS, name=name))
        outcome = dpstream("deploy", path)
        assert outcome.code == 0, outcome.errors
        return Run(cluster, name)

    return deploy_named


def test_diff_explains_incomparable_jobs(deploy: Deploy, dpstream: Commands) -> None:
    run = deploy("a")
    deploy("b")
    deploy("tuples", protocol="hadamard")
    for other in ("b", "a"):
        outcome = dpstream("diff", "a", other)
        assert (outcome.code, outcome.output) == (1, "")
        assert f"epoch 1 is not yet published by a or {other}" in outcome.errors
    run.report(1, MODES)
    wrong: list[tuple[list[object], int, str]] = [
        (["tuples"], 2, "protocols are count_min and hadamard"),
        (["c"], 1, "job c is not deployed"),
        (["b", "--epochs", "3"], 2, "such as 3..7"),
        (["b", "--epochs", "1..2"], 1, "epoch 2 is not yet published by a or b"),
        (["b", "--epochs", "1..4"], 1, "epoch 4 is out of range: the last epoch of job a is 3"),
        (["b", "--plot", "x.docx"], 2, "--plot x.docx"),
    ]
    for arguments, code, message in wrong:
        outcome = dpstream("diff", "a", *arguments)
        assert (outcome.code, outcome.output) == (code, ""), arguments
        assert message in outcome.errors
    assert dpstream("diff", "a", "b").code == 1


def test_published_epoch_requires_its_manifest_and_partial(
    deploy: Deploy, cluster: MemoryCluster
) -> None:
    run = deploy("a")
    run.report(1, MODES)
    run.driver.log.delete_below(Role.PARTIALS, 0, run.driver.log.end(Role.PARTIALS, 0))
    job = replace_start(run.job, run.driver.log.end(Role.PARTIALS, 0))
    log = EpochLog(job, published=True)
    with pytest.raises(LostEpochError, match="epoch 1 of job a is published, but its manifest or"):
        next(log.read(run.driver.run))


def replace_start(job: DeployedJob, partials: int) -> DeployedJob:
    return job.model_copy(
        update={"start_offsets": {**job.start_offsets, Role.PARTIALS: (partials,)}}
    )
