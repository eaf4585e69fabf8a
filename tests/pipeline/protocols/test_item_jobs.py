"""Test jobs over items: labels, values, and top items."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.devices.item_log import ItemLog, load_value_log
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import load_job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import CategoryDomain
from dpstream.topics.manifests import WindowStatus
from tests.support.set_jobs import job_text

EPOCHS = 6
LABELS = ("walk", "bus", "car")


def modes_text(domain: str = "[walk, bus, car]", more: str = "") -> str:
    return (
        "name: modes\nprotocol: hadamard_values\n"
        f"parameters: {{epsilon: 8, max_changes: 2, domain: {domain}{more}}}\n"
        f"epochs: {{count: {EPOCHS}}}\n"
    )


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "modes.yaml"
    path.write_text(modes_text())
    return path


class TestLabels:
    def test_job_is_the_same_whether_labels_are_in_a_list_or_a_file(
        self, tmp_path: Path, job_file: Path
    ) -> None:
        (tmp_path / "modes.txt").write_text("walk\n\n  bus \r\ncar")
        other = tmp_path / "other.yaml"
        other.write_text(modes_text("{file: modes.txt}"))
        assert load_job(other) == load_job(job_file)
        deployed = deploy_job(load_job(other), deployed_at=0)
        (tmp_path / "modes.txt").unlink()
        assert DeployedJob.from_bytes(deployed.to_bytes()).domain.items == LABELS

    def test_yaml_numbers_and_booleans_are_read_as_labels(self) -> None:
        labels = parse_job(modes_text("[7, -1, 2.5, 007, yes, true]")).domain.items
        assert labels == ("7", "-1", "2.5", "007", "yes", "true")

    @pytest.mark.parametrize(
        ("domain", "message"),
        [
            ("[walk]", "parameters.domain: has 1 labels; expected 2 to 4,096"),
            ('["1", 1]', "parameters.domain: has the label '1' twice"),
            (
                "walk",
                'parameters.domain: "walk" is not allowed; expected a list of labels, or {file',
            ),
            ("{path: a}", "is not allowed; expected a list of labels, or {file: NAME} for a file"),
            ("[walk, [bus]]", 'parameters.domain.1: ["bus"] is not a label; expected text'),
            ("{file: none.txt}", "none.txt: cannot read the file of labels: No such file"),
        ],
    )
    def test_invalid_domain_gives_a_one_line_error(self, domain: str, message: str) -> None:
        with pytest.raises(JobError) as rejected:
            parse_job(modes_text(domain), source="modes.yaml")
        assert str(rejected.value).startswith("modes.yaml:3: parameters.domain")
        assert message in str(rejected.value)
        assert "\n" not in str(rejected.value)


class TestValues:
    DOMAIN = CategoryDomain(LABELS)

    def test_labels_are_numbered_from_1(self) -> None:
        values, problems = self.DOMAIN.parse(["car", "walk", "", " bus ", "  "])
        assert (values.tolist(), problems) == ([3, 1, 0, 2, 0], {})
        assert values.dtype == np.int16
        assert (self.DOMAIN.initial, self.DOMAIN.size, self.DOMAIN.items) == (0, 4, LABELS)


def test_item_estimates_round_trip() -> None:
    estimate = ItemEstimates(np.array([1.25, -3.0]), 2.5, 4.9, 7, 100, ("gap",))
    record = EstimateRecord(
        bytes(16), 3, WindowStatus.RELEASED, 5, 90, 100, estimate, {"epsilon": 1}
    )
    read = EstimateRecord.from_bytes(record.to_bytes())
    assert read.to_bytes() == record.to_bytes()
    assert isinstance(read.estimate, ItemEstimates)
    assert read.estimate.values.tolist() == [1.2, -3.0]
    assert read.headline == Estimate(1.2, 2.5, 1.2 - 4.9, 1.2 + 4.9, 7, 100, ("gap",))


@cache
def deployed(parameters: str) -> DeployedJob:
    text = job_text("count_min", parameters, minimum=100_000)
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


class TestGroundTruth:
    def test_ground_truth_covers_the_listed_items(self, tmp_path: Path) -> None:
        path = tmp_path / "few.csv"
        path.write_text("user,epoch,value\na,1,car\nb,1,car\nb,2,walk\n")
        domain = deployed("domain: [walk, bus, car]").domain
        log = load_value_log(path, domain=domain, last_epoch=2)
        assert isinstance(log, ItemLog)
        estimate = ItemEstimates(np.zeros(3), 1.0, 2.0, 2, 2)
        ground_truths = log.ground_truths(domain)
        found = [np.asarray(ground_truths.of(epoch, estimate)).tolist() for epoch in (1, 2)]
        assert found == [[0, 0, 2], [1, 0, 0]] == log.ground_truth(domain).tolist()
