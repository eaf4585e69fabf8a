"""Attributes with a value each, counted all at once: a domain that is a union of small ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.fragments import noise_variance
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.randomizers.fragments import FragmentsParameters
from dpstream.randomizers.fragments.calibration import calibrate
from tests.support.commands import Commands
from tests.support.set_jobs import job_text

ATTRIBUTES = "{attributes: {region: [north, south], age: [17, old, '']}}"
GOOD = ATTRIBUTES.replace(", ''", "")
LABELS = ("age=17", "age=old", "region=north", "region=south")


def text(domain: str, protocol: str = "fragments") -> str:
    return job_text(protocol, f"domain: {domain}, items: 2", minimum=200)


@pytest.mark.parametrize("protocol", ["fragments", "count_min", "single_message"])
def test_values_of_attributes_are_items(protocol: str) -> None:
    domain = parse_job(text(GOOD, protocol)).domain
    assert domain.items == LABELS
    items, problems = domain.parse(["region=south", "age=17", "", "region=17"])
    assert items.tolist() == [4, 1, 0, 0]
    assert list(problems) == [3]


def test_items_stay_where_they_are_in_the_record_of_a_job() -> None:
    deployed = deploy_job(parse_job(text(GOOD)), deployed_at=0)
    read = DeployedJob.from_bytes(deployed.to_bytes())
    assert read.domain.items == LABELS
    assert read.fingerprint == deployed.fingerprint


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (ATTRIBUTES, "'age' needs values, each of them once, and none empty"),
        ("{attributes: {}}", "attributes are none: name at least one"),
        ("{attributes: {'a=b': [c]}}", "'a=b' is no name: give one without '='"),
        ("{attributes: {a: b}}", '"b" is not allowed: give {NAME: \\[VALUE, ...\\], ...}'),
        ("{attributes: [a]}", "is not allowed: give {NAME: \\[VALUE, ...\\], ...}"),
        ("{attributes: {a: [[b]]}}", "is not a label: give text"),
    ],
)
def test_what_are_no_attributes_is_refused(domain: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        parse_job(text(domain))


def test_attributes_are_counted_from_rows_to_estimates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, rows = tmp_path / "job.yaml", tmp_path / "rows.csv"
    job.write_text(text(GOOD).replace("epsilon: 1", "epsilon: 8"))
    users = range(400)
    rows.write_text(
        "user,epoch,value\n"
        + "".join(
            f"u{user},1,region={'south' if user % 4 else 'north'}\nu{user},1,age=17\n"
            for user in users
        )
    )
    simulated = Commands(capsys)("simulate", job, "--input", rows, "--seed", 1, "--json").json
    (epoch, *_) = simulated["epochs"]
    by_item = {each["name"]: each for each in epoch["estimates"]}
    truths = {"age=17": 400, "age=old": 0, "region=north": 100, "region=south": 300}
    assert {item: each["truth"] for item, each in by_item.items()} == truths
    for item, truth in truths.items():
        deviation = by_item[item]["standard_deviation"]
        assert abs(by_item[item]["estimate"] - truth) < 7 * deviation < 200


@pytest.mark.parametrize("attributes", [2, 5])
def test_all_attributes_of_a_user_tell_more_than_one_chosen_at_random(attributes: int) -> None:
    """Though epsilon is shared by all: hidden among others, noise does not grow with the crowd.

    Of users who report one attribute each, chosen at random, a count is off by the choice alone,
    c (A - 1), by more than all noise: for a value that one user in ten has.
    """
    users = 100_000
    labels = tuple(f"{n}" for n in range(4 * attributes))
    of_all = calibrate(FragmentsParameters(1.0, 1e-6, labels, items=attributes), 1, users)
    of_one = calibrate(FragmentsParameters(1.0, 1e-6, labels), 1, users // attributes)
    chosen = attributes**2 * noise_variance(of_one, users // attributes)
    by_chance = users / 10 * (attributes - 1)
    assert math.sqrt(noise_variance(of_all, users)) < 0.3 * np.sqrt(chosen + by_chance)
