"""Looking back at a horizon: what is read, what is printed, and what is refused."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dpstream.aggregators.estimate import GAP, Estimate
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.actions import Append, Flush, LogRecord, LogSlice, Steps
from dpstream.pipeline.cli.smoothed_lines import (
    CSV_COLUMNS,
    FOOTNOTE,
    csv_lines,
    json_lines,
    table_lines,
)
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.up.outcome import Outcome, summary
from dpstream.pipeline.operations.up.progress import Progress
from dpstream.pipeline.results.asked import Asked, make_query
from dpstream.pipeline.results.smoothing import (
    BIASED,
    NAMES,
    SmoothedHorizon,
    SmoothingError,
    columns,
    read_from,
    smoothed_horizon,
    smoothed_horizons,
    smoothed_records,
)
from dpstream.pipeline.simulation.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.simulation.simulate import (
    SimulatedCluster,
    Simulation,
    column_errors,
    simulate,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.small_run import (
    EPOCHS,
    USERS,
    generators,
    job_text,
    run_small_job,
    write_changes,
)

RENEWING = deploy_job(parse_job(job_text(epochs=4, more=", renew: true")), deployed_at=0)


@dataclass
class Finished:
    """A job whose three horizons of four epochs are over, or the last of them is running."""

    job: DeployedJob
    log: MemoryLog
    records: list[EstimateRecord]

    def horizon(self, horizon: int | None = None) -> SmoothedHorizon:
        return MemoryDriver(self.log).run(smoothed_horizon(self.job, horizon))


def run_to(job: DeployedJob, folder: Path, last_epoch: int, first_epoch: int = 1) -> Finished:
    change_log = load_change_log(write_changes(folder / "changes.csv"), last_epoch=EPOCHS)
    cluster = SimulatedCluster(job, generators)
    producer = Producer(
        job,
        None,
        name="p",
        transport=MemoryDriver(cluster.log),
        first_epoch=first_epoch,
        generators=generators,
    )
    producer.enrol(change_log.users)
    for epoch, values in enumerate(change_log.values_by_epoch(), 1):
        if not first_epoch <= epoch <= last_epoch:
            continue
        producer.report_all(epoch, values)
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    return Finished(job, cluster.log, cluster.new_estimates())


def test_horizons_stand_alone_and_the_latest_is_the_default(tmp_path: Path) -> None:
    run = run_to(RENEWING, tmp_path, last_epoch=10)
    assert [run.horizon(index).first_epoch for index in range(3)] == [1, 5, 9]
    assert [len(run.horizon(index).estimates.values) for index in range(3)] == [4, 4, 2]
    latest = run.horizon()
    assert (latest.first_epoch, latest.index(8), latest.index(10)) == (9, None, 1)
    # At its last epoch so far, looking back knows what was published.
    for index, last in enumerate((4, 8, 10)):
        estimate = run.records[last - 1].estimate
        assert isinstance(estimate, Estimate)
        assert estimate.value == pytest.approx(run.horizon(index).estimates.values[-1, 0])


def test_all_horizons_are_read_in_one_pass_and_are_the_same_as_alone(tmp_path: Path) -> None:
    run = run_to(RENEWING, tmp_path, last_epoch=10)

    class Counted(MemoryLog):
        """Knows how many records of which topics were read."""

        def __init__(self) -> None:
            super().__init__()
            self.read_records = Counter[Role]()

        def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
            found = run.log.read(role, partition, start, stop)
            self.read_records[role] += len(found.records)
            return found

        def end(self, role: Role, partition: int) -> int:
            return run.log.end(role, partition)

    log = Counted()
    horizons = MemoryDriver(log).run(smoothed_horizons(run.job, 10))
    for role in (Role.MANIFESTS, Role.PARTIALS):
        assert log.read_records[role] == len(run.log.values(role))
    assert list(horizons) == [0, 1, 2]
    for index, horizon in horizons.items():
        alone = run.horizon(index)
        assert horizon.first_epoch == alone.first_epoch
        assert horizon.estimates.values.tolist() == alone.estimates.values.tolist()
    assert list(MemoryDriver(run.log).run(smoothed_horizons(run.job, 8))) == [0, 1]


def test_horizons_before_the_first_report_are_left_out(tmp_path: Path) -> None:
    run = run_to(RENEWING, tmp_path, last_epoch=10, first_epoch=6)
    horizons = MemoryDriver(run.log).run(smoothed_horizons(run.job, 10))
    assert {of: horizon.first_epoch for of, horizon in horizons.items()} == {1: 5, 2: 9}
    simulation = Simulation(run.job, tuple(run.records), np.zeros(11, np.int64), 0, horizons)
    assert [record.epoch for record, _ in simulation.columns()] == [6, 7, 8, 9, 10]
    assert all(tuple(sorted(found)) == NAMES for _, found in simulation.columns())
    assert len(simulation.to_json()["epochs"]) == 5


def test_what_is_there_already_is_smoothed(tmp_path: Path) -> None:
    """An epoch whose partial is not there yet is not waited for."""
    run = run_to(RENEWING, tmp_path, last_epoch=4)
    whole = run.horizon()
    partials = run.log.values(Role.PARTIALS)
    early = MemoryLog()
    for value in run.log.values(Role.MANIFESTS):
        MemoryDriver(early).run(_append(Role.MANIFESTS, value))
    for value in partials[:-1]:
        MemoryDriver(early).run(_append(Role.PARTIALS, value))
    part = Finished(run.job, early, []).horizon()
    assert len(whole.estimates.values) == 4
    assert len(part.estimates.values) == 3
    assert (whole.estimates.values[:3] != part.estimates.values).all()


def test_nothing_to_look_back_at_is_said(tmp_path: Path) -> None:
    run = run_to(RENEWING, tmp_path, last_epoch=3)
    with pytest.raises(SmoothingError, match="job small has no finished epoch in horizon 2 yet"):
        run.horizon(1)
    with pytest.raises(SmoothingError, match="job small has no finished epoch yet"):
        MemoryDriver(MemoryLog()).run(smoothed_horizon(RENEWING))
    memoized = deploy_job(
        parse_job(
            "name: m\nprotocol: memoized_response\nparameters: {epsilon: 2}\nepochs: {count: 4}\n"
        ),
        deployed_at=0,
    )
    with pytest.raises(SmoothingError, match="protocol memoized_response cannot be smoothed"):
        MemoryDriver(MemoryLog()).run(smoothed_horizon(memoized))


def test_a_cluster_is_read_like_memory(tmp_path: Path) -> None:
    run = run_to(RENEWING, tmp_path, last_epoch=10)

    class Reader:
        def end_offsets(self, topic: str) -> list[int]:
            return [run.log.end(Role(topic.partition(".")[2]), 0)]

        def read(self, topic: str, partition: int, start: int, stop: int) -> Iterator[LogRecord]:
            role = Role(topic.partition(".")[2])
            while start < stop:
                found = run.log.read(role, partition, start, stop)
                yield from found.records
                start = found.end

    cluster = cast(Cluster, Reader())
    found = read_from(cluster, run.job, smoothed_horizon(run.job, 1))
    assert found.estimates.values.tolist() == run.horizon(1).estimates.values.tolist()
    with pytest.raises(TypeError, match="does not"):
        read_from(cluster, run.job, _flush())


def test_gaps_are_flagged_where_nothing_was_received(tmp_path: Path) -> None:
    job = deploy_job(parse_job(job_text() + "shuffle: {minimum: 201}\n"), deployed_at=0)
    found = run_to(job, tmp_path, last_epoch=EPOCHS)
    assert {record.fate for record in found.records} == {Fate.TOO_SMALL}
    assert found.horizon().estimates.gaps.all()


def test_a_simulation_has_every_kind_of_estimate(tmp_path: Path) -> None:
    change_log = load_change_log(write_changes(tmp_path / "changes.csv"), last_epoch=EPOCHS)
    plain = simulate(RENEWING, change_log, seed=3)
    looked_back = simulate(RENEWING, change_log, seed=3, smooth=True)
    assert plain.smoothed == {}
    assert list(looked_back.smoothed) == [0, 1, 2]
    assert [set(found) for _, found in plain.columns()] == [{"online", "online clipped"}] * EPOCHS
    for record, found in looked_back.columns():
        assert tuple(sorted(found)) == NAMES
        assert record.estimate is not None
        assert found["online"].tolist() == record.estimate.intervals.tolist()
        for name in ("online", "smoothed"):
            clipped = found[f"{name} clipped"]
            assert clipped.tolist() == np.clip(found[name], 0, USERS).tolist()
            assert np.isfinite(found[f"{name} shrunk"][0]).all()
            assert np.isnan(found[f"{name} shrunk"][1:]).all()
    assert looked_back.to_json().keys() - plain.to_json().keys() == {"rmse_by_column"}


def test_items_are_smoothed_too(tmp_path: Path) -> None:
    job = deploy_job(
        parse_job(
            "name: small\nprotocol: hadamard_values\n"
            "parameters: {epsilon: 4, changes: 1, domain: [walk, bus, car]}\n"
            "epochs: {count: 6}\n"
        ),
        deployed_at=0,
    )
    path = tmp_path / "changes.csv"
    rows = (f"u{user},{user % 6 + 1},{('walk', 'bus')[user % 2]}\n" for user in range(USERS))
    path.write_text("user,epoch,value\n" + "".join(rows))
    simulation = simulate(job, load_change_log(path, domain=job.domain), seed=1, smooth=True)
    (horizon,) = simulation.smoothed.values()
    assert horizon.estimates.values.shape == (6, 3)
    # Nothing of letters is shrunk.
    names = tuple(name for name in NAMES if "shrunk" not in name)
    for _, found in simulation.columns():
        assert {name: array.shape for name, array in found.items()} == dict.fromkeys(names, (3, 3))
    assert tuple(column_errors([simulation])) == names

    first = json.loads(next(json_lines(simulation.records, horizon, simulation.job)))
    assert {name: len(found["items"]) for name, found in first["biased"].items()} == {
        "online clipped": 3,
        "smoothed clipped": 3,
    }
    assert first["smoothed"]["items"] == np.round(horizon.estimates.values[0], 1).tolist()
    rows_shown = list(csv.DictReader(csv_lines(simulation.records, horizon, simulation.job)))
    assert list(rows_shown[0]) == [*CSV_COLUMNS[:2], "item", *CSV_COLUMNS[2:]]
    assert [(row["epoch"], row["item"]) for row in rows_shown] == [
        (str(epoch), label) for epoch in range(1, 7) for label in ("walk", "bus", "car")
    ]
    smoothed = [float(row["smoothed"]) for row in rows_shown]
    assert smoothed == horizon.estimates.values.ravel().tolist()
    assert all(row.values() for row in rows_shown)


def test_queries_are_answered_from_smoothed_estimates_with_their_own_intervals(
    tmp_path: Path,
) -> None:
    job = deploy_job(
        parse_job(
            "name: hours\nprotocol: range_values\n"
            "parameters: {epsilon: 8, changes: 1, low: 0, high: 80, buckets: 8}\n"
            "epochs: {count: 3, renew: true}\n"
        ),
        deployed_at=0,
    )
    path = tmp_path / "changes.csv"
    rows = (f"u{user},{user % 6 + 1},{user % 80}\n" for user in range(USERS))
    path.write_text("user,epoch,value\n" + "".join(rows))
    change_log = load_change_log(path, domain=job.domain, last_epoch=6)
    simulation = simulate(job, change_log, seed=1, smooth=True)
    query = make_query(job.domain, Asked(ranges=[":40", "0:10"]))
    assert query is not None
    found = simulation.looked_back().records
    assert [record.epoch for record in found] == list(range(1, 7))
    for online, record in zip(simulation.records, found, strict=True):
        horizon = simulation.smoothed[job.horizon_of(record.epoch)]
        index = horizon.index(record.epoch)
        (before, _), (half, bucket) = query.answers(online.estimate), query.answers(record.estimate)
        assert half.value == pytest.approx(horizon.estimates.values[index, :4].sum())
        assert bucket.value == horizon.estimates.values[index, 0]
        assert bucket.standard_deviation == horizon.estimates.standard_deviations[index]
        assert before.standard_deviation is not None
        assert half.standard_deviation is not None
        assert half.standard_deviation <= before.standard_deviation * (1 + 1e-9)
        assert half.high - half.value == pytest.approx(1.96 * half.standard_deviation, rel=1e-3)
        # At the end of a horizon nothing is to come: both are the same, but for rounding.
        if record.epoch % 3 == 0:
            assert half.value == pytest.approx(before.value, abs=0.5)
            assert half.standard_deviation == pytest.approx(before.standard_deviation)
    buckets = csv.DictReader(
        csv_lines(simulation.records[:3], simulation.smoothed[0], simulation.job)
    )
    assert [row["range"] for row in buckets] == [*(job.domain.items or ())] * 3


def test_one_value_has_its_own_interval_and_flag() -> None:
    first, second = smoothed_records(RECORDS, HORIZON)
    assert first.estimate == Estimate(-5.0, 4.0, -13.0, 3.0, reports=180, population=200)
    assert isinstance(second.estimate, Estimate)
    assert (second.epoch, second.estimate.flags) == (6, (GAP,))


def test_a_run_says_what_looking_back_was_worth(tmp_path: Path) -> None:
    run, finished = run_small_job(tmp_path), run_to(RENEWING, tmp_path, last_epoch=10)
    progress = Progress(run.job, CountedTruths(run.truth))
    for role, value in run.records:
        progress.apply(role, value)
    plain = Outcome(run.job, progress.rows(), USERS, seconds=2.5, reports=progress.reports)
    assert plain.smoothed_rmse is None
    assert "smoothed RMSE" not in dict(summary(plain))

    horizons = MemoryDriver(finished.log).run(smoothed_horizons(RENEWING, 10))
    assert {of: horizon.first_epoch for of, horizon in horizons.items()} == {0: 1, 1: 5, 2: 9}
    rows = plain.rows[:10]
    looked_back = replace(plain, job=RENEWING, rows=rows, smoothed=horizons)
    values = np.concatenate([horizon.estimates.values[:, 0] for horizon in horizons.values()])
    truth = np.array([row.truth for row in rows])
    expected = float(np.sqrt(np.mean(np.square(values - truth))))
    assert looked_back.smoothed_rmse == pytest.approx(expected)
    assert looked_back.to_json()["smoothed_rmse"] == looked_back.smoothed_rmse
    assert f"{expected:,.0f} users" in dict(summary(looked_back))["smoothed RMSE"]


RECORD = EstimateRecord(
    deployment=bytes(16),
    epoch=5,
    fate=Fate.RELEASED,
    closed_at=0,
    contributors=180,
    population=200,
    estimate=Estimate(-20.0, 10.0, -39.6, -0.4, reports=900, population=200),
    guarantee={},
)
RECORDS = [
    RECORD,
    replace(RECORD, epoch=6, fate=Fate.EMPTY, estimate=None),
    replace(RECORD, epoch=8),
]
HORIZON = SmoothedHorizon(
    first_epoch=5,
    estimates=SmoothedEstimates(
        values=np.array([[-5.0], [1234.5]]),
        standard_deviations=np.array([4.0, 5.0]),
        half_widths=np.array([8.0, 9.0]),
        gaps=np.array([False, True]),
        population=np.array([200, 200]),
        online_shrunk=np.array([[-11.0], [12.0]]),
        shrunk=np.array([[-3.0], [4.0]]),
    ),
)


def test_columns_of_an_epoch_that_is_not_smoothed_are_those_online() -> None:
    assert set(columns(RECORDS[2], HORIZON)) == {"online", "online clipped"}
    assert set(columns(RECORDS[1], HORIZON)) == {"smoothed", "smoothed clipped", "smoothed shrunk"}


def test_the_table_says_which_columns_are_biased() -> None:
    header, *rows = table_lines(RECORDS, HORIZON, RENEWING)
    assert header.split() == [
        *("epoch", "estimate", "shrunk*", "smoothed", "±", "sd", "95", "%", "low", "high"),
        *("clipped**", "shrunk**"),
    ]
    assert rows[0].split() == [
        *("5", "-20.0", "0.0", "-5.0", "4.0", "-13.0", "3.0", "0.0", "0.0"),
    ]
    assert rows[1].split() == [
        *("6", "-", "-", "1,234", "5.0", "1,226", "1,244", "200", "4.0", "empty,", "gap"),
    ]
    assert rows[3:] == ["", *FOOTNOTE]
    assert max(map(len, (header, *rows))) <= 80 + len(" empty, gap")
    assert max(map(len, (header, rows[0], *FOOTNOTE))) <= 86


def test_csv_labels_what_is_biased_and_leaves_out_what_is_not_known() -> None:
    rows = list(csv.DictReader(csv_lines(RECORDS, HORIZON, RENEWING)))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert rows[0] == {
        "epoch": "5",
        "begins": "",
        "estimate": "-20.0",
        "smoothed": "-5.0",
        "smoothed_standard_deviation": "4.0",
        "smoothed_low": "-13.0",
        "smoothed_high": "3.0",
        "population": "200",
        "fate": "released",
        "flags": "",
        "biased_online_clipped": "0.0",
        "biased_online_clipped_low": "0.0",
        "biased_online_clipped_high": "0.0",
        "biased_smoothed_clipped": "0.0",
        "biased_smoothed_clipped_low": "0.0",
        "biased_smoothed_clipped_high": "3.0",
        "biased_online_shrunk": "0.0",
        "biased_smoothed_shrunk": "0.0",
    }
    assert (rows[1]["estimate"], rows[1]["flags"], rows[1]["fate"]) == ("", GAP, "empty")
    assert (rows[2]["smoothed"], rows[2]["estimate"]) == ("", "-20.0")


def test_json_adds_two_keys_to_a_record() -> None:
    lines = [json.loads(line) for line in json_lines(RECORDS, HORIZON, RENEWING)]
    assert lines[0] == {
        **RECORD.to_json(),
        "smoothed": {
            "estimate": -5.0,
            "low": -13.0,
            "high": 3.0,
            "standard_deviation": 4.0,
            "flags": [],
        },
        "biased": {
            "online clipped": {"estimate": 0.0, "low": 0.0, "high": 0.0},
            "online shrunk": {"estimate": 0.0},
            "smoothed clipped": {"estimate": 0.0, "low": 0.0, "high": 3.0},
            "smoothed shrunk": {"estimate": 0.0},
        },
    }
    assert lines[1]["smoothed"]["flags"] == [GAP]
    assert lines[2]["smoothed"] is None


@pytest.fixture
def dpstream(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(capsys)


def test_simulate_compares_all_of_them(dpstream: Commands, tmp_path: Path) -> None:
    job_file, changes = tmp_path / "small.yaml", write_changes(tmp_path / "changes.csv")
    job_file.write_text(job_text())
    arguments: tuple[Any, ...] = ("simulate", job_file, "--input", changes, "--seed", 7)
    body = dpstream(*arguments, "--smoothed", "--json").json
    assert tuple(body["rmse_by_column"]) == NAMES
    assert body["rmse_by_column"]["online"] == pytest.approx(body["rmse"])
    for epoch in body["epochs"]:
        assert epoch["smoothed"]["low"] < epoch["smoothed"]["estimate"] < epoch["smoothed"]["high"]
        assert set(epoch["biased"]) == set(BIASED)
    errors = [epoch["smoothed"]["estimate"] - epoch["truth"] for epoch in body["epochs"]]
    expected = float(np.sqrt(np.mean(np.square(errors))))
    assert body["rmse_by_column"]["smoothed"] == pytest.approx(expected)

    several = dpstream(*arguments, "--smoothed", "--json", "--trials", 2).json
    assert several["epochs"] == body["epochs"]
    assert several["rmse_by_column"]["smoothed"] != body["rmse_by_column"]["smoothed"]

    lines = [line.strip() for line in dpstream(*arguments, "--smoothed").output.splitlines()]
    for name in NAMES[1:]:
        label = f"{name} (biased)" if name in BIASED else name
        assert any(line.startswith(f"{label} ") and "users (" in line for line in lines)
    assert dpstream(*arguments, "--json").json.keys() == body.keys() - {"rmse_by_column"}


@contextmanager
def no_cluster(*arguments: object, **options: object) -> Iterator[None]:
    yield None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--smoothed", "--follow"], "--smoothed looks back at all there is: leave --follow out"),
        (["--horizon", "2"], "--horizon says which horizon to smooth: give --smoothed too"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    dpstream: Commands, monkeypatch: pytest.MonkeyPatch, options: list[str], complaint: str
) -> None:
    monkeypatch.setattr("dpstream.pipeline.cli.estimates.cluster_of", no_cluster)
    monkeypatch.setattr("dpstream.pipeline.cli.estimates.find_job", lambda cluster, job: RENEWING)
    said = dpstream("estimates", "small", *options)
    assert (said.code, said.output) == (2, "")
    assert said.errors == f"error: {complaint}\n"


def _append(role: Role, value: bytes) -> Steps[None]:
    yield Append(role, 0, value)
    yield Flush()


def _flush() -> Steps[None]:
    yield Flush()
