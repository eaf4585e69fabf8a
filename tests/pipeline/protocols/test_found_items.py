"""What is shown of a domain too large to list: the items most held, by their names."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.devices.item_log import ItemLog, load_value_log
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate
from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster
from tests.support.set_jobs import Run, job_text

STRINGS = "domain: {strings: {bytes: 4}}, items: 2"
USERS = 1_000
HELD = [["tea", "milk"]] * 600 + [["tea"]] * 400


@pytest.fixture
def dpstream(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(capsys)


@cache
def deployed(parameters: str = STRINGS, protocol: str = "count_min") -> DeployedJob:
    text = job_text(protocol, parameters, minimum=100_000)
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


def record(epoch: int, job: DeployedJob, counts: dict[str, float] | None) -> EstimateRecord:
    estimate = None
    if counts is not None:
        numbers, _ = job.domain.parse(list(counts))
        values = np.array(list(counts.values()))
        estimate = FoundItems(numbers, values, 10.0, 19.6, 55.0, USERS, USERS)
    fate = Fate.TOO_SMALL if estimate is None else Fate.RELEASED
    return EstimateRecord(bytes(16), epoch, fate, 0, USERS, USERS, estimate, {"epsilon": 1.0})


def records(job: DeployedJob) -> list[EstimateRecord]:
    return [
        record(1, job, {"tea": 990.0, "milk": 610.0}),
        record(2, job, None),
        record(3, job, {"milk": 700.0, "beer": 80.0, "tea": 70.0}),
    ]


@pytest.fixture
def items(tmp_path: Path) -> ItemLog:
    path = tmp_path / "items.csv"
    rows = [f"u{user},{epoch},tea" for user in range(USERS) for epoch in (1, 2)]
    rows += [f"u{user},{epoch},milk" for user in range(600) for epoch in (1, 3)]
    path.write_text("\n".join(["user,epoch,value", *rows, ""]))
    log = load_value_log(path, domain=deployed().domain, last_epoch=3)
    assert isinstance(log, ItemLog)
    return log


class TestEstimates:
    def test_are_the_largest_items_by_their_names(
        self, dpstream: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
        cluster = use_memory_cluster(monkeypatch)
        job_file = tmp_path / "sets.yaml"
        parameters = f"{STRINGS}, messages_per_user: 4000"
        job_file.write_text(job_text("count_min", parameters, minimum=USERS))
        assert dpstream("deploy", job_file).code == 0
        run = Run(cluster, "sets")
        run.report(1, HELD)
        run.report(2, HELD[:10])

        table = dpstream("estimates", "sets").output.splitlines()
        assert table[0].split()[:3] == ["epoch", "item", "estimate"]
        assert table[1].split()[:2] == ["1", "tea"]
        assert table[2].split()[0] == "milk"
        assert table[-1].split() == ["2", "-", "-", "-", "-", "-", "too", "small"]
        assert max(map(len, table)) <= 80
        first, second = (
            json.loads(line) for line in dpstream("estimates", "sets", "--json").output.splitlines()
        )
        assert first["estimate"]["labels"] == ["tea", "milk"]
        assert second["estimate"] is None
        wrong = dpstream("estimates", "sets", "--item", "tea")
        assert (wrong.code, wrong.errors.count("\n")) == (2, 1)
        assert "dpstream query knows all, with --item" in wrong.errors


class TestBesideTheTruth:
    def test_the_truth_is_counted_of_what_was_found_only(self, items: ItemLog) -> None:
        job = deployed()
        truths = items.truths(job.domain)
        assert truths.last_epoch == 3
        found = [np.asarray(truths.of(each.epoch, each.estimate)).tolist() for each in records(job)]
        assert found == [[1000, 600], [], [600, 0, 0]]

    def test_of_listed_items_it_is_the_truth_of_all(self, tmp_path: Path) -> None:
        path = tmp_path / "few.csv"
        path.write_text("user,epoch,value\na,1,car\nb,1,car\nb,2,walk\n")
        domain = deployed("domain: [walk, bus, car]").domain
        log = load_value_log(path, domain=domain, last_epoch=2)
        assert isinstance(log, ItemLog)
        estimate = ItemEstimates(np.zeros(3), 1.0, 2.0, 2, 2)
        truths = log.truths(domain)
        found = [np.asarray(truths.of(epoch, estimate)).tolist() for epoch in (1, 2)]
        assert found == [[0, 0, 2], [1, 0, 0]] == log.truth(domain).tolist()
