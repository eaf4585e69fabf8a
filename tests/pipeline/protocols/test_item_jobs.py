"""Jobs over items: their labels, their input, their truth, and what is shown of them."""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.live import Change, LiveSource
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.rows import BadRowsError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import load_job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.operations.up.curves import draw_rows
from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE, Outcome, write_csv
from dpstream.pipeline.operations.up.progress import Progress
from dpstream.pipeline.operations.up.screen import line_of
from dpstream.pipeline.simulation.memory import MemoryDriver
from dpstream.pipeline.simulation.simulate import SimulatedCluster
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.times import EpochCalendar
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role
from tests.support.small_run import generators

EPOCHS = 6
USERS = 900
LABELS = ("walk", "bus", "car")


def job_text(domain: str = "[walk, bus, car]", more: str = "") -> str:
    return (
        "name: modes\nprotocol: hadamard_values\n"
        f"parameters: {{epsilon: 8, changes: 2, domain: {domain}{more}}}\n"
        f"epochs: {{count: {EPOCHS}}}\n"
    )


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "modes.yaml"
    path.write_text(job_text())
    return path


@pytest.fixture
def changes(tmp_path: Path) -> Path:
    """User u walks from epoch 1 on; a third take the bus from epoch 2 on, and leave at epoch 5."""
    path = tmp_path / "changes.csv"
    rows = [f"user{user},1,walk" for user in range(USERS)]
    rows += [f"user{user},2,bus" for user in range(0, USERS, 3)]
    rows += [f"user{user},5," for user in range(0, USERS, 3)]
    path.write_text("\n".join(["user,epoch,value", *rows, ""]))
    return path


TRUTH = [[900, 0, 0], *[[600, 300, 0]] * 3, *[[600, 0, 0]] * 2]


class TestLabels:
    def test_a_list_or_a_file_make_the_same_job(self, tmp_path: Path, job_file: Path) -> None:
        """The file lies beside the job file, wherever the command runs."""
        (tmp_path / "modes.txt").write_text("walk\n\n  bus \r\ncar")
        other = tmp_path / "other.yaml"
        other.write_text(job_text("{file: modes.txt}"))
        assert load_job(other) == load_job(job_file)
        deployed = deploy_job(load_job(other), deployed_at=0)
        (tmp_path / "modes.txt").unlink()
        assert DeployedJob.from_bytes(deployed.to_bytes()).domain.items == LABELS

    def test_numbers_and_words_of_yaml_are_labels(self) -> None:
        labels = parse_job(job_text("[7, -1, 2.5, 007, yes, true]")).domain.items
        assert labels == ("7", "-1", "2.5", "007", "yes", "true")

    @pytest.mark.parametrize(
        ("domain", "message"),
        [
            ("[walk]", "parameters.domain: has 1 labels, must have from 2 to 4,096"),
            ('["1", 1]', "parameters.domain: has the label '1' twice"),
            ("walk", 'parameters.domain: "walk" is not allowed: give a list of labels, or {file'),
            ("{path: a}", "is not allowed: give a list of labels, or {file: NAME} for a file"),
            ("[walk, [bus]]", 'parameters.domain.1: ["bus"] is not a label: give text'),
            ("{file: none.txt}", "none.txt: cannot read the file of labels: No such file"),
        ],
    )
    def test_what_is_no_domain_is_refused_in_one_line(self, domain: str, message: str) -> None:
        with pytest.raises(JobError) as refused:
            parse_job(job_text(domain), source="modes.yaml")
        assert str(refused.value).startswith("modes.yaml:3: parameters.domain")
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)


class TestValues:
    DOMAIN = CategoryDomain(LABELS)

    def test_labels_are_numbered_from_1_and_nothing_is_0(self) -> None:
        values, problems = self.DOMAIN.parse(["car", "walk", "", " bus ", "  "])
        assert (values.tolist(), problems) == ([3, 1, 0, 2, 0], {})
        assert values.dtype == np.int16
        assert (self.DOMAIN.initial, self.DOMAIN.size, self.DOMAIN.items) == (0, 4, LABELS)

    def test_a_change_log_of_labels_is_read(self, changes: Path) -> None:
        log = load_change_log(changes, domain=self.DOMAIN, last_epoch=EPOCHS)
        assert log.truth(self.DOMAIN).tolist() == TRUTH
        changes.write_text("user,epoch,value\nann,1,wall\n")
        with pytest.raises(BadRowsError, match="did you mean 'walk'"):
            load_change_log(changes, domain=self.DOMAIN)

    def test_live_input_of_labels_is_read(self) -> None:
        noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
        calendar = EpochCalendar(noon, parse_duration("PT1M"))
        source = LiveSource(calendar, 1, domain=self.DOMAIN)
        events = source.receive(b"user,value\nann,bus\nbob,\n", noon)
        assert events == [Change(1, "ann", 2), Change(1, "bob", 0)]


