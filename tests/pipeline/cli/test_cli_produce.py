"""Test ``dpstream produce``: every epoch once, correct values, and resuming."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.devices.live import LiveSource
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_input import LiveProducer, produce_change_log, produce_live
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import EPOCHS, job_text, write_changes

START = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class NotedProducer(Producer):
    def close(self, epoch: int) -> None:
        self.noted[epoch] = {
            user: int(value)
            for user, value, present in zip(self.users, self._values, self._present, strict=True)
            if present
        }
        super().close(epoch)

    noted: dict[int, dict[str, int]]


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def job() -> DeployedJob:
    more = ", start: 2024-01-01, length: PT1M"
    return deploy_job(parse_job(job_text(more=more)), deployed_at=0)


@pytest.fixture
def open_producer(
    job: DeployedJob, log: MemoryLog, tmp_path: Path
) -> Iterator[Callable[[], NotedProducer]]:
    noted: dict[int, dict[str, int]] = {}
    opened: list[NotedProducer] = []

    def reopen() -> NotedProducer:
        for producer in opened:
            producer.shut()
        producer = NotedProducer(
            job, tmp_path / "state", name="gateway", transport=MemoryDriver(log)
        )
        producer.noted = noted
        opened.append(producer)
        return producer

    yield reopen
    for producer in opened:
        producer.shut()


def change_log_of(path: Path, text: str, users: Sequence[str] | None = None) -> ChangeLog:
    path.write_text("user,epoch,value\n" + text)
    return load_change_log(path, last_epoch=EPOCHS, users=users)


@pytest.fixture
def change_log(tmp_path: Path) -> ChangeLog:
    return load_change_log(write_changes(tmp_path / "changes.csv", users=9), last_epoch=EPOCHS)


def values_of(change_log: ChangeLog, epoch: int) -> dict[str, int]:
    return dict(zip(change_log.users, change_log.values_at(epoch).tolist(), strict=True))


class InterruptError(Exception):
    """Simulated interrupt of the process."""


def test_interrupted_run_resumes_with_the_next_epoch(
    open_producer: Callable[[], NotedProducer], change_log: ChangeLog
) -> None:
    def interrupt(epoch: int) -> None:
        if epoch == 5:
            raise InterruptError

    with pytest.raises(InterruptError):
        produce_change_log(open_producer(), change_log, on_epoch=interrupt)

    producer = open_producer()
    messages: list[int] = []
    produce_change_log(producer, change_log, on_epoch=messages.append)
    assert messages == list(range(6, EPOCHS + 1))
    assert producer.noted == {epoch: values_of(change_log, epoch) for epoch in range(1, EPOCHS + 1)}

    produce_change_log(open_producer(), change_log, on_epoch=messages.append)
    assert messages[-1] == EPOCHS


def test_values_stay_with_their_users_when_the_user_list_grows(
    open_producer: Callable[[], NotedProducer], tmp_path: Path
) -> None:
    early = change_log_of(tmp_path / "early.csv", "nora,1,1\nzoe,2,1\n")
    late = change_log_of(
        tmp_path / "late.csv",
        "adam,3,1\nnora,1,1\nzoe,2,1\nnora,4,0\n",
        users=["nora", "zoe", "adam"],
    )

    def interrupt(epoch: int) -> None:
        if epoch == 2:
            raise InterruptError

    with pytest.raises(InterruptError):
        produce_change_log(open_producer(), early, on_epoch=interrupt)
    producer = open_producer()
    produce_change_log(producer, late)
    assert producer.users == ("nora", "zoe", "adam")
    assert producer.noted[2] == {"nora": 1, "zoe": 1}
    assert producer.noted[3] == {"nora": 1, "zoe": 1, "adam": 1}
    assert producer.noted[4] == {"nora": 0, "zoe": 1, "adam": 1}


class Script:
    def __init__(self, start: datetime, *steps: str | timedelta) -> None:
        self.now = start
        self.steps: list[str | timedelta] = list(steps)

    def clock(self) -> datetime:
        return self.now

    def read(self, deadline: datetime) -> bytes | None:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, str):
                return step.encode()
            if self.now + step > deadline:
                self.steps.insert(0, self.now + step - deadline)
                self.now = deadline
                return None
            self.now += step
        return b""


USER_LIST = ["ann", "bob", "cleo"]


def run_live(
    producer: Producer,
    folder: Path,
    start: datetime,
    *steps: str | timedelta,
    notify: Callable[[str], None] = lambda sentence: None,
) -> LiveSource:
    calendar = producer.job.epochs.calendar
    assert calendar is not None
    source = LiveSource(calendar, producer.closed_epoch + 1, last_epoch=producer.job.last_epoch)
    script = Script(start, *steps)
    live = LiveProducer(producer, folder, user_list=USER_LIST)
    produce_live(live, source, script.read, script.clock, notify=notify)
    return source


def test_epochs_are_closed_by_the_clock(
    open_producer: Callable[[], NotedProducer], tmp_path: Path
) -> None:
    producer = open_producer()
    rows = "user,value\nann,1\n", MINUTE, "bob,1\nann,0\n", 2 * MINUTE
    run_live(producer, tmp_path / "state", START, *rows)
    assert producer.noted == {
        1: {"ann": 1, "bob": 0, "cleo": 0},
        2: {"ann": 0, "bob": 1, "cleo": 0},
        3: {"ann": 0, "bob": 1, "cleo": 0},
    }


def test_users_without_new_rows_retain_their_values_after_a_restart(
    open_producer: Callable[[], NotedProducer], tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    source = run_live(
        open_producer(), folder, START, "user,value\nann,1\nbob,0\n", MINUTE, "cleo,1\n"
    )
    # The input ended within epoch 2: the values received so far are stored.
    assert source.epoch == 2
    assert stat.S_IMODE((folder / "values.json").stat().st_mode) == 0o600

    producer = open_producer()
    run_live(producer, folder, START + 1.5 * MINUTE, "user,value\nbob,1\n", MINUTE)
    assert producer.noted == {
        1: {"ann": 1, "bob": 0, "cleo": 0},
        2: {"ann": 1, "bob": 1, "cleo": 1},
    }


def test_live_source_logs_bad_rows_and_continues(
    open_producer: Callable[[], NotedProducer], tmp_path: Path
) -> None:
    producer, messages = open_producer(), list[str]()
    rows = "user,value\nann,1\n", "bob,maybe\n", MINUTE, "cleo,x\ncleo,1\n", MINUTE
    run_live(producer, tmp_path / "state", START, *rows, notify=messages.append)
    assert producer.noted == {
        1: {"ann": 1, "bob": 0, "cleo": 0},
        2: {"ann": 1, "bob": 0, "cleo": 1},
    }
    assert messages == [
        "standard input:3: value 'maybe' is not 0 or 1; skipped",
        "standard input:4: value 'x' is not 0 or 1; skipped",
    ]


def test_rejected_input_does_not_change_earlier_values(
    open_producer: Callable[[], NotedProducer], tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    run_live(open_producer(), folder, START, "user,value\nann,1\n")
    with pytest.raises(InputError, match="the first line: got 'bob,1'; expected the columns"):
        run_live(open_producer(), folder, START, "bob,1\n")
    producer = open_producer()
    run_live(producer, folder, START, "user,value\n", MINUTE)
    assert producer.noted == {1: {"ann": 1, "bob": 0, "cleo": 0}}


def put(cluster: MemoryCluster, *events: object, topic: str = "events", partition: int = 0) -> None:
    cluster.partitions[topic] = 2
    held = cluster.records[topic, partition]
    for event in events:
        held.append(LogRecord(len(held), json.dumps(event).encode(), 1_709_251_200_000))


def deploy(dpstream: Commands, tmp_path: Path, keys: str = "", calendar: str = "") -> None:
    path = tmp_path / "small.yaml"
    path.write_text(job_text(more=calendar) + keys)
    result = dpstream("deploy", path)
    assert result.code == 0, result.errors


def test_topic_input_resumes_after_the_last_closed_epoch(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    deploy(dpstream, tmp_path, "input: {columns: {user: who.id, value: on, epoch: week}}\n")
    put(cluster, {"who": {"id": "ann"}, "week": 1, "on": True}, {"who": 3})
    put(cluster, {"who": {"id": "bob"}, "week": 99, "on": True}, partition=1)
    result = dpstream("produce", "small", "--from-topic", "events", "--to-epoch", 3)
    assert result.code == 0, result.errors
    assert result.output == "2 users, epochs 1 to 3: reports drawn and sent\n"
    for warning in (
        "events of cluster memory:offset 1: missing key 'who.id': '{\"who\": 3}' (partition 0); sk",
        "epoch 3 is closed",
        f"events of cluster memory: 1 event after epoch {EPOCHS}: not used",
        "events of cluster memory: 1 bad event skipped",
    ):
        assert warning in result.errors
    put(cluster, {"who": {"id": "ann"}, "week": 4, "on": False})
    result = dpstream("produce", "small", "--from-topic", "events", "--to-epoch", 99, "--json")
    assert (result.code, result.json["closed_before"], result.json["closed_epoch"]) == (
        0,
        3,
        EPOCHS,
    )
    result = dpstream("produce", "small", "--from-topic", "events", "--to-epoch", 99)
    assert result.output == "no epoch was closed: all requested epochs were already closed\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "specify exactly one of --input FILE, --input - and --from-topic TOPIC"),
        (("--input", "x", "--input-kafka-config", "y"), "require --from-topic"),
        (
            ("--from-topic", "nowhere", "--to-epoch", 1),
            "topic nowhere does not exist on memory:9092",
        ),
        (("--from-topic", "events"), "closes epochs by the clock: set epochs.start"),
    ],
)
def test_topic_options_are_validated(
    dpstream: Commands,
    cluster: MemoryCluster,
    tmp_path: Path,
    options: tuple[object, ...],
    message: str,
) -> None:
    deploy(dpstream, tmp_path)
    put(cluster, {"user": "ann", "epoch": 1, "value": 1})
    result = dpstream("produce", "small", *options)
    assert (result.code != 0, result.output) == (True, "")
    assert message in result.errors


@pytest.fixture
def changes(tmp_path: Path) -> Path:
    return write_changes(tmp_path / "changes.csv")


@pytest.fixture
def foreign(changes: Path) -> Path:
    text = changes.read_text().replace("user,epoch,value", "Matrikel,Woche,Stand")
    path = changes.with_name("foreign.csv")
    path.write_bytes(text.replace(",1\n", ",ja\n").replace(",", ";").encode("utf-16"))
    return path


FLAGS = ["--separator", ";", "--column", "user=Matrikel", "--column", "epoch=woche"]
SECTION = "input: {columns: {value: Stand, user: nobody}, true: [ja], separator: tab}\n"


def epochs_of(result: Any) -> list[dict[str, Any]]:
    assert result.code == 0, result.errors
    epochs: list[dict[str, Any]] = result.json["epochs"]
    return epochs


def test_flags_override_the_input_section(
    dpstream: Commands, job_file: Path, changes: Path, foreign: Path
) -> None:
    seeded = ("--seed", 7, "--json")
    plain = epochs_of(dpstream("simulate", job_file, "--input", changes, *seeded))
    job_file.write_text(job_text() + SECTION)
    result = dpstream("simulate", job_file, "--input", foreign, *seeded, *FLAGS)
    assert epochs_of(result) == plain
    assert result.errors == f"{foreign}: read as UTF-16, according to its byte order mark\n"
    result = dpstream("simulate", job_file, "--input", foreign, *seeded)
    assert result.code == 2
    assert "Use --separator ';'" in result.errors


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--separator", ""], '--separator: "" is not allowed; expected one character, such as'),
        (["--column", "wer=x"], "--column: unknown key; allowed: user, value, epoch, time"),
        (["--time-format", "x"], '--time-format: "x" is not allowed; expected iso, unix (seconds)'),
        (["--duplicates", "x"], '--duplicates: "x" is not allowed; expected first, last, largest'),
        (["--clamp"], "input: clamp requires numbers with a range, but"),
    ],
)
def test_invalid_flag_is_rejected(
    dpstream: Commands, job_file: Path, changes: Path, flags: list[str], message: str
) -> None:
    result = dpstream("simulate", job_file, "--input", changes, *flags)
    assert (result.code, result.output) == (2, "")
    assert message in result.errors
