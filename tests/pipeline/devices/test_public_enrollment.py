"""Test that enrollment and presence are the same for neighboring inputs.

Every input path gets a reference input and its neighbors, in which the rows of one user, zed,
differ: other values, bad values, no rows, other epochs, more or fewer rows. The public facts of an
epoch, its population and contributors, must be the same, and so must exit codes and messages.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.live import LiveSource
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.devices.producer_input import (
    LiveProducer,
    load_input,
    produce_change_log,
    produce_live,
)
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_punctuation
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.gateway import sorted_punctuations
from tests.support.memory_cluster import MemoryCluster

START = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EPOCHS = 4
HEADER = "user,epoch,value\n"

STREAM = {"epsilon": 2, "max_changes": 2}
SETS = {"epsilon": 1, "delta": 1e-6, "items": 2}
JOBS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "future_rand": ("future_rand", STREAM, ["0", "1"]),
    "hadamard_values": ("hadamard_values", {**STREAM, "domain": ["a", "b", "c"]}, ["a", "c"]),
    "range_values": ("range_values", {**STREAM, "low": 0, "high": 8, "buckets": 8}, ["0", "7.5"]),
    "count_min": ("count_min", {**SETS, "domain": ["a", "b", "c"]}, ["a", "c", ""]),
}
every_job = pytest.mark.parametrize("kind", JOBS)


@cache
def job_of(kind: str, **epochs: Any) -> DeployedJob:
    protocol, parameters, _ = JOBS[kind]
    fields = {
        "name": "job",
        "protocol": protocol,
        "parameters": parameters,
        "epochs": {"count": EPOCHS, "start": "2024-01-01", "length": "PT1M", **epochs},
        "shuffle": {"minimum": 1000},
        "topics": {"partitions": 2},
    }
    return deploy_job(make_job(fields), deployed_at=0, deployment=bytes(16))


def values_of(kind: str) -> list[str]:
    return JOBS[kind][2]


@dataclass(frozen=True)
class Public:
    """Public population and contributors by epoch, and the reported number of unknown users.

    Record sizes depend on public randomness, and are compared only if that is the same.
    """

    epochs: dict[int, tuple[int, int]]
    unknown_users: int
    sizes: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    @property
    def populations(self) -> list[int]:
        return [population for population, _ in self.epochs.values()]


def epochs_in(log: MemoryLog) -> dict[int, tuple[int, int]]:
    return {each.epoch: (each.population, each.contributors) for each in sorted_punctuations(log)}


def sizes_in(log: MemoryLog) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(len(value) for value in log.values(Role.REPORTS, partition)) for partition in range(2)
    )


def same_randomness(purpose: str, number: int) -> np.random.Generator:
    """Fix the randomness that devices draw before they read a value, which is public."""
    return seeded_generator(len(purpose), number)


def rows_text(*rows: Sequence[object]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class Pipe:
    def __init__(self, steps: Sequence[tuple[float, str]]) -> None:
        self._steps = [
            (START + minute * MINUTE, piece)
            for minute, text in steps
            for piece in _pieces(text.encode(errors="surrogateescape"))
        ]
        self._now = START

    def clock(self) -> datetime:
        return self._now

    def read(self, deadline: datetime) -> bytes | None:
        if not self._steps:
            return b""
        moment, data = self._steps[0]
        self._now = max(self._now, min(moment, deadline))
        if moment > deadline:
            return None
        del self._steps[0]
        return data or None


def _pieces(data: bytes) -> list[bytes]:
    return [data[begin : begin + (1 << 16)] for begin in range(0, max(len(data), 1), 1 << 16)]


def live(
    job: DeployedJob,
    arriving: Sequence[tuple[float, str]],
    *,
    user_list: Sequence[str] = (),
    folder: Path | None = None,
    until: float = EPOCHS,
    header: str = HEADER,
    log: MemoryLog | None = None,
) -> Public:
    """Feed text to a live source, each piece at its minute; then advance the clock to the end.

    With a folder, every piece is read in a separate run.
    """
    log = MemoryLog() if log is None else log
    calendar = job.epochs.calendar
    assert calendar is not None
    unknown_users = 0
    steps = sorted(arriving, key=lambda step: step[0])
    runs = [steps] if folder is None else [[step] for step in steps]
    for run, then in zip_longest(runs, runs[1:]):
        with Producer(
            job, folder, name="p", transport=MemoryDriver(log), generators=same_randomness
        ) as producer:
            taker = LiveProducer(producer, folder, user_list=user_list)
            source = LiveSource(
                calendar, producer.closed_epoch + 1, last_epoch=job.last_epoch, domain=job.domain
            )
            end = until if then is None else run[-1][0]
            pipe = Pipe([(run[0][0], header), *run, (end, "")])
            produce_live(taker, source, pipe.read, pipe.clock)
            unknown_users = max(unknown_users, taker.unknown_users)
    return Public(epochs_in(log), unknown_users, sizes_in(log))


def from_file(
    job: DeployedJob, text: str, folder: Path, *, user_list: Sequence[str] | None = None, **how: Any
) -> Public:
    path = folder / "input.csv"
    path.write_bytes((HEADER + text).encode(errors="surrogateescape"))
    change_log = load_input(job, path, users=user_list, skip_bad_rows=True, **how)
    log = MemoryLog()
    with Producer(
        job, None, name="p", transport=MemoryDriver(log), generators=same_randomness
    ) as producer:
        unknown_users = produce_change_log(producer, change_log)
    return Public(epochs_in(log), unknown_users, sizes_in(log))


# Numbers of users whose first row arrives at an epoch: they must not become public.


def first_ones() -> list[tuple[float, str]]:
    users = iter(f"user{number}" for number in range(31))
    return [
        (epoch - 0.5, rows_text(*((next(users), epoch, 1) for _ in range(count))))
        for epoch, count in enumerate([17, 5, 9, 0], 1)
    ]


def test_first_live_rows_do_not_change_the_population() -> None:
    job, log = job_of("future_rand"), MemoryLog()
    with pytest.raises(
        InputError, match=r"no users are enrolled. .* with --users FILE, .*'alice,0,'"
    ):
        live(job, first_ones(), log=log)
    assert epochs_in(log) == {}

    user_list = [f"user{number}" for number in range(40)]
    without_values = live(job, [(0.5, "")], user_list=user_list)
    assert without_values.populations == [40] * EPOCHS
    assert live(job, first_ones(), user_list=user_list) == without_values


# Live input: any rows of one user, at any time.

USER_LIST = ["ann", "bob", "zed"]
OTHERS = [(0.2, "ann,1,{0}\nbob,1,{1}\n"), (1.5, "ann,2,{1}\n"), (2.5, "bob,3,{0}\n")]
BAD_VALUES = ["nonsense", "2.5.1", "\udcff", "x" * 3000, '"', "", "-1", "1e999", "a,b"]


def others(kind: str) -> list[tuple[float, str]]:
    values = values_of(kind)
    return [(minute, text.format(*values)) for minute, text in OTHERS]


def zed_rows(kind: str) -> st.SearchStrategy[list[tuple[float, str]]]:
    epochs = st.integers(-2, EPOCHS + 3).map(str) | st.sampled_from(["", "soon", "1e3"])
    values = st.sampled_from([*values_of(kind), *BAD_VALUES])
    rows = st.tuples(st.just("zed"), epochs, values).map(rows_text)
    broken = st.sampled_from(
        ['zed,1,"\n', "zed,1\n", "zed\n", "zed,1,1,1\n", 'zed,1,"a"b\n', "\n", ",,\n"]
    )
    return st.lists(st.tuples(st.floats(-1, EPOCHS), rows | broken), max_size=6)


@every_job
@settings(max_examples=30)
@given(data=st.data())
def test_public_output_ignores_live_rows_of_listed_users(kind: str, data: st.DataObject) -> None:
    job = job_of(kind)
    reference = live(job, others(kind), user_list=USER_LIST)
    assert reference == Public(dict.fromkeys(range(1, EPOCHS + 1), (3, 3)), 0)
    seen = live(job, others(kind) + data.draw(zed_rows(kind)), user_list=USER_LIST)
    assert (seen, seen.sizes) == (reference, reference.sizes)


@every_job
def test_interrupted_runs_do_not_reveal_which_users_have_rows(kind: str, tmp_path: Path) -> None:
    value = values_of(kind)[1]
    rows: list[list[tuple[float, str]]] = [
        [],
        [(0.3, f"zed,1,{value}\n")],
        [(2.6, f"zed,3,{value}\n")],
    ]
    seen = [
        live(job_of(kind), others(kind) + more, user_list=USER_LIST, folder=tmp_path / str(number))
        for number, more in enumerate(rows)
    ]
    assert seen == [Public(dict.fromkeys(range(1, EPOCHS + 1), (3, 3)), 0)] * 3


@every_job
def test_rows_without_a_value_before_epoch_1_serve_as_a_user_list(kind: str) -> None:
    value = values_of(kind)[1]
    listed = (-0.5, "ann,0,\nbob,-3,\nzed,0,\n")
    for more in ([], [(0.1, f"zed,1,{value}\n")], [(1.5, f"zed,2,{value}\nzed,2,nonsense\n")]):
        assert live(job_of(kind), [listed, *more]).populations == [3] * EPOCHS


def test_rows_that_serve_as_a_user_list_can_precede_the_start() -> None:
    rows = "ann,2023-12-31,\nbob,2023-12-31T23:59:59,\nann,2024-01-01T00:00:01,1\n"
    seen = live(job_of("future_rand"), [(0.1, rows)], header="user,time,value\n")
    assert seen == Public(dict.fromkeys(range(1, EPOCHS + 1), (2, 2)), 0)


def test_row_dated_in_epoch_1_does_not_enroll_its_user() -> None:
    """An empty value may mean "no item", which could replace another value."""
    job = job_of("count_min")
    for row in ("zed,1,\n", "zed,1,a\n"):
        seen = live(job, [(0, "ann,0,\n"), (0.5, row)])
        assert seen == Public(dict.fromkeys(range(1, EPOCHS + 1), (1, 1)), 1)


@every_job
def test_unknown_user_is_counted_once_and_not_enrolled(kind: str) -> None:
    job = job_of(kind, renew=True)
    value = values_of(kind)[1]
    rows = [(0.5, f"eve,1,{value}\n"), (1.5, f"eve,2,{value}\nmallory,2,{value}\neve,1,\n")]
    seen = live(job, others(kind) + rows, user_list=USER_LIST, until=2 * EPOCHS)
    # Nor in the next horizon: which users have rows by then can depend on their values.
    assert seen == Public(dict.fromkeys(range(1, 2 * EPOCHS + 1), (3, 3)), 2)


def test_users_added_to_the_list_are_enrolled_from_the_next_closed_epoch(tmp_path: Path) -> None:
    job, log = job_of("future_rand"), MemoryLog()
    live(job, [(0.5, "ann,1,1\n")], user_list=["ann"], folder=tmp_path, until=1.5, log=log)
    live(job, [(1.6, "")], user_list=["ann", "bob"], folder=tmp_path, log=log)
    assert epochs_in(log) == {1: (1, 1), 2: (2, 2), 3: (2, 2), 4: (2, 2)}
    with pytest.raises(InputError, match="1 of the 2 users enrolled with producer p are missing"):
        live(job, [(1.6, "")], user_list=["bob"], folder=tmp_path)


def test_overlong_line_does_not_make_users_absent() -> None:
    job = job_of("count_min")
    long = "zed,1," + "a" * 3_000_000 + "\nann,1,b\n"
    seen = live(job, [(0.5, long), (1.5, "ann,2,a\n")], user_list=USER_LIST)
    assert seen == live(job, others("count_min"), user_list=USER_LIST)


# Files.


@every_job
def test_users_with_a_row_are_enrolled_before_the_first_epoch(kind: str, tmp_path: Path) -> None:
    job, values = job_of(kind), values_of(kind)
    text = "".join(f"user{number},{1 + number % 4},{values[-1]}\n" for number in range(31))
    seen = from_file(job, text, tmp_path)
    assert seen == Public(dict.fromkeys(range(1, EPOCHS + 1), (31, 31)), 0)


@cache
def sizes_of_quiet_users(kind: str) -> tuple[tuple[int, ...], ...]:
    return live(job_of(kind), [(0.5, "")], user_list=USER_LIST).sizes


def file_others(kind: str) -> str:
    return "".join(text for _, text in others(kind))


@every_job
@settings(max_examples=30)
@given(data=st.data())
def test_rows_of_a_user_do_not_affect_public_output(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    epochs = st.integers(-2, EPOCHS + 3).map(str) | st.sampled_from(["", "soon", "9" * 30])
    values = st.sampled_from([*values_of(kind), *BAD_VALUES])
    rows = data.draw(st.lists(st.tuples(st.just("zed"), epochs, values), min_size=1, max_size=5))
    seen = from_file(
        job_of(kind), file_others(kind) + rows_text(*rows), tmp_path_factory.getbasetemp()
    )
    assert seen == Public(dict.fromkeys(range(1, EPOCHS + 1), (3, 3)), 0)
    assert seen.sizes == sizes_of_quiet_users(kind)


@every_job
@settings(max_examples=30)
@given(data=st.data())
def test_file_does_not_affect_public_output_if_users_are_listed(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    rows = "".join(text for _, text in data.draw(zed_rows(kind)))
    before = data.draw(st.booleans())
    text = rows + file_others(kind) if before else file_others(kind) + rows
    seen = from_file(job_of(kind), text, tmp_path_factory.getbasetemp(), user_list=USER_LIST)
    assert seen == Public(dict.fromkeys(range(1, EPOCHS + 1), (3, 3)), 0)
    assert seen.sizes == sizes_of_quiet_users(kind)


def test_skipping_rows_with_an_unreadable_user_requires_a_user_list(tmp_path: Path) -> None:
    job = job_of("future_rand")
    text = 'ann,1,1\nzed,1,0,5\n"zed"x,1,1\n'
    with pytest.raises(InputError, match=r"2 bad rows with an unreadable user .* --users FILE"):
        from_file(job, text, tmp_path)
    assert from_file(job, text, tmp_path, user_list=["ann", "zed"]).populations == [2] * EPOCHS


def test_rows_of_unknown_users_are_ignored_and_counted_by_user(tmp_path: Path) -> None:
    text = "ann,1,1\neve,1,1\neve,3,0\nmallory,2,nonsense\n"
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + text)
    log = load_input(job_of("future_rand"), path, users=["ann", "bob"], skip_bad_rows=True)
    assert isinstance(log, ChangeLog)
    assert (log.users, log.unknown_users, log.ground_truth().tolist()) == (
        ("ann", "bob"),
        2,
        [1] * EPOCHS,
    )
    assert log.warnings[0] == (
        f"{path}: not on the user list: 2 users whose rows are not used (the first: line 3, "
        "user 'eve')"
    )


@every_job
def test_user_who_is_added_to_the_input_file_later_is_unknown(kind: str, tmp_path: Path) -> None:
    """A file that grows daily would publish each day's number of first rows."""
    job, value = job_of(kind), values_of(kind)[1]
    seen = []
    for more in ("", f"zed,2,{value}\n", f"zed,1,{value}\nyan,2,{value}\n"):
        log, path = MemoryLog(), tmp_path / "rows.csv"
        with Producer(job, None, name="p", transport=MemoryDriver(log)) as producer:
            path.write_text(HEADER + f"ann,1,{value}\nbob,1,{value}\n")
            produce_change_log(producer, load_input(job, path, users=None, to_epoch=1))
            path.write_text(path.read_text() + more)
            unknown_users = produce_change_log(producer, load_input(job, path, users=None))
            seen.append((epochs_in(log), unknown_users))
    assert [epochs for epochs, _ in seen] == [dict.fromkeys(range(1, EPOCHS + 1), (2, 2))] * 3
    assert [unknown_users for _, unknown_users in seen] == [0, 1, 2]


