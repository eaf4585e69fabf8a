"""Test shares, ratios, differences and longer periods of published estimates."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from pyarrow import parquet

from dpstream.aggregators.estimate import NORMAL_95, Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.results.derived_queries import PairQuery, ShareQuery, derived_query
from dpstream.pipeline.results.periods import Aggregate, Periods
from dpstream.pipeline.results.query_options import QueryOptions, default_query
from dpstream.pipeline.results.roll_ups import RollUpError
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_jobs import new_job

PEOPLE = 1_000
ITEMS = ["walk", "bus", "car", "bus/car", "a+b"]


def job_of(protocol: str = "hadamard_values", count: int = 8, **parameters: Any) -> DeployedJob:
    values = {"epsilon": 4.0, "domain": ITEMS, **parameters}
    if protocol == "hadamard_values":
        values.setdefault("max_changes", 2)
    job = new_job("modes", protocol, values, count=count, minimum=50)
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


JOB = job_of()


def record(
    epoch: int,
    *values: float,
    deviation: float = 10.0,
    people: int = PEOPLE,
    job: DeployedJob = JOB,
) -> EstimateRecord:
    estimate = ItemEstimates(np.array(values), deviation, NORMAL_95 * deviation, people, people)
    status = WindowStatus.RELEASED
    return EstimateRecord(
        job.deployment, epoch, status, epoch, people, people, estimate, {"epsilon": 4.0}
    )


FULL = record(1, 210.0, 169.0, 300.0, 2.0, 25.0)


def query_of(job: DeployedJob = JOB, **options: Any) -> ShareQuery | PairQuery:
    found = derived_query(job, default_query(job.domain), **options)
    assert found is not None
    return found


def test_ratio_divides_items_and_sums_of_items_by_name() -> None:
    ratios = ["bus/car", "walk/bus+car", "a+b/car", "walk/walk+bus"]
    found = {each.name: each for each in query_of(ratios=ratios).answers_of(FULL)}
    assert found["bus/car"].value == pytest.approx(169 / 300)
    assert found["walk/bus+car"].value == pytest.approx(210 / 469)
    assert found["a+b/car"].value == pytest.approx(25 / 300)
    # The variance of a part is common to the part and the sum that includes it.
    part = found["walk/walk+bus"]
    assert part.value == pytest.approx(210 / 379)
    s = 210 / 379
    assert part.ci95_high - part.ci95_low == pytest.approx(
        2 * NORMAL_95 * 10 / 379 * math.sqrt((1 - s) ** 2 + s**2), rel=0.01
    )


def test_ratio_by_an_item_that_may_have_no_users_is_refused_in_its_row_alone() -> None:
    query = query_of(ratios=["walk/bus/car", "walk/car", "walk/a+b"])
    assert isinstance(query, PairQuery)
    refused, ratio, weak = query.answers_of(FULL)
    assert refused.to_json() == {
        "name": "walk/bus/car",
        "refused": "the denominator is not distinguishable from 0",
    }
    assert (ratio.flags, weak.flags) == ((), ("weak_denominator",))
    body = query.to_json(FULL)
    assert (body["statistic"], len(body["ratios"])) == ("ratio", 3)
    first, second, third = query.sentences(FULL)
    assert first == "walk/bus/car: no ratio: the denominator is not distinguishable from 0."
    assert second == "walk/car: the ratio is 0.7, between 0.623 and 0.783."
    assert third.endswith("so the interval may hold less often than stated.")


def test_difference_is_stated_as_points_or_as_no_detectable_difference() -> None:
    (difference,) = query_of(differences=["walk,bus"]).answers_of(FULL)
    width = NORMAL_95 * math.sqrt(200) / PEOPLE
    ends = difference.ci95_low, difference.ci95_high
    assert (difference.value, *ends) == pytest.approx((0.041, 0.041 - width, 0.041 + width))
    sentences = {
        "walk,bus": "4.1 points more of walk than of bus (21.0 and 16.9 %), between 1.3 and 6.9 "
        "points.",
        "bus,walk": "4.1 points more of walk than of bus (21.0 and 16.9 %), between 1.3 and 6.9 "
        "points.",
        "a+b,bus/car": "No detectable difference: it lies between -0.5 and +5.1 points.",
    }
    for pair, sentence in sentences.items():
        query = query_of(differences=[pair])
        assert isinstance(query, PairQuery)
        assert list(query.sentences(FULL)) == [sentence]


def test_shares_are_cut_to_0_and_1_and_simultaneous_intervals_are_wider() -> None:
    query = ShareQuery(JOB.domain, default_query(JOB.domain).counts_query)
    low = record(1, 5.0, 995.0, 300.0, 2.0, 25.0)
    by_name = {each.name: each for each in query.answers_of(low)}
    assert by_name["bus"].ci95_high == 1.0
    assert by_name["car"].value == 0.3
    options = QueryOptions(items=["walk"])
    counts_query = options.counts_query(JOB.domain)
    assert counts_query is not None
    (walk,) = ShareQuery(JOB.domain, counts_query).answers_of(low)
    assert (walk.value, walk.ci95_low) == (0.005, 0.0)
    pairs = ["walk/car", "bus/car"]
    alone, together = (
        query_of(ratios=pairs, simultaneous=each).answers_of(FULL)[0] for each in (False, True)
    )
    assert together.ci95_low < alone.ci95_low < alone.ci95_high < together.ci95_high


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        (JOB, {"ratios": ["walk"]}, "--ratio: got 'walk'; expected two items, such as A/B"),
        (JOB, {"ratios": ["walk/buss"]}, "did you mean 'bus'"),
        (JOB, {"ratios": ["walk/bus"], "shares": True}, "mutually exclusive"),
        (JOB, {"simultaneous": True}, "--simultaneous requires --share, --ratio or"),
        (
            job_of("sampled_response", reports=1, domain=None),
            {"ratios": ["a/b"]},
            "requires a job over a fixed list of items",
        ),
        (
            job_of("sampled_response", reports=1, items=2),
            {"differences": ["walk,bus"]},
            "do not show how the errors of two items are correlated",
        ),
    ],
)
def test_requests_that_published_data_cannot_answer_are_rejected(
    job: DeployedJob, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        query_of(job, **options)


@pytest.mark.parametrize("complete", [True, False])
def test_intervals_from_simulated_devices_hold(complete: bool) -> None:
    """Answers of sampled_response are so correlated that intervals without it hold less often."""
    job = job_of("sampled_response", 2, reports=1, domain=["a", "b", "c"], complete=complete)
    ratio = query_of(job, ratios=["a/b"])
    share = query_of(job, ratios=["a/a+b+c"])
    difference = query_of(job, differences=["a,b"])
    rng, truth = seeded_generator(5), np.repeat([1, 2, 3], [500, 300, 200])
    held = np.zeros((3, 2), int)
    for _ in range(600):
        devices, aggregator = job.randomizer(), job.aggregator()
        devices.enroll(PEOPLE, rng)
        aggregator.add(1, written_out(devices.report(1, truth, None, rng)), None)
        estimate = aggregator.estimate(1, Participation.constant(2, PEOPLE))
        published = EstimateRecord(
            bytes(16), 1, WindowStatus.RELEASED, 1, PEOPLE // 2, PEOPLE, estimate, {}
        )
        for row, (query, true) in enumerate(((ratio, 5 / 3), (share, 0.5), (difference, 0.2))):
            (answer,) = query.answers_of(published)
            if answer.refused is None:
                held[row] += 1, answer.ci95_low <= true <= answer.ci95_high
    coverage = held[:, 1] / held[:, 0]
    # All items have the error of the least accurate one, so intervals are rather too wide.
    assert (coverage >= 0.93).all()
    assert (coverage[[0, 2]] <= 0.985).all()


JOB_FILE = """
name: modes
protocol: hadamard_values
parameters: {epsilon: 4, max_changes: 2, domain: [walk, bus, car]}
epochs: {count: 8, start: 2024-01-01, length: P7D}
shuffle: {minimum: 50}
"""


@pytest.fixture
def modes(dpstream: Commands, cluster: MemoryCluster, tmp_path: Path) -> str:
    """Deploy a job over items with four published epochs; return its name."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB_FILE)
    assert dpstream("deploy", path).code == 0
    job = find_deployed(cast(Cluster, cluster), "modes")
    for epoch in range(1, 5):
        published = record(epoch, 210.0, 169.0, 8.0 * epoch, job=job)
        cluster.append(job.topic(Role.ESTIMATES), published.to_bytes())
    return job.name


