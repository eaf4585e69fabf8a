"""Test learning jobs: groups take turns, each step has a model, and crashes change nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.devices.producer import ModelMissingError, Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.labeled_examples import packed_examples
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import Punctuation, decode_punctuation
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.models import ModelRecord
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from experiments.protocols.ldp_sgd import LdpSgd
from tests.support.learning import publish_models
from tests.support.new_jobs import new_job
from tests.support.world import Accidents, World

EPOCHS = 4
USERS = 24
TEST_SET = np.array([[1, 900, -300], [2, -900, 500], [1, 500, -900]])


def deployed(**parameters: object) -> DeployedJob:
    requested = {"epsilon": 3, "delta": 0.01, "features": 2, "classes": 2, **parameters}
    job = new_job(
        "learning", "ldp_sgd", requested, count=EPOCHS, minimum=5, producers=2, partitions=2
    )
    return deploy_job(job, deployment=bytes(range(16)), deployed_at=0)


def examples(first_epoch: int = 1) -> dict[str, dict[int, dict[str, list[int]]]]:
    rng = np.random.default_rng(5)
    values = {}
    for name in ("north", "south"):
        rows = rng.integers(-4_000, 4_000, (USERS, 3))
        rows[:, 0] = 1 + (rows[:, 1] < 0)
        of_users = {f"{name}{user}": row for user, row in enumerate(rows.tolist())}
        values[name] = dict.fromkeys(range(first_epoch, EPOCHS + 1), of_users)
    return values


def run(world: World) -> World:
    for epoch in world.values["north"]:
        world.close_all(epoch)
        world.settle()
    world.settle()
    world.shut()
    return world


def models(world: World) -> dict[int, bytes]:
    first: dict[int, bytes] = {}
    for value in world.log.values(Role.MODEL):
        record = ModelRecord.from_bytes(value)
        first.setdefault(record.epoch, record.model.tobytes())
    return first


def world_in(folder: Path, accidents: Accidents | None = None, first_epoch: int = 1) -> World:
    job = deployed(test_set=packed_examples(TEST_SET))
    values = examples(first_epoch)
    return World(job, folder, values, accidents or Accidents())  # type: ignore[arg-type]


@pytest.mark.parametrize("first_epoch", [1, 3])
def test_model_of_an_epoch_is_published_before_its_estimate(folder: Path, first_epoch: int) -> None:
    world = run(world_in(folder, first_epoch=first_epoch))
    epochs = [*range(first_epoch, EPOCHS + 1)]
    assert sorted(world.published()) == sorted(models(world)) == epochs
    aggregator = world.job.aggregator()
    for epoch, payload in sorted(world.integers().items()):
        aggregator.merge(world.job.aggregator_from_bytes(payload))
        expected = aggregator.model(epoch)  # type: ignore[attr-defined]
        assert models(world)[epoch] == expected.tobytes()
    assert len(set(models(world).values())) == len(epochs)
    for record in world.published().values():
        assert record.summary.value in (0.0, *(pytest.approx(100 / 3 * n) for n in (1, 2, 3)))
        assert record.contributors == record.population == 2 * USERS


@pytest.mark.slow
@pytest.mark.parametrize(
    "keep",
    [pytest.param(False, id="lost"), pytest.param(True, id="kept", marks=pytest.mark.verify)],
)
def test_model_is_identical_if_workers_are_killed(folder: Path, keep: bool, stride: int) -> None:
    undisturbed = run(world_in(folder / "undisturbed"))
    actions = undisturbed.accidents.count
    assert actions > 100
    for at in range(1, actions + 1, stride):
        accidents = Accidents(frozenset({at}), keep)
        world = run(world_in(folder / f"{at}", accidents))
        assert world.restarts > undisturbed.restarts
        assert models(world) == models(undisturbed), at
        assert world.integers() == undisturbed.integers(), at
        actual, expected = (
            {epoch: record.estimate for epoch, record in each.published().items()}
            for each in (world, undisturbed)
        )
        assert actual == expected, at


def opened(
    job: DeployedJob,
    log: MemoryLog,
    folder: Path | None = None,
    name: str = "gateway",
    **options: object,
) -> Producer:
    return Producer(
        job,
        folder,
        name=name,
        transport=MemoryDriver(log),
        generators=lambda purpose, number: seeded_generator(len(purpose), number),
        **options,  # type: ignore[arg-type]
    )


def punctuations(log: MemoryLog) -> list[Punctuation]:
    values = [value for partition in (0, 1) for value in log.values(Role.REPORTS, partition)]
    decoded = [
        decode_punctuation(each) for each in values if kind_of(each) is RecordType.PUNCTUATION
    ]
    return sorted(decoded, key=lambda each: each.epoch)


def examples_of(users: int) -> dict[str, list[int]]:
    return {f"user {user}": [1, 100 * user, -100] for user in range(users)}


def test_epoch_is_not_randomized_before_its_model_is_published(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []
    monkeypatch.setattr(LdpSgd, "take_model", lambda self, model: taken.append(float(model[0])))
    job, log = deployed(), MemoryLog()
    with opened(job, log, folder / "state") as producer:
        producer.enroll(list(examples_of(3)))
        producer.report(1, examples_of(3))
        producer.close(1)
        assert not producer.ready(2)
        producer.report(2, examples_of(3))
        with pytest.raises(ModelMissingError, match=r"no reports were drawn\. Wait for"):
            producer.close(2)
        assert producer.closed_epoch == 1
    # The first model of epoch 1 counts; foreign and invalid models are skipped.
    other, here = bytes(16), job.deployment
    log.append(Append(Role.MODEL, 0, b"no model"))
    for deployment, epoch, numbers in ((other, 1, 4), (here, 1, 3), (here, 9, 4)):
        record = ModelRecord(deployment, epoch, np.full(numbers, 9.0))
        log.append(Append(Role.MODEL, 0, record.to_bytes()))
    with opened(job, log, folder / "state") as producer:
        assert not producer.ready(2)
        for value, epoch in ((1.0, 1), (7.0, 1), (2.0, 2), (3.0, 3)):
            record = ModelRecord(here, epoch, np.full(4, value))
            log.append(Append(Role.MODEL, 0, record.to_bytes()))
        for epoch in (2, 3, 4):
            assert producer.ready(epoch)
            producer.report(epoch, examples_of(3))
            producer.close(epoch)
    assert taken == [0.0, 1.0, 2.0, 3.0]
    assert [each.contributors for each in punctuations(log)] == [3, 3, 3, 3]


def test_first_reported_epoch_needs_no_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    monkeypatch.setattr(LdpSgd, "take_model", lambda self, model: taken.append(float(model.sum())))
    job, log = deployed(), MemoryLog()
    other = Registration(bytes(16), "elsewhere", bytes(16), 1)
    # The first registration of a name counts: no window waits for the second one's epochs.
    right, copied = (
        Registration(job.deployment, "copied", bytes([number] * 16), epoch)
        for number, epoch in ((1, 4), (2, 1))
    )
    for value in (b"no registration", *(each.to_bytes() for each in (other, right, copied))):
        log.append(Append(Role.PRODUCERS, 0, value))
    with (
        opened(job, log, folder / "first", first_epoch=3) as first,
        opened(job, log, folder / "second", name="later", first_epoch=4) as second,
    ):
        for producer in (first, second):
            producer.enroll(list(examples_of(3)))
        # A producer that starts later waits for the model of the earlier ones.
        assert first.ready(3)
        assert not second.ready(4)
        first.report(3, examples_of(3))
        first.close(3)
        log.append(Append(Role.MODEL, 0, ModelRecord(job.deployment, 3, np.ones(4)).to_bytes()))
        for producer in (first, second):
            producer.report(4, examples_of(3))
            producer.close(4)
    assert taken == [0.0, 4.0, 4.0]


def test_each_of_three_groups_of_devices_reports_in_every_third_epoch(folder: Path) -> None:
    job, log = deployed(groups=3), MemoryLog()
    publish_models(job, log)
    for epoch in range(1, EPOCHS + 1):
        # After reopening, devices stay in their groups.
        with opened(job, log, folder / "state") as producer:
            producer.enroll(list(examples_of(11)))
            producer.report(epoch, examples_of(11))
            producer.close(epoch)
    sent = punctuations(log)
    assert [each.population for each in sent] == [11] * EPOCHS
    assert sorted(each.contributors for each in sent[:3]) == [3, 4, 4]
    assert sent[3].contributors == sent[0].contributors


def test_producer_stays_in_its_group(folder: Path) -> None:
    job, log = deployed(groups=3), MemoryLog()
    with opened(job, log, folder / "state", group=1) as producer:
        producer.enroll(list(examples_of(5)))
    with pytest.raises(ProducerError, match="was started with a group other than 2"):
        opened(job, log, folder / "state", group=2)
    with opened(job, log, folder / "state") as producer:
        producer.report(1, examples_of(5))
        producer.close(1)
    assert punctuations(log)[0].contributors == 5


def test_invalid_examples_are_rejected() -> None:
    with opened(deployed(), MemoryLog()) as producer:
        producer.enroll(["a"])
        for value, message in (
            ("2 0 0", "class '2' is invalid; expected a whole number from 0 to 1"),
            ("1 0", "1 features; expected 2"),
            ("1 0 8", "a feature is out of range; expected -"),
            ("1 0 nan", "a feature is out of range; expected -"),
            ([1, 0], "got 2 numbers; expected 3"),
        ):
            with pytest.raises(ProducerError, match=message):
                producer.report(1, {"a": value})


def test_damaged_models_are_rejected() -> None:
    value = ModelRecord(bytes(range(16)), 3, np.array([1.5, -2.0])).to_bytes()
    read = ModelRecord.from_bytes(value)
    assert (read.deployment, read.epoch, read.model.tolist()) == (bytes(range(16)), 3, [1.5, -2.0])
    assert value.hex() == (
        "6470736d01000102030405060708090a0b0c0d0e0f0300000000000000000000000000f83f00000000000000c0"
        + value[-4:].hex()
    )
    for at in range(len(value)):
        with pytest.raises(CodecError):
            ModelRecord.from_bytes(value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :])
        with pytest.raises(CodecError):
            ModelRecord.from_bytes(value[:at])
    for model in (np.zeros(0), np.array([np.nan]), np.zeros((1 << 16) + 1)):
        with pytest.raises(CodecError):
            ModelRecord(bytes(16), 1, model)