def test_file_input_for_a_recurring_job_requires_a_last_epoch(tmp_path: Path) -> None:
    job = job_of("future_rand", renew=True)
    with pytest.raises(InputError, match="job job is recurring, so --to-epoch"):
        from_file(job, "ann,1,1\n", tmp_path)
    for last in (1, 3, 6, 9):
        seen = from_file(job, f"ann,1,1\nzed,{last},1\n", tmp_path, to_epoch=6)
        assert seen.epochs == dict.fromkeys(range(1, 7), (2, 2))


# Programs that use a producer.


@every_job
def test_enrollment_within_a_horizon_reveals_its_time_but_no_value(
    kind: str,
) -> None:
    job = job_of(kind, renew=True)
    seen = set()
    for value in values_of(kind):
        log = MemoryLog()
        with Producer(job, None, name="p", transport=MemoryDriver(log)) as producer:
            producer.enroll(["ann", "bob"])
            for epoch in range(1, EPOCHS + 2):
                if epoch == 3:
                    producer.enroll(["zed"])
                    producer.withdraw(["bob"])
                producer.report(epoch, dict.fromkeys(producer.users, value))
                producer.close(epoch)
        seen.add(str(epochs_in(log)))
    assert seen == {str({1: (2, 2), 2: (2, 2), 3: (3, 3), 4: (3, 3), 5: (2, 2)})}