def test_files_have_the_statistic_and_the_reason_in_place_of_numbers(
    dpstream: Commands, modes: str, tmp_path: Path
) -> None:
    rows = [
        *csv.DictReader(io.StringIO(dpstream("estimates", modes, "--share", "--csv", "-").output))
    ]
    assert [(row["epoch"], row["item"], row["statistic"]) for row in rows[:3]] == [
        ("1", "walk", "share"),
        ("1", "bus", "share"),
        ("1", "car", "share"),
    ]
    assert float(rows[0]["estimate"]) == 0.21
    asked = ("estimates", modes, "--ratio", "walk/car", "--ratio", "bus/walk")
    lines = dpstream(*asked, "--jsonl", "-").output.splitlines()
    refused, ratio = map(json.loads, lines[:2])
    assert (refused["item"], refused["estimate"]) == ("walk/car", None)
    assert refused["refused"] == "the denominator is not distinguishable from 0"
    assert (ratio["refused"], ratio["flags"]) == (None, [])
    assert ratio["estimate"] == pytest.approx(169 / 210)
    weak = json.loads(lines[4])
    assert (weak["item"], weak["epoch"], weak["flags"]) == ("walk/car", 3, ["weak_denominator"])
    path = tmp_path / "ratios.parquet"
    assert dpstream(*asked, "--parquet", path).code == 0
    table = parquet.read_table(path)
    assert table.column("statistic").to_pylist() == ["ratio"] * 8
    assert table.column("refused").to_pylist()[::2] == [refused["refused"]] * 2 + [None] * 2
    first = dpstream(*asked, "--json").output.splitlines()[0]
    assert json.loads(first)["ratios"][0] == {"name": "walk/car", "refused": refused["refused"]}


