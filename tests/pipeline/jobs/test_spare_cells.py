"""Spare cells of private attributes: a running job gives them to values, and no number moves."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.devices.event_log import load_event_log
from dpstream.pipeline.devices.users import Roster
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.spare_cells import with_names_of
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.memory import MemoryLog
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.results.measure_sentences import measure_sentence, other_warnings
from dpstream.pipeline.results.measure_series import ChosenRows, measure_series
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.row_queries import rows_query
from dpstream.pipeline.results.watched_estimates import WatchedEstimates
from dpstream.pipeline.serve.views import _measures, series_json
from dpstream.pipeline.simulation.simulated_job import simulate
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.result_documents import ResultDocuments
from dpstream.randomizers.client.statements import read_statement
from dpstream.topics.names import Role
from tests.pipeline.devices.test_arriving_events import USERS, from_topic
from tests.pipeline.devices.test_topic_input import Events, Fuse, Noted
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

EPOCHS, START = 6, 4
FIRST_DAY = datetime(2026, 1, 5, tzinfo=UTC)
LABELS = ("free", "pro", "team", "club", "")


def job_of(values: tuple[str, ...] = ("free", "pro"), spare: int = 2, **more: Any) -> Job:
    keys: dict[str, Any] = {
        "name": "app",
        "epochs": {"count": EPOCHS, "start": "2026-01-05", "length": "P1W"},
        "parameters": {"epsilon": 8, "max_changes": 3},
        "measures": {"wau": {"type": "active"}},
        "attributes": {"plan": {"values": list(values), "spare": spare}},
        "by": ["plan"],
    }
    return make_job(keys | more)


def deployed(job: Job) -> DeployedJob:
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


RUNNING = deployed(job_of())
NAMED = deployed(with_names_of(RUNNING, job_of(("free", "pro", "team")), lambda: START))


def test_naming_moves_no_cell_and_changes_no_constant() -> None:
    before, after = (job.questions[1].labels for job in (RUNNING, NAMED))
    assert before[4:6] == ("wau=no,plan=spare 1", "wau=no,plan=spare 2")
    assert [label.replace("team", "spare 1") for label in after] == list(before)
    assert NAMED.constants == RUNNING.constants
    assert NAMED.guarantee == RUNNING.guarantee
    assert NAMED.fingerprint == RUNNING.fingerprint
    assert DeployedJob.from_bytes(NAMED.to_bytes()).to_bytes() == NAMED.to_bytes()
    # The order of names is that of the values, not of the alphabet, in which records have keys.
    twice = with_names_of(NAMED, job_of(("free", "pro", "team", "club")), lambda: START + 1)
    again = deployed(twice)
    assert again.questions[1].labels[4:6] == ("wau=no,plan=team", "wau=no,plan=club")
    assert again.fingerprint == RUNNING.fingerprint
    assert DeployedJob.from_bytes(again.to_bytes()).to_bytes() == again.to_bytes()


def test_value_without_a_spare_cell_is_another_job() -> None:
    assert deployed(job_of(("free", "pro", "team"))).fingerprint != RUNNING.fingerprint
    assert deployed(job_of(spare=3)).fingerprint != RUNNING.fingerprint


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"by": None}, "requires a breakdown by plan. Add plan to 'by'"),
        (
            {"attributes": {"plan": {"values": ["free"], "spare": 1, "public": True}}},
            "attributes.plan.spare: requires a private attribute",
        ),
        (
            {"attributes": {"plan": {"first_seen": "P4W", "spare": 1}}},
            "attributes.plan.spare: does not apply to first_seen. Remove the key",
        ),
        (
            {"attributes": {"plan": {"values": ["spare 1"], "spare": 1}}},
            'has "spare 1", a name of a spare cell. Rename it',
        ),
        (
            {"attributes": {"plan": {"values": ["free"], "named": {"pro": 3}}}},
            "attributes.plan.named: must have the last of 'values'. Remove the key",
        ),
        (
            {
                "trust": "shuffle",
                "parameters": {"epsilon": 1, "delta": 1e-6},
                "shuffle": {"minimum": 1_000},
            },
            "requires that no party is trusted",
        ),
        (
            {"measures": {"plans": {"type": "last", "label": "plan", "values": ["free"]}}},
            "column plan is used twice",
        ),
        (
            {
                "attributes": {
                    "plan": {"values": ["free"], "spare": 1_000},
                    "more": {"values": ["x", "y"]},
                },
                "by": [["plan", "more"]],
            },
            "8,024 cells; expected at most 4,096",
        ),
    ],
)
def test_job_files_with_impossible_spare_cells_are_refused(
    keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError) as raised:
        job_of(**keys)
    assert message in str(raised.value)


def test_plan_states_spare_cells_and_what_they_cost() -> None:
    plans = [plan(job_of(spare=spare), users=50_000) for spare in (0, 200)]
    without, error = (each.measures[1].groups[0].rmse for each in plans)
    assert without < error < 2 * without
    note = "attributes.plan has 200 spare cells, for values named later. With them, a question has"
    found = [[each for each in one.notes if each.startswith(note)] for one in plans]
    assert found[0] == []
    assert "has 408 of 4,096 possible cells" in found[1][0]
    assert f"is {error:,.0f} users; without spare cells, {without:,.0f}" in found[1][0]


# What a device computes.
def rows_of(seed: int, count: int = 60) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    return [
        {
            "user": str(random.choice(USERS)),
            "time": (FIRST_DAY + timedelta(minutes=int(minute))).isoformat(),
            "plan": str(random.choice(LABELS)),
        }
        for minute in random.choice(7 * 24 * 60 * (EPOCHS + 2), count, replace=False) - 20_160
    ]


def epoch_of(row: dict[str, Any]) -> int:
    return (datetime.fromisoformat(row["time"]) - FIRST_DAY) // timedelta(days=7) + 1


def values_of(folder: Path, job: DeployedJob, rows: list[dict[str, Any]]) -> Noted:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = load_event_log(job, path, last_epoch=EPOCHS, users=Roster(USERS, {}))
    return {
        epoch: dict(zip(log.users, log.values_at(epoch).tolist(), strict=True))
        for epoch in range(1, EPOCHS + 1)
    }


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_answers_before_the_name_are_those_of_a_job_without_it(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder, rows = tmp_path_factory.mktemp("rows"), rows_of(seed)
    before, after = (values_of(folder, job, rows) for job in (RUNNING, NAMED))
    for epoch in range(1, START):
        assert after[epoch] == before[epoch]
    named = NAMED.questions[1].labels
    for epoch in range(START, EPOCHS + 1):
        for user in USERS:
            label = named[after[epoch][user][1] - 1]
            own = [row for row in rows if row["user"] == user and row["plan"]]
            own = [row for row in own if epoch_of(row) <= epoch]
            last = max(own, key=lambda row: row["time"], default=None)
            if last is not None and last["plan"] == "team" and epoch_of(last) >= START:
                assert label.endswith("plan=team")
            else:
                assert after[epoch][user] == before[epoch][user]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("restart", range(1, START))
def test_restarted_producer_maps_the_name_and_draws_nothing_again(
    tmp_path: Path, seed: int, restart: int
) -> None:
    rows, log, noted = rows_of(seed), MemoryLog(), cast(Noted, {})
    first = [row for row in rows if epoch_of(row) <= restart]
    events = Events.of([*first, *(row for row in rows if epoch_of(row) > restart)], 1)
    read = Events.of(first, 1)
    noted |= from_topic(tmp_path / "state", RUNNING, read, log, Fuse(), restart)
    sent = log.end(Role.REPORTS, 0)
    noted |= from_topic(tmp_path / "state", NAMED, events, log, Fuse(), restart)
    assert log.end(Role.REPORTS, 0) == sent
    again = from_topic(tmp_path / "state", NAMED, events, log, Fuse(), EPOCHS)
    assert min(again) == restart + 1
    assert noted | again == values_of(tmp_path, NAMED, rows)


def in_words(job: DeployedJob, record: EstimateRecord) -> str:
    """Return everything that readers are shown of an epoch, as text."""
    watched, query = WatchedEstimates(job), rows_query(job, ChosenRows(), every=True)
    watched.next(record)
    assert query is not None
    table = PublishedRows.of(job, query)
    shown = [*table.csv_lines([record]), str(watched.latest), json.dumps(_measures(job))]
    sentence = measure_sentence(job, measure_series(job), record, epoch_name(job, 1), titled=False)
    shown.append(str(sentence))
    shown += [ResultDocuments(job).document(record).decode(), *other_warnings(job, record)]
    shown += list(PublishedRows.of(job).csv_lines([record]))
    return "\n".join(shown)


def series_of(job: DeployedJob) -> list[dict[str, Any]]:
    return [series_json(job, each) for each in measure_series(job)]


def test_row_of_a_name_appears_at_its_epoch_with_the_right_number(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    users = 6_000
    rows = [
        {
            "user": f"u{user}",
            "time": (FIRST_DAY + timedelta(days=7 * epoch)).isoformat(),
            "plan": "free" if user % 3 else "team",
        }
        for user in range(users)
        for epoch in (0, START - 1)
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    starts = {each["label"]: each.get("first_epoch") for each in series_of(NAMED)}
    assert {label for label, start in starts.items() if start} == {
        "wau=no: plan=team",
        "wau: plan=team",
    }
    assert starts["wau: plan=team"] == START
    ran = simulate(
        NAMED, load_event_log(NAMED, path, last_epoch=EPOCHS), seed=int(random.integers(99))
    )
    query = rows_query(NAMED, ChosenRows(by=("plan",)))
    assert query is not None
    for record in ran.records:
        found = {each.name: each for each in query.answers_of(record)}
        names = ["none", "other", "free", "pro", *(["team"] if record.epoch >= START else [])]
        assert list(found) == [f"wau: plan={name}" for name in names]
        active, moved = record.epoch in (1, START), record.epoch >= START
        expected = {"free": 4_000, "team" if moved else "other": 2_000}
        for name in names:
            answer = found[f"wau: plan={name}"]
            assert answer.standard_error is not None
            true = expected.get(name, 0) if active else 0
            assert abs(answer.value - true) < 5 * answer.standard_error < 1_000
        text = in_words(NAMED, record)
        assert "plan=spare" not in text
        assert ("1 spare cell is left: add values to attributes.plan.values" in text) == (
            record.epoch == 1
        )
        assert ("plan=team" in text) == moved
        assert "spare" not in "".join(map(str, record.notes))
        # The record in the topic has all cells, whatever their names.
        assert record.estimate is not None
        assert None not in record.to_json()["estimate"]["rows"]


# Deployment.
@pytest.fixture
def running(dpstream: Commands, tmp_path: Path) -> Path:
    path = tmp_path / "app.yaml"
    deploy_file(dpstream, path)
    return path


def deploy_file(
    dpstream: Commands,
    path: Path,
    values: str = "free, pro",
    spare: int = 2,
    epochs: int = 8,
    *options: str,
) -> Any:
    path.write_text(
        f"name: app\nepochs: {{count: {epochs}}}\nparameters: {{epsilon: 4, max_changes: 4}}\n"
        "measures: {wau: {type: active}}\nby: [plan]\n"
        f"attributes: {{plan: {{values: [{values}], spare: {spare}}}}}\n"
    )
    return dpstream("deploy", path, *options)


def test_deploy_names_a_spare_cell_from_the_epoch_after_the_next(
    dpstream: Commands, cluster: MemoryCluster, running: Path
) -> None:
    first = find_deployed(cast(Cluster, cluster), "app")
    dry = deploy_file(dpstream, running, "free, pro, team", 2, 8, "--dry-run")
    assert dry.code == 0, dry.errors
    assert find_deployed(cast(Cluster, cluster), "app") == first
    result = deploy_file(dpstream, running, "free, pro, team")
    assert result.code == 0, result.errors
    line = "plan: team in a spare cell from epoch 3 on, until then among other; spare cells left: 1"
    for shown in (dry, result):
        assert line.replace("plan:", "attributes.plan.values:") in " ".join(shown.output.split())
    assert "restart running producers before epoch 3" in result.output
    second = find_deployed(cast(Cluster, cluster), "app")
    assert second.attributes is not None
    assert second.attributes["plan"].named == {"team": 3}
    kept = ("deployment", "fingerprint", "constants", "start_offsets")
    assert all(getattr(second, name) == getattr(first, name) for name in kept)
    # The file can stay as it is, or state the number of cells that are left.
    for spare in (2, 1):
        again = deploy_file(dpstream, running, "free, pro, team", spare)
        assert "nothing to do" in again.output, again.errors
        assert dpstream("estimates", running).code == 0
    # Cells keep their names. To read results, the file from before the name will do.
    refused = deploy_file(dpstream, running)
    assert "its cells keep their values" in " ".join(refused.errors.split())
    assert dpstream("estimates", running).code == 0
    deploy_file(dpstream, running, "free, pro, team, club", 2, 8, "--dry-run")
    assert "pass its name instead of the file" in dpstream("estimates", running).errors
    assert find_deployed(cast(Cluster, cluster), "app") == second


@pytest.mark.parametrize(
    ("values", "spare", "message"),
    [
        ("pro", 2, "its cells keep their values. Add new values at the end"),
        ("pro, free", 2, "its cells keep their values. Add new values at the end"),
        ("free, team, pro", 2, "its cells keep their values. Add new values at the end"),
        ("free, pro, a, b, c", 2, "has 3 new values, but running job app has 2 spare cells left"),
        ("free, pro, team", 5, "its reports have another meaning"),
    ],
)
def test_deploy_refuses_values_that_have_no_spare_cell(
    dpstream: Commands, cluster: MemoryCluster, running: Path, values: str, spare: int, message: str
) -> None:
    first = find_deployed(cast(Cluster, cluster), "app")
    result = deploy_file(dpstream, running, values, spare)
    assert result.code != 0
    assert message in " ".join(result.errors.split())
    assert find_deployed(cast(Cluster, cluster), "app") == first


def test_deploy_refuses_a_name_that_no_epoch_could_have(dpstream: Commands, tmp_path: Path) -> None:
    path = tmp_path / "app.yaml"
    assert deploy_file(dpstream, path, epochs=2).code == 0
    result = deploy_file(dpstream, path, "free, pro, team", epochs=2)
    assert "epoch 3 on, but running job app ends with epoch 2" in " ".join(result.errors.split())


@pytest.mark.usefixtures("home")
def test_devices_accept_names_in_a_later_statement_but_no_other_change(
    cluster: MemoryCluster,
) -> None:
    devices: dict[str, Any] = {
        "devices": {"late": "7d"},
        "shuffle": {"grace": "14d"},
        "background": True,
    }
    first_day, statements = round(FIRST_DAY.timestamp() * 1000), []
    for values, day in ((("free", "pro"), 0), (("free", "pro", "team"), 8)):
        now = first_day + day * 86_400_000
        job = deploy(
            cast(Cluster, cluster), job_of(values, **devices), deployment=bytes(16), now=now
        )
        assert job.signed_description is not None
        statements.append(read_statement(job.signed_description.statement.encode()))
    first, second = statements
    assert second.is_revision_of(first)
    assert (first.revision, second.revision) == (0, 1)
    body = json.loads(second.text)
    (plan,) = body["events"]["private"]
    assert plan == {
        "column": "plan",
        "name": "plan",
        "named": {"team": START},
        "spare": 1,
        "values": ["free", "pro", "team"],
    }
    changes: list[dict[str, Any]] = [
        {"values": ["free", "pro", "club"], "named": {"club": START}},
        {"values": ["free", "team"]},
        {"named": {"team": START + 1}},
        {"spare": 2},
        {"column": "tier"},
    ]
    for change in changes:
        body["events"]["private"] = [plan | change]
        assert not read_statement(json.dumps(body).encode()).is_revision_of(second)
    answers = {}
    for statement in statements:
        events = statement.events
        assert events is not None
        history = events.history(None)
        for epoch, label in ((1, "team"), (START, "team"), (START + 1, "club")):
            history.record_labels(epoch, epoch, {"plan": label})
            history.close(epoch)
            answers[statement.revision, epoch] = job.questions[1].labels[
                cast(list[int], events.value(history, epoch))[1] - 1
            ]
    assert answers == {
        **{(0, epoch): "wau=no,plan=other" for epoch in (1, START, START + 1)},
        (1, 1): "wau=no,plan=other",
        (1, START): "wau=no,plan=team",
        (1, START + 1): "wau=no,plan=other",
    }