@every_job
def test_unusable_value_does_not_make_its_user_absent(kind: str) -> None:
    job, value = job_of(kind), values_of(kind)[0]
    log = MemoryLog()
    with Producer(job, None, name="p", transport=MemoryDriver(log)) as producer:
        producer.enroll(["ann", "zed"])
        producer.report(1, {"ann": value, "zed": value})
        with pytest.raises(ProducerError):
            producer.report(1, {"ann": value, "zed": "nonsense"})
        producer.close(1)
    assert epochs_in(log) == {1: (2, 2)}


# The command line: exit codes and output.


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str],
    cluster: MemoryCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Commands:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    return Commands(capsys)


def job_file(folder: Path, kind: str, name: str = "job", start: str = "2024-01-01") -> Path:
    protocol, parameters, _ = JOBS[kind]
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nprotocol: {protocol}\nparameters: {parameters}\n"
        f"epochs: {{count: {EPOCHS}, start: {start}, length: PT1H}}\n"
        "shuffle: {minimum: 1000}\ntopics: {partitions: 2}\n"
    )
    return path


def punctuations(cluster: MemoryCluster, job: str) -> list[tuple[int, int, int]]:
    records = chain.from_iterable(cluster.records[f"{job}.reports", each] for each in range(2))
    said = [
        decode_punctuation(r.value) for r in records if kind_of(r.value) is RecordType.PUNCTUATION
    ]
    return sorted((each.epoch, each.population, each.contributors) for each in said)


