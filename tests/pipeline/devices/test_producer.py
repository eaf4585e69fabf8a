"""Test that a producer draws once, stores the draw, and resends it until acknowledged."""

from __future__ import annotations

import errno
import logging
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from randomgen import AESCounter

from dpstream.pipeline.devices.producer import Producer, ProducerError, Value
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.pipeline.state import FolderInUse
from dpstream.randomizers.sampled_response import SampledResponse
from dpstream.topics.batches import decode_batch, decode_punctuation
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from tests.support.gateway import BrokenTransport, open_producer, seeded
from tests.support.new_jobs import new_job
from tests.support.small_disks import SmallDisk, may_mount
from tests.support.small_run import generators


def deployed(name: str = "producers") -> DeployedJob:
    job = new_job(name, "future_rand", {"epsilon": 1.0, "max_changes": 2}, count=8, partitions=1)
    return deploy_job(job, deployed_at=0)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def job() -> DeployedJob:
    return deployed()


def words(log: MemoryLog) -> Iterator[list[int]]:
    for value in log.values(Role.REPORTS):
        if kind_of(value) is RecordType.BATCH:
            yield decode_batch(value).words.values[:, 0].tolist()


def test_producer_registers_once_before_reporting(
    job: DeployedJob, log: MemoryLog, tmp_path: Path
) -> None:
    for _ in range(2):
        open_producer(job, tmp_path / "state", log).shut()
    (value,) = log.values(Role.PRODUCERS)
    registration = Registration.from_bytes(value)
    assert (registration.name, registration.first_epoch) == ("gateway", 1)


def test_devices_report_at_multiples_of_their_interval(job: DeployedJob, log: MemoryLog) -> None:
    with open_producer(job, None, log) as producer:
        producer.enroll(["thermostat"])
        for epoch in range(1, 9):
            producer.report(epoch, {"thermostat": epoch % 2})
            producer.close(epoch)
    sent = list(words(log))
    orders = {word // 2 for (word,) in sent}
    assert len(orders) == 1
    assert len(sent) == 8 >> orders.pop()
    punctuations = [
        decode_punctuation(value)
        for value in log.values(Role.REPORTS)
        if kind_of(value) is RecordType.PUNCTUATION
    ]
    assert [record.epoch for record in punctuations] == list(range(1, 9))
    assert {(record.contributors, record.population) for record in punctuations} == {(1, 1)}
    assert sum(record.batches for record in punctuations) == len(sent)


def test_only_present_users_whose_turn_it_is_contribute_to_a_sampled_job(
    log: MemoryLog, tmp_path: Path
) -> None:
    """`shuffle.minimum` applies to these contributors."""
    parameters = {"epsilon": 1, "reports": 1}
    sampled = new_job("sampled", "sampled_response", parameters, count=4, partitions=1)
    job = deploy_job(sampled, deployed_at=0)
    users = [f"user {number}" for number in range(40)]
    with open_producer(job, tmp_path / "state", log) as producer:
        producer.enroll(users)
        for epoch, present in enumerate((40, 40, 0, 40), start=1):
            producer.report(epoch, dict.fromkeys(users[:present], 1))
            producer.close(epoch)
    sent = [
        decode_punctuation(value)
        for value in log.values(Role.REPORTS)
        if kind_of(value) is RecordType.PUNCTUATION
    ]
    heads = {each.epoch: (each.contributors, each.population) for each in sent}
    assert heads == {1: (10, 40), 2: (10, 40), 3: (0, 40), 4: (10, 40)}


def sampled(reports: int, minimum: int = 100) -> DeployedJob:
    job = new_job(
        "sampled", "sampled_response", {"epsilon": 4, "reports": reports}, count=6, partitions=1,
        minimum=minimum,
    )  # fmt: skip
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


class Complemented(SampledResponse):
    """Devices with all flips reversed."""

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[np.unsignedinteger]]:
        drawn = super()._draw(count, rng)
        return drawn | {"flips": drawn["flips"] ^ np.uint8((1 << self.law.reports) - 1)}