def test_tables_end_with_a_sentence_on_the_latest_epoch(dpstream: Commands, modes: str) -> None:
    output = dpstream("estimates", modes, "--difference", "walk,bus").output
    assert "points" in output.splitlines()[0]
    assert output.endswith(
        "The week of January 22, 2024:\n4.1 points more of walk than of bus (21.0 and 16.9 %), "
        "between 1.3 and 6.9 points.\n"
    )
    table = dpstream("estimates", modes, "--ratio", "walk/car").output
    assert "refused" in table.splitlines()[1]
    assert "weak_denominator" in table.splitlines()[3]
    assert "21.0" in dpstream("estimates", modes, "--share").output


def test_longer_periods_show_the_last_epoch_and_refuse_sums_of_users(
    dpstream: Commands, modes: str
) -> None:
    asked = ("estimates", modes, "--interval", 2)
    last = dpstream(*asked, "--aggregate", "last", "--share", "--csv", "-").output
    assert [line.split(",")[0] for line in last.splitlines()[1::3]] == ["2", "4"]
    assert "the last epoch of every 2 epochs" in dpstream(*asked, "--aggregate", "last").output
    refused = dpstream(*asked, "--aggregate", "sum")
    assert refused.code == 1
    assert "Declare a measure {type: active, within: 2}" in refused.errors
    for options, message in (
        (["--aggregate", "last"], "--aggregate requires --interval"),
        (["--ratio", "walk/bus", "--change", 1], "--change applies to numbers of users and shares"),
        (["--share", "--plot", "x.png"], "--plot draws numbers of users"),
        (["--difference", "walk,bus", "--smoothed"], "use the published estimates"),
    ):
        wrong = dpstream("estimates", modes, *options)
        assert (wrong.code, message in wrong.errors) == (2, True)


def test_ratio_over_a_longer_period_divides_the_means() -> None:
    job = job_of("sampled_response", reports=1)
    records = [record(1, 100.0, 100.0, 0, 0, 0), record(2, 300.0, 200.0, 0, 0, 0)]
    (mean,) = Periods(job, 2).records(records)
    (ratio,) = query_of(job, ratios=["walk/bus"]).answers_of(mean)
    assert ratio.value == pytest.approx(400 / 300)
    with pytest.raises(RollUpError, match="a sum over 2 epochs would count the same ones again"):
        Periods(job, 2, aggregate=Aggregate.sum)


def test_change_of_a_share_differs_from_that_of_a_count_if_users_join() -> None:
    job = job_of("sampled_response", reports=1, domain=["walk"])
    records = [record(1, 100.0, job=job), record(2, 300.0, people=2 * PEOPLE, job=job)]
    (change,) = Periods(job, change=1, of_shares=True).records(records)
    query = ShareQuery(job.domain, default_query(job.domain).counts_query, signed=True)
    (answer,) = query.answers_of(change)
    assert answer.value == pytest.approx(0.05)
    (of_counts,) = Periods(job, change=1).records(records)
    deviation = of_counts.summary.standard_error
    assert deviation is not None
    # The covariance of the two counts is (v + w - d^2) / 2.
    common = (200 - deviation**2) / 2
    variance = 100 / PEOPLE**2 + 100 / (2 * PEOPLE) ** 2 - 2 * common / (2 * PEOPLE**2)
    assert answer.standard_error == pytest.approx(math.sqrt(variance))
    fewer = [record(1, 300.0, job=job), record(2, 100.0, job=job)]
    (loss,) = Periods(job, change=1, of_shares=True).records(fewer)
    assert query.answers_of(loss)[0].value == pytest.approx(-0.2)
