"""Jobs over items: their labels, their input, their truth, and what is shown of them."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

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
from dpstream.pipeline.operations.up.screen import View, line_of, render
from dpstream.pipeline.planning.plan import plan
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.kinds.registry import kind_of
from dpstream.pipeline.results.questions import Query
from dpstream.pipeline.simulation.memory import MemoryDriver
from dpstream.pipeline.simulation.simulate import SimulatedCluster, simulate
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.numbers import NumericDomain
from dpstream.pipeline.values.times import EpochCalendar
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role
from tests.support.commands import Commands
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
            ("[1, 2, 1]", "parameters.domain: has the label '1' twice: take one of them out"),
            ('["1", 1]', "parameters.domain: has the label '1' twice"),
            ("walk", 'parameters.domain: "walk" is not allowed: give a list of labels, or {file'),
            ("12", "parameters.domain: 12 is not allowed: give a list of labels"),
            ("{path: a}", "is not allowed: give a list of labels, or {file: NAME} for a file"),
            ("[walk, [bus]]", 'parameters.domain.1: ["bus"] is not a label: give text'),
            ("{file: 3}", "parameters.domain.file: 3 is not the name of a file"),
            ("{file: none.txt}", "none.txt: cannot read the file of labels: No such file"),
        ],
    )
    def test_what_is_no_domain_is_refused_in_one_line(self, domain: str, message: str) -> None:
        with pytest.raises(JobError) as refused:
            parse_job(job_text(domain), source="modes.yaml")
        assert str(refused.value).startswith("modes.yaml:3: parameters.domain")
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("epsilon: 0", "parameters.epsilon: is 0.0, must be from 0.001 to 10"),
            ("changes: -1", "parameters.changes: is -1, must be a whole number from 0"),
        ],
    )
    def test_other_parameters_are_refused_in_one_line_too(self, text: str, message: str) -> None:
        known = {"epsilon": "8", "changes": "2"} | dict([text.split(": ")])
        parameters = ", ".join(f"{key}: {value}" for key, value in known.items())
        with pytest.raises(JobError) as refused:
            parse_job(job_text().replace("epsilon: 8, changes: 2", parameters))
        assert str(refused.value).removeprefix("job:3: ").startswith(message)


class TestValues:
    DOMAIN = CategoryDomain(LABELS)

    def test_labels_are_numbered_from_1_and_nothing_is_0(self) -> None:
        values, problems = self.DOMAIN.parse(["car", "walk", "", " bus ", "  "])
        assert (values.tolist(), problems) == ([3, 1, 0, 2, 0], {})
        assert values.dtype == np.int16
        assert (self.DOMAIN.initial, self.DOMAIN.size, self.DOMAIN.items) == (0, 4, LABELS)

    def test_another_label_is_a_bad_row_and_a_guess_is_made(self) -> None:
        _, problems = self.DOMAIN.parse(["bus", "buss", "Z" * 10_000])
        assert problems.keys() == {1, 2}
        assert problems[1] == "value 'buss' is not in the domain; did you mean 'bus'?"
        assert problems[2].endswith("whose 3 labels begin with 'walk', 'bus', 'car'")
        assert len(problems[2]) < 150

    def test_guessing_ends_where_nobody_reads_on(self) -> None:
        wrong = [f"walk{number}" for number in range(100)]
        _, problems = self.DOMAIN.parse(wrong * 2)
        guessed = [index for index, reason in problems.items() if "did you mean" in reason]
        assert len(problems) == 200
        assert guessed == [*range(10), *range(100, 110)]

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


class TestSimulation:
    def test_every_item_is_compared_with_its_truth(self, job_file: Path, changes: Path) -> None:
        job = deploy_job(load_job(job_file), deployed_at=0)
        log = load_change_log(changes, domain=job.domain, last_epoch=EPOCHS)
        result = simulate(job, log, seed=1)
        assert result.truth.tolist() == [[0, 0, 0], *TRUTH]
        assert (result.frozen, len(result.records)) == (0, EPOCHS)
        expected = []
        for record, truth in zip(result.records, TRUTH, strict=True):
            assert isinstance(record.estimate, ItemEstimates)
            expected += (record.estimate.values - truth).tolist()
        assert result.errors().tolist() == expected
        assert result.covered().shape == (3 * EPOCHS,)
        assert result.covered().mean() > 0.5
        assert np.abs(expected).max() < 6 * plan(job, USERS).rmse < USERS

    def test_simulate_prints_items_with_truth_and_error(
        self, capsys: pytest.CaptureFixture[str], job_file: Path, changes: Path
    ) -> None:
        dpstream = Commands(capsys)
        body = dpstream("simulate", job_file, "--input", changes, "--seed", 1, "--json").json
        assert [epoch["truth"] for epoch in body["epochs"]] == TRUTH
        errors = [np.subtract(epoch["items"], epoch["truth"]) for epoch in body["epochs"]]
        assert body["rmse"] == pytest.approx(math.sqrt(np.square(errors).mean()), abs=0.1)
        said = dpstream("simulate", job_file, "--input", changes, "--seed", 1, "--trials", 2)
        assert (said.code, said.errors) == (0, "")
        lines = said.output.splitlines()
        assert lines[0].split()[:3] == ["epoch", "item", "estimate"]
        for label in ("walk", "bus", "car"):
            assert len([line for line in lines if f" {label} " in line]) == EPOCHS
        assert any(line.startswith("selecting the largest biases them upwards") for line in lines)

    def test_a_window_that_is_withheld_is_shown(
        self, capsys: pytest.CaptureFixture[str], job_file: Path, changes: Path
    ) -> None:
        job_file.write_text(job_text() + "shuffle: {minimum: 5000}\n")
        dpstream = Commands(capsys)
        said = dpstream("simulate", job_file, "--input", changes, "--seed", 1)
        assert (said.code, said.errors) == (0, "")
        assert said.output.count("too small") == EPOCHS

    def test_a_wrong_label_is_told(
        self, capsys: pytest.CaptureFixture[str], job_file: Path, changes: Path
    ) -> None:
        with changes.open("a") as file:
            file.write("ann,1,walks\n")
        said = Commands(capsys)("simulate", job_file, "--input", changes)
        assert said.code
        assert "value 'walks' is not in the domain; did you mean 'walk'?" in said.errors


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


def screen_of(progress: Progress) -> str:
    console = Console(record=True, width=120, height=40, file=io.StringIO())
    console.print(render(View("modes", "", (), USERS, progress), 120, 40))
    return console.export_text()


def table_of(progress: Progress, path: Path) -> list[dict[str, str]]:
    write_csv(progress.job, progress.rows(), path)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_up_shows_the_largest_item_and_writes_all(
    job_file: Path, changes: Path, tmp_path: Path
) -> None:
    """On the screen the largest item; in table, picture and JSON all of them."""
    progress = run_in_memory(job_file, changes)
    job, rows = progress.job, progress.rows()
    assert [row.truth for row in rows] == [truth[0] for truth in TRUTH]
    assert "walk, the largest" in line_of(rows[0])
    assert screen_of(progress).count("walk, the largest") == EPOCHS
    outcome = Outcome(job, rows, USERS, seconds=1.0, reports=1)
    errors = [np.subtract(row.intervals[0], truth) for row, truth in zip(rows, TRUTH, strict=True)]
    assert outcome.rmse == pytest.approx(math.sqrt(np.square(errors).mean()))
    assert outcome.covered[1] == 3 * EPOCHS
    body = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    assert body["labels"] == list(LABELS)
    assert [epoch["truth"] for epoch in body["epochs"]] == TRUTH
    for row, epoch in zip(rows, body["epochs"], strict=True):
        assert epoch["items"] == row.intervals[0].tolist()
        assert epoch["half_width"] == pytest.approx(row.intervals[2, 0] - epoch["items"][0])
    table = table_of(progress, tmp_path / "table.csv")
    assert [(int(line["epoch"]), line["item"]) for line in table] == [
        (epoch, label) for epoch in range(1, EPOCHS + 1) for label in LABELS
    ]
    truths = [int(line[f"truth ({NOT_PRIVATE})"]) for line in table]
    assert truths == np.ravel(TRUTH).tolist()
    numbers = [[float(line[key]) for line in table] for key in ("estimate", "low", "high")]
    assert np.abs(numbers - np.hstack([row.intervals for row in rows])).max() < 1e-3
    (axes,) = draw_rows(job, rows).axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(LABELS)
    dashed = [line.get_ydata() for line in axes.lines if line.get_linestyle() == "--"]
    assert np.array(dashed).T.tolist() == TRUTH
    first = progress.records[0].estimate
    assert isinstance(first, ItemEstimates)
    progress.records[0] = replace(progress.records[0], estimate=replace(first, flags=("gap",)))
    (axes,) = draw_rows(job, progress.rows()).axes
    assert np.asarray(axes.lines[-1].get_xdata()).tolist() == [1]
    assert "reports missing" in axes.get_title("left")


def test_an_epoch_without_estimates_has_its_truth_only(
    job_file: Path, changes: Path, tmp_path: Path
) -> None:
    progress = run_in_memory(job_file, changes)
    progress.records[1] = replace(progress.records[1], estimate=None)
    _, missing, *_ = progress.rows()
    assert missing.headline == Headline()
    screen_of(progress)
    lines = table_of(progress, tmp_path / "table.csv")[3:6]
    assert [line["item"] for line in lines] == list(LABELS)
    assert [line[f"truth ({NOT_PRIVATE})"] for line in lines] == ["600", "300", "0"]
    assert {line[key] for line in lines for key in ("estimate", "low", "high")} == {""}
    body = Outcome(progress.job, progress.rows(), USERS, seconds=1.0, reports=1).to_json()
    assert (body["epochs"][1]["items"], body["epochs"][1]["truth"]) == (None, TRUTH[1])


class TestNumbers:
    """A job over numbers: two thirds of the users say 15, the others 60; then all say 70."""

    @pytest.fixture
    def progress(self, tmp_path: Path) -> Progress:
        job_file, changes = tmp_path / "hours.yaml", tmp_path / "changes.csv"
        job_file.write_text(
            "name: hours\nprotocol: range_values\n"
            "parameters: {epsilon: 8, changes: 1, low: 0, high: 80, buckets: 8}\n"
            f"epochs: {{count: {EPOCHS}}}\n"
        )
        rows = [f"user{user},1,{15 if user % 3 else 60}\n" for user in range(USERS)]
        rows += [f"user{user},4,70\n" for user in range(USERS)]
        changes.write_text("user,epoch,value\n" + "".join(rows))
        return run_in_memory(job_file, changes)

    def test_the_median_is_shown_beside_the_true_one(self, progress: Progress) -> None:
        # Two thirds lie from 10 to 20, spread evenly; then all from 70 to 80.
        rows = progress.rows()
        assert [row.truth for row in rows] == [17.5] * 3 + [75] * 3
        for row in rows:
            headline = row.headline
            assert headline.name == "median"
            assert headline.value is not None
            assert headline.low is not None
            assert headline.high is not None
            assert headline.low <= headline.value <= headline.high
            assert row.truth is not None
            assert abs(headline.value - row.truth) < 20
            line = line_of(row)
            assert f"median {headline.shown(headline.value)}  95 % {headline.interval}" in line
            assert f"truth ({NOT_PRIVATE}) {headline.shown(row.truth)}" in line
            assert "largest" not in line
        shown = screen_of(progress)
        header, first, *_ = shown.splitlines()[2:]
        assert header.split()[:2] == ["epoch", "median"]
        assert header.split()[-2:] == ["0", "80"]
        assert first.split()[1] == rows[0].headline.shown(rows[0].headline.value)
        assert "largest" not in shown

    def test_the_table_has_all_buckets_and_the_picture_quartiles(
        self, progress: Progress, tmp_path: Path
    ) -> None:
        job, rows = progress.job, progress.rows()
        table = table_of(progress, tmp_path / "table.csv")
        labels = job.domain.items
        assert labels is not None
        assert [line["range"] for line in table] == list(labels) * EPOCHS
        query = Query(job.domain, kind_of(job.domain).everything(job.domain))
        for number, answer in enumerate(query.answers(rows[0].record.estimate, rows[0].truths)):
            line = table[number]
            assert float(line["low"]) == pytest.approx(answer.low, abs=1e-3)
            assert float(line["standard_deviation"]) == pytest.approx(
                answer.standard_deviation, abs=1e-3
            )
            assert float(line[f"truth ({NOT_PRIVATE})"]) == answer.truth
        (axes,) = draw_rows(job, rows).axes
        assert axes.get_ylabel() == "value"
        _, _, median, truth, *_ = axes.lines
        assert median.get_label() == "0.5"
        assert np.asarray(truth.get_ydata()).tolist() == [row.truth for row in rows]


@pytest.mark.parametrize(
    ("headline", "said"),
    [
        (Headline("", 34.4, 28.2, 40.6), "34 (95 %: 28 to 41)"),
        (Headline("", 7.0), "7"),
        (Headline(), "no estimate"),
        (
            Headline("median", 0.2468, 0.125, 0.5, numbers=NumericDomain(0, 1, 8)),
            "median 0.25 (95 %: 0.125 to 0.5)",
        ),
    ],
)
def test_a_headline_says_of_what_it_is(headline: Headline, said: str) -> None:
    assert str(headline) == said