class Talkative(Complemented):
    """Devices that log how many of their first answers are reversed."""

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        logging.getLogger("devices").info("%d reversed", np.count_nonzero(self._flips & 1))
        return super().report(epoch, values, present, rng)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("reports", [1, 3])
@pytest.mark.parametrize("other", [Complemented, Talkative])
def test_only_answers_depend_on_values_and_flips(
    reports: int,
    restarts: bool,
    other: type[SampledResponse],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Opposite values and flips yield the same answers, so all records and logs are equal."""
    caplog.set_level(logging.DEBUG)
    job, values = sampled(reports), np.random.default_rng(4).integers(0, 2, (6, 60))
    seen = []
    for opposite in (False, True):
        made = other if opposite else SampledResponse
        monkeypatch.setattr(DeployedJob, "randomizer", lambda job, made=made: made(job.law))
        log, folder = MemoryLog(), tmp_path / f"{opposite}"
        ids = (bytes([number]) * 16 for number in range(256))

        def reopened(log: MemoryLog = log, folder: Path = folder, ids: Any = ids) -> Producer:
            transport = MemoryDriver(log)
            return Producer(
                job, folder, name="gateway", transport=transport, generators=seeded(1),
                identifiers=lambda: next(ids),
            )  # fmt: skip

        producer = reopened()
        producer.enroll([f"user {number}" for number in range(60)])
        for epoch in range(1, 7):
            if restarts:
                producer.shut()
                producer = reopened()
            producer.report_all(epoch, values[epoch - 1] ^ opposite)
            producer.close(epoch)
        producer.shut()
        records = [log.values(role) for role in (Role.REPORTS, Role.PRODUCERS)]
        seen.append((records, caplog.text))
        caplog.clear()
    (records, logged), (others, also_logged) = seen
    assert records == others
    assert sum(map(len, words_of(records[0]))) == 60 * reports
    assert (logged == also_logged) == (other is Complemented)


def words_of(records: list[bytes]) -> list[list[int]]:
    return [
        decode_batch(value).words.values[:, 0].tolist()
        for value in records
        if kind_of(value) is RecordType.BATCH
    ]


def test_interrupted_answer_is_resent_unchanged(log: MemoryLog, tmp_path: Path) -> None:
    """A word drawn again, or its epoch, would cost as much as a second answer."""
    job, values = sampled(1), np.zeros(60, np.int8)
    producer = open_producer(job, tmp_path / "state", log)
    producer.enroll([f"user {number}" for number in range(60)])
    producer._transport = BrokenTransport()
    producer.report_all(1, values)
    with pytest.raises(ConnectionError):
        producer.close(1)
    drawn = list(words_of([value for _, _, _, value in producer.store.outbox()]))
    state = {name: array.copy() for name, array in producer._randomizer.state_arrays().items()}
    producer.shut()
    with open_producer(job, tmp_path / "state", log, seed=7) as producer:
        for name, array in producer._randomizer.state_arrays().items():
            np.testing.assert_array_equal(array, state[name])
        with pytest.raises(ProducerError, match="epoch 1 is closed"):
            producer.report_all(1, values)
    assert words_of(log.values(Role.REPORTS)) == drawn
    assert sum(map(len, drawn)) == 10


@pytest.mark.parametrize("counts_answers", [True, False])
def test_minimum_applies_to_the_number_of_devices_that_answer(
    counts_answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty devices are present and ten answer: fewer than the minimum of 50 hide each other."""
    job = sampled(1, minimum=50)
    if not counts_answers:
        entry = replace(job.protocol_entry, sampled=None)
        monkeypatch.setitem(vars(job), "protocol_entry", entry)
    cluster = SimulatedCluster(job, seeded(1))
    producer = Producer(
        job, None, name="gateway", transport=MemoryDriver(cluster.log), generators=seeded(1)
    )
    with producer:
        producer.enroll([f"user {number}" for number in range(60)])
        producer.report_all(1, np.zeros(60, np.int8))
        producer.close(1)
        cluster.settle()
    (record,) = cluster.new_estimates()
    expected = WindowStatus.SUPPRESSED if counts_answers else WindowStatus.RELEASED
    assert record.window_status == expected
    assert (record.estimate is None) == counts_answers


def test_restart_does_not_change_reports(job: DeployedJob, tmp_path: Path) -> None:
    users = [f"user {number}" for number in range(200)]
    values = np.random.default_rng(3).integers(0, 2, (8, 200))
    logs = []
    for restarts in (False, True):
        log = MemoryLog()
        folder = tmp_path / f"{restarts}"
        producer = open_producer(job, folder, log)
        producer.enroll(users)
        for epoch in range(1, 9):
            if restarts:
                producer.shut()
                producer = open_producer(job, folder, log)
            producer.report_all(epoch, values[epoch - 1])
            producer.close(epoch)
        producer.shut()
        logs.append(list(words(log)))
    assert logs[0] == logs[1]


def test_closed_epoch_is_randomized_once(job: DeployedJob, log: MemoryLog, tmp_path: Path) -> None:
    """The epoch was drawn while Kafka was unavailable, and the next run's input differs."""
    users = [f"user {number}" for number in range(500)]
    producer = open_producer(job, tmp_path / "state", log)
    producer.enroll(users)
    producer.shut()
    producer = open_producer(job, tmp_path / "state", log)
    producer._transport = BrokenTransport()
    producer.report_all(1, np.zeros(500, np.int64))
    with pytest.raises(ConnectionError):
        producer.close(1)
    producer.shut()
    assert not list(words(log))

    with open_producer(job, tmp_path / "state", log, seed=99) as producer:
        (sent,) = words(log)
        assert producer.closed_epoch == 1
        with pytest.raises(ProducerError, match="epoch 1 is closed"):
            producer.report_all(1, np.ones(500, np.int64))
        with pytest.raises(ProducerError, match="epoch 1 is closed"):
            producer.close(1)
    with open_producer(job, tmp_path / "state", log, seed=100):
        assert list(words(log)) == [sent], "acknowledged records are not sent again"


def test_no_epoch_is_randomized_while_the_disk_is_full(
    job: DeployedJob, log: MemoryLog, tmp_path: Path
) -> None:
    producer = open_producer(job, tmp_path / "state", log)
    producer.enroll([f"user {number}" for number in range(200_000)])
    before = {k: v.copy() for k, v in producer._randomizer.state_arrays().items()}
    # SQLite raises a limit below the present size to that size.
    producer._store._connection.execute("PRAGMA max_page_count = 1")
    producer.report_all(1, np.ones(200_000, np.int64))
    with pytest.raises(ProducerError, match=r"Nothing was sent\. Free some space"):
        producer.close(1)
    assert producer.closed_epoch == 0
    assert not list(words(log))
    after = producer._randomizer.state_arrays()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    producer.shut()


def _full(*arguments: object, **options: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def _no_space(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("dpstream.pipeline.state.os.pwrite", _no_space),
        ("dpstream.pipeline.devices.producer_store.Path.touch", _no_space),
        ("dpstream.pipeline.devices.producer.ProducerStore.outbox", _full),
    ],
)
def test_failure_to_open_a_producer_is_reported_and_can_be_retried(
    job: DeployedJob,
    log: MemoryLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    problem: Callable[..., None],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(place, problem)
        with pytest.raises(ProducerError, match=r"cannot use the state of producer .* in .*/state"):
            open_producer(job, tmp_path / "state", log)
    open_producer(job, tmp_path / "state", log).shut()


@pytest.mark.skipif(not may_mount(), reason="only root may mount small disks")
def test_producer_on_a_full_disk_reports_why_it_cannot_open(
    job: DeployedJob, log: MemoryLog, tmp_path: Path
) -> None:
    with SmallDisk(tmp_path / "disk") as disk:
        for room in (0, 4_096, 16_384, 65_536):
            disk.fill(room)
            with pytest.raises(ProducerError, match="Check free disk space"):
                open_producer(job, tmp_path / "disk" / f"{room}", log)
            disk.empty()
        open_producer(job, tmp_path / "disk" / "0", log).shut()


def test_skipped_epochs_have_no_reports(job: DeployedJob, log: MemoryLog) -> None:
    with open_producer(job, None, log) as producer:
        producer.enroll(["a"])
        producer.report(5, {"a": 1})
        producer.close(5)
    epochs = [
        decode_punctuation(value).epoch
        for value in log.values(Role.REPORTS)
        if kind_of(value) is RecordType.PUNCTUATION
    ]
    assert epochs == [5]


def test_users_without_a_reported_value_count_as_absent(job: DeployedJob, log: MemoryLog) -> None:
    with open_producer(job, None, log) as producer:
        producer.enroll(["a", "b", "a"])
        producer.report(1, {"b": 1})
        producer.close(1)
        producer.close(2)
    records = [
        decode_punctuation(value)
        for value in log.values(Role.REPORTS)
        if kind_of(value) is RecordType.PUNCTUATION
    ]
    assert [(record.contributors, record.population) for record in records] == [(1, 2), (0, 2)]


def test_unenrolled_users_and_invalid_epochs_and_shapes_are_rejected(
    job: DeployedJob, log: MemoryLog, tmp_path: Path
) -> None:
    with open_producer(job, tmp_path / "state", log) as producer:
        producer.enroll(["a"])
        with pytest.raises(ProducerError, match="user 'b' is not enrolled"):
            producer.report(1, {"a": 1, "b": 1})
        with pytest.raises(ProducerError, match="epoch 9 is out of range"):
            producer.close(9)
        with pytest.raises(ProducerError, match=r"got shape \(2,\) for 1 devices; expected \(1,\)"):
            producer.report_all(1, np.zeros(2, np.int64))
        with pytest.raises(FolderInUse, match="in use by process"):
            open_producer(job, tmp_path / "state", log)
    with pytest.raises(ProducerError, match="belongs to another producer or deployment"):
        open_producer(deployed(), tmp_path / "state", log)


def test_interrupted_draw_is_rolled_back(
    job: DeployedJob, log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between drawing and storing: the epoch can be closed afterwards."""
    with open_producer(job, tmp_path / "state", log) as producer:
        producer.enroll(["a"])
        with monkeypatch.context() as patch:
            patch.setattr(producer._store, "save_arrays", _interrupt)
            producer.report(1, {"a": 1})
            with pytest.raises(KeyboardInterrupt):
                producer.close(1)
        assert producer.closed_epoch == 0
        producer.report(1, {"a": 1})
        producer.close(1)
        assert producer.closed_epoch == 1


@pytest.mark.parametrize(
    "action",
    [
        lambda producer: producer.enroll(["d"]),
        lambda producer: producer.withdraw(["a"]),
        lambda producer: producer.close(1),
    ],
    ids=["enroll", "withdraw", "close"],
)
def test_values_are_not_lost_when_the_disk_is_full(
    job: DeployedJob,
    log: MemoryLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: Callable[[Producer], None],
) -> None:
    """The values were accepted before the disk was full, and space is freed later."""

    with open_producer(job, tmp_path / "state", log) as producer:
        producer.enroll(["a", "b", "c"])
        producer.report(1, {"a": 1, "b": 1})
        with monkeypatch.context() as patch:
            for writes in ("add_users", "add_leaving", "put"):
                patch.setattr(producer._store, writes, _full)
            with pytest.raises(ProducerError, match="Free some space and try again"):
                action(producer)
        assert producer.users == ("a", "b", "c")
        assert producer._values[producer._present].tolist() == [1, 1]
        producer.close(1)
    (contributors,) = [
        decode_punctuation(value).contributors
        for value in log.values(Role.REPORTS)
        if kind_of(value) is RecordType.PUNCTUATION
    ]
    assert contributors == 2


def test_values_at_a_closed_epoch_do_not_carry_over(
    job: DeployedJob, log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after everything is stored, before the first send."""
    with open_producer(job, tmp_path / "state", log) as producer:
        producer.enroll(["a", "b"])
        producer.report(1, {"a": 1})
        transaction = producer._store.transaction

        @contextmanager
        def interrupted() -> Iterator[None]:
            with transaction():
                yield
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(producer._store, "transaction", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.close(1)
        assert producer.closed_epoch == 1
        assert not producer._present.any()


def _interrupt(arrays: object) -> None:
    raise KeyboardInterrupt


def test_producer_with_an_invalid_registration_stores_no_state(
    job: DeployedJob, log: MemoryLog, tmp_path: Path
) -> None:
    with pytest.raises(ProducerError, match="'first_epoch' is 0; expected 1 to "):
        Producer(job, tmp_path / "s", name="gateway", transport=MemoryDriver(log), first_epoch=0)
    open_producer(job, tmp_path / "s", log).shut()


def test_device_state_is_readable_by_its_owner_only(
    job: DeployedJob, log: MemoryLog, tmp_path: Path
) -> None:
    open_producer(job, tmp_path / "state", log).shut()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state" / "producer.sqlite3").stat().st_mode) == 0o600


def test_producer_that_leaves_writes_a_deregistration(job: DeployedJob, log: MemoryLog) -> None:
    with open_producer(job, None, log) as producer:
        producer.leave(3)
    registration, deregistration = log.values(Role.PRODUCERS)
    assert b'"last_epoch":3' in deregistration
    assert Registration.from_bytes(registration).enrollment.hex().encode() in deregistration


def test_randomness_is_cryptographic_unless_injected(job: DeployedJob, log: MemoryLog) -> None:
    with Producer(job, None, name="gateway", transport=MemoryDriver(log)) as producer:
        generator = producer._generators("report", 1)
    assert isinstance(generator.bit_generator, AESCounter)


def test_invalid_value_is_rejected_with_its_user(job: DeployedJob, log: MemoryLog) -> None:
    with open_producer(job, None, log) as producer:
        producer.enroll(["a", "b"])
        with pytest.raises(ProducerError, match="user 'b': value 'red' is not 0 or 1"):
            producer.report(1, {"a": "1", "b": "red"})
        producer.report(1, {"a": "true"})
        with pytest.raises(
            ProducerError, match="got the single text 'ab'; expected a list of users"
        ):
            producer.withdraw("ab")


JOB = (
    "name: baskets\nprotocol: count_min\n"
    "parameters: {epsilon: 4, delta: 1.0e-3, items: 2, rows: 1, domain: [tea, milk, rye, oil]}\n"
    "epochs: {count: 3}\nshuffle: {minimum: 2}\n"
)


@pytest.fixture
def producer(log: MemoryLog) -> Iterator[Producer]:
    job = deploy_job(parse_job(JOB), deployed_at=0)
    driver = MemoryDriver(log)
    with Producer(job, None, name="till", transport=driver, generators=generators) as made:
        made.enroll(["ann", "bob"])
        yield made


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (["tea", "milk", "rye"], "user 'bob': got 3 items; job baskets allows 2"),
        (["te"], "user 'bob': value 'te' is not in the domain"),
        ([1.5], "user 'bob': got 1.5; expected text or an integer"),
    ],
)
def test_invalid_set_is_rejected_without_side_effects(
    producer: Producer, said: list[Value], complaint: str
) -> None:
    with pytest.raises(ProducerError, match=complaint):
        producer.report(1, {"ann": ["tea"], "bob": said})
    assert not producer._values.any()


def test_item_sets_are_sent_as_sorted_messages(producer: Producer, log: MemoryLog) -> None:
    cells = 4
    for epoch in (1, 2, 3):
        producer.report(epoch, {"ann": ["oil", "tea"], "bob": "rye"})
        producer.close(epoch)
    batches = []
    for partition in range(len(producer.job.start_offsets[Role.REPORTS])):
        end = log.end(Role.REPORTS, partition)
        for record in log.read(Role.REPORTS, partition, 0, end).records:
            with suppress(CodecError):
                batches.append(decode_batch(record.value))
    assert len(batches) == 3
    for batch in batches:
        words = batch.words.values
        assert words.dtype == np.dtype("<u4")
        assert words.shape[1] == 1
        assert words.max() < cells
        assert (np.diff(words[:, 0].astype(int)) >= 0).all()
        if batch.words.counts is not None:
            assert len(words) <= cells