def test_the_truth_is_that_of_the_values(tmp_path: Path) -> None:
    """Whoever changes when and how often, for items as for 0 and 1."""
    rng = np.random.default_rng(1)
    path = tmp_path / "changes.csv"
    domain: ValueDomain
    for domain, texts in ((CategoryDomain(LABELS), ["", *LABELS]), (BOOLEAN, ["0", "1"])):
        rows = [
            f"user{rng.integers(40)},{epoch},{rng.choice(texts)}"
            for epoch in range(1, 30)
            for _ in range(9)
        ]
        path.write_text("\n".join(["user,epoch,value", *rows, ""]))
        log = load_change_log(path, domain=domain, last_epoch=33, skip_bad_rows=True)
        values = [log.values_at(epoch) for epoch in range(1, 34)]
        counts = [np.bincount(now, minlength=len(texts))[1:].tolist() for now in values]
        assert log.truth(domain).reshape(33, -1).tolist() == counts
        assert max(map(sum, counts)) > 20


def test_estimates_of_items_survive_their_record() -> None:
    estimate = ItemEstimates(np.array([1.25, -3.0]), 2.5, 4.9, 7, 100, ("gap",))
    record = EstimateRecord(bytes(16), 3, Fate.RELEASED, 5, 90, 100, estimate, {"epsilon": 1})
    read = EstimateRecord.from_bytes(record.to_bytes())
    assert read.to_bytes() == record.to_bytes()
    assert isinstance(read.estimate, ItemEstimates)
    assert read.estimate.values.tolist() == [1.2, -3.0]
    assert read.headline == Estimate(1.2, 2.5, 1.2 - 4.9, 1.2 + 4.9, 7, 100, ("gap",))


def run_in_memory(job_file: Path, changes: Path) -> Progress:
    """A run of the whole job, as `dpstream up` sees it."""
    job = deploy_job(load_job(job_file), deployed_at=1_000)
    log = load_change_log(changes, domain=job.domain, last_epoch=EPOCHS)
    cluster = SimulatedCluster(job, generators)
    producer = Producer(
        job, None, name="p", transport=MemoryDriver(cluster.log), generators=generators
    )
    producer.enrol(log.users)
    for epoch, values in enumerate(log.values_by_epoch(), 1):
        producer.report_all(epoch, values)
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    progress = Progress(job, log.truths(job.domain))
    for record in cluster.log.values(Role.ESTIMATES):
        progress.apply(Role.ESTIMATES, record)
    return progress


def test_up_shows_the_largest_item_and_writes_all(
    job_file: Path, changes: Path, tmp_path: Path
) -> None:
    """On the screen the largest item; in table, picture and JSON all of them."""
    progress = run_in_memory(job_file, changes)
    job, rows = progress.job, progress.rows()
    assert [row.truth for row in rows] == [truth[0] for truth in TRUTH]
    assert "walk, the largest" in line_of(rows[0])
    outcome = Outcome(job, rows, USERS, seconds=1.0, reports=1)
    errors = [np.subtract(row.intervals[0], truth) for row, truth in zip(rows, TRUTH, strict=True)]
    assert outcome.rmse == pytest.approx(math.sqrt(np.square(errors).mean()))
    assert outcome.covered[1] == 3 * EPOCHS
    body = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    assert body["labels"] == list(LABELS)
    assert [epoch["truth"] for epoch in body["epochs"]] == TRUTH
    write_csv(job, rows, tmp_path / "table.csv")
    table = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    truths = [int(line[f"truth ({NOT_PRIVATE})"]) for line in table]
    assert truths == np.ravel(TRUTH).tolist()
    (axes,) = draw_rows(job, rows).axes
    dashed = [line.get_ydata() for line in axes.lines if line.get_linestyle() == "--"]
    assert np.array(dashed).T.tolist() == TRUTH
