"""What is shown of a domain too large to list: the items most held, by their names."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.devices.item_log import ItemLog, load_value_log
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.operations.up.curves import curves_of, draw_rows
from dpstream.pipeline.operations.up.outcome import Outcome, write_csv
from dpstream.pipeline.operations.up.progress import Progress
from dpstream.pipeline.operations.up.screen import line_of
from dpstream.pipeline.results.asked import Asked, make_query
from dpstream.pipeline.results.kinds.registry import kind_of
from dpstream.pipeline.results.questions import Query
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role
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
        rows = list(
            csv.DictReader(dpstream("estimates", "sets", "--format", "csv").output.splitlines())
        )
        assert [row["item"] for row in rows] == ["tea", "milk", ""]
        assert [row["fate"] for row in rows] == ["released", "released", "too small"]
        (top,) = (
            json.loads(line)["items"]
            for line in dpstream("estimates", "sets", "--top", 1, "--json").output.splitlines()[:1]
        )
        assert [answer["name"] for answer in top] == ["tea"]
        picture = tmp_path / "sets.png"
        assert dpstream("estimates", "sets", "--plot", picture).code == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        wrong = dpstream("estimates", "sets", "--item", "tea")
        assert (wrong.code, wrong.errors.count("\n")) == (2, 1)
        assert "dpstream query knows all, with --item" in wrong.errors

    def test_ranges_and_quantiles_of_a_tree_are_for_query(self) -> None:
        domain = deployed("domain: {low: 0, high: 64, buckets: 32}").domain
        with pytest.raises(
            QueryError,
            match="ranges and boxes are not answered from what is",
        ):
            make_query(domain, Asked(ranges=["0:10"]))
        with pytest.raises(QueryError, match="published: ask dpstream query instead"):
            make_query(domain, Asked(quantiles=["0.5"]))
        leaves = ItemEstimates(np.arange(32.0), 5.0, 9.8, USERS, USERS)
        asked = make_query(domain, Asked(["2:4"]))
        assert asked is not None
        assert [answer.name for answer in asked.answers(leaves)] == ["2:4"]
        largest = make_query(domain, Asked(top=1))
        assert largest is not None
        assert [(each.name, each.value) for each in largest.answers(leaves)] == [("62:64", 31)]


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

    def test_a_headline_is_the_largest_item(self, items: ItemLog) -> None:
        job = deployed()
        first, second, third = records(job)
        kind, truths = kind_of(job.domain), items.truths(job.domain)
        known = truths.of(third.epoch, third.estimate)
        assert str(kind.headline(job.domain, first)) == "tea: 990 (95 %: 970 to 1,010)"
        assert kind.headline(job.domain, third, known).truth == 600
        assert str(kind.headline(job.domain, second)) == "no estimate"

    def test_up_shows_and_keeps_the_items_found(self, items: ItemLog, tmp_path: Path) -> None:
        job = deployed()
        progress = Progress(job, items.truths(job.domain))
        for each in records(job):
            progress.apply(Role.ESTIMATES, each.to_bytes())
        rows = progress.rows()
        assert [row.headline.name for row in rows] == ["tea", "", "milk"]
        assert rows[0].notes == ["tea, the largest"]
        assert rows[1].notes == ["too small"]
        assert "estimate 990  95 % 970 to 1,010  truth (demo: not private) 1,000" in line_of(
            rows[0]
        )
        outcome = Outcome(job, rows, users=USERS, seconds=1.0, reports=0)
        errors = [-10, 10, 100, 80, 70]
        assert outcome.rmse == pytest.approx(float(np.sqrt(np.mean(np.square(errors)))))
        assert outcome.covered == (2, 5)
        body = outcome.to_json()
        assert body["epochs"][2]["labels"] == ["milk", "beer", "tea"]
        assert body["epochs"][2]["truth"] == [600, 0, 0]
        assert "labels" not in body
        write_csv(job, rows, tmp_path / "rows.csv")
        written = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text())))
        assert [(row["epoch"], row["item"]) for row in written] == [
            *(("1", "tea"), ("1", "milk"), ("3", "milk"), ("3", "beer"), ("3", "tea"))
        ]
        (axes,) = draw_rows(job, rows).axes
        legend = axes.get_legend()
        assert legend is not None
        assert {text.get_text() for text in legend.get_texts()} == {"milk", "tea", "beer"}

    def test_a_curve_has_gaps_where_its_item_was_not_found(self) -> None:
        job = deployed()
        known = records(job)
        drawn = Query(job.domain, kind_of(job.domain).overview(known, 2))
        curves = {curve.name: curve for curve in curves_of(drawn, known)}
        assert np.nan_to_num(curves["milk"].values, nan=-1).tolist() == [610, -1, 700]
        assert np.nan_to_num(curves["tea"].values, nan=-1).tolist() == [990, -1, 70]
        assert len(curves) == 2


def test_norm_sub_needs_all_items() -> None:
    with pytest.raises(QueryError, match="--norm-sub: only the items most held are published"):
        make_query(deployed().domain, Asked(), norm_sub=True)
    domain = deployed("domain: [walk, bus, car]").domain
    asked = make_query(domain, Asked(["bus"]), norm_sub=True)
    assert asked is not None
    (bus,) = asked.answers(ItemEstimates(np.array([5.0, 20.0, -5.0]), 5.0, 9.8, 20, 20))
    assert (bus.name, bus.value) == ("bus", 20)
    assert bus.norm_sub is not None