@every_job
def test_command_output_is_the_same_for_neighboring_inputs(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path, kind: str
) -> None:
    path, user_list = tmp_path / "rows.csv", tmp_path / "user list"
    user_list.write_text("ann\nbob\nzed\n")
    said, published = [], []
    # Neighbors have other values at the same moments; the number of bad rows is known only to the
    # gateway, which sees them.
    for number, value in enumerate(values_of(kind)):
        path.write_text(HEADER + file_others(kind) + f"zed,2,{value}\nzed,9,{value}\n")
        dpstream("deploy", job_file(tmp_path, kind, f"job{number}"))
        for name, more in {"all": [], "some": ["--users", user_list]}.items():
            result = dpstream("produce", f"job{number}", "--input", path, "--name", name, *more)
            errors = result.errors.replace(f"job{number}", "job")
            lines = [line for line in errors.splitlines() if "state folder" not in line]
            said.append((name, result.code, result.output, lines))
        published.append(punctuations(cluster, f"job{number}"))
    assert said[:2] * len(values_of(kind)) == said
    assert {code for _, code, _, _ in said} == {0}
    assert published == [published[0]] * len(values_of(kind))
    assert {users for _, *counts in published[0] for users in counts} == {3}


@contextmanager
def standard_input(monkeypatch: pytest.MonkeyPatch, text: str) -> Iterator[None]:
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    with os.fdopen(reading) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        yield


@pytest.mark.parametrize("rows", ["", "ann,1,1\n", "ann,1,nonsense\n", "ann\n", "eve,1,0\n"])
def test_exit_code_of_live_input_does_not_depend_on_rows(
    dpstream: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: str
) -> None:
    dpstream("deploy", job_file(tmp_path, "future_rand", start="2999-01-01"))
    user_list = tmp_path / "user list"
    user_list.write_text("ann\nbob\n")
    with standard_input(monkeypatch, HEADER + rows):
        said = dpstream("produce", "job", "--input", "-", "--users", user_list, "--json")
    assert said.json == {
        "job": "job",
        "producer": "producer",
        "users": 2,
        "unknown_users": int(rows.startswith("eve")),
        "closed_before": 0,
        "closed_epoch": 0,
        "exhausted": 0,
    }
    assert "2 users enrolled; this list is public" in said.errors
    if rows in ("ann,1,nonsense\n", "ann\n"):
        assert "standard input:2: " in said.errors
        assert "; skipped" in said.errors
