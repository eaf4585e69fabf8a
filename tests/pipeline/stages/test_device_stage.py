"""Test device jobs: every device counts exactly once per epoch."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.stages.device_decision import Collectors
from dpstream.topics.loose_batches import LooseBatch, encode_loose_batch
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Reason
from dpstream.topics.sealing import key_id
from tests.support.device_world import (
    DEPLOYMENT,
    EPOCH,
    GRACE,
    DeviceWorld,
    Sent,
    device_job,
)
from tests.support.world import Accidents, Owner

JOB = device_job()
DEEP = b"[" * 200_000
PRIVATE_KEYS = tuple(X25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2, 3))
SEALED_JOB = device_job(private_keys=PRIVATE_KEYS)


def ones(devices: Sequence[int], *, enrolls: bool = False) -> list[Sent]:
    """Return reports of value 1 with order 0, which are due at every epoch."""
    return [Sent(device, [1], enrolls) for device in devices]


@pytest.mark.parametrize("value", [b"", b"[]", b"7", b'{"stage": 1}', b"\xff", DEEP])
def test_malformed_collector_records_are_skipped(value: bytes) -> None:
    collectors = Collectors(JOB)
    collectors.apply(LogRecord(0, value, timestamp=1_000, key=b"collector"))
    assert collectors.alive(1_000) == set()


def scenario(world: DeviceWorld, rng: random.Random) -> None:
    """Send two epochs of 30 devices several times, in random order and batches."""
    for epoch in (1, 2):
        world.at(epoch, 50)
        sent = [Sent(device, [device % 2], enrolls=epoch == 1) for device in range(30)]
        copies = [each for each in sent for _ in range(rng.randrange(1, 5))]
        rng.shuffle(copies)
        while copies:
            size = rng.randrange(1, 12)
            world.collect(epoch, copies[:size])
            del copies[:size]
            if rng.random() < 0.3:
                world.settle()
    world.at(3, 1)
    while len(world.published()) < 2:
        world.settle()
        world.now += GRACE / 2
    # A killed worker's successor rewrites existing records.
    world.settle()


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, bytes]:
    world = DeviceWorld(JOB)
    for epoch in (1, 2):
        world.at(epoch, 50)
        world.collect(epoch, [Sent(each, [each % 2], enrolls=epoch == 1) for each in range(30)])
    world.at(3, 1)
    world.settle()
    world.at(3, GRACE + 2)
    world.settle()
    return world.integers()


@pytest.mark.parametrize("seed", range(4))
def test_device_counts_once_if_its_report_is_repeated(
    seed: int, undisturbed: dict[int, bytes]
) -> None:
    world = DeviceWorld(JOB)
    scenario(world, random.Random(seed))
    assert world.integers() == undisturbed
    for epoch in (1, 2):
        manifest = world.manifests()[epoch]
        assert manifest.window_status is WindowStatus.RELEASED
        assert manifest.contributors == manifest.population == 30
        assert manifest.first_epoch == 1
        assert manifest.producers == (True,)
        assert world.published()[epoch].estimate is not None


@pytest.mark.parametrize("keep", [False, True], ids=["lost", "kept"])
def test_devices_count_once_when_the_stage_is_killed(
    keep: bool, stride: int, undisturbed: dict[int, bytes]
) -> None:
    accidents = Accidents()
    world = DeviceWorld(JOB, accidents=accidents)
    scenario(world, random.Random(5))
    for strike in range(1, accidents.count, stride):
        world = DeviceWorld(JOB, accidents=Accidents(frozenset({strike}), keep))
        scenario(world, random.Random(5))
        assert world.restarts == 1
        assert world.integers() == undisturbed
        assert {m.contributors for m in world.manifests().values()} == {30}


@pytest.mark.parametrize("keep", [False, True], ids=["lost", "kept"])
def test_stages_recover_when_killed_many_times(keep: bool, undisturbed: dict[int, bytes]) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        strikes = frozenset(rng.sample(range(1, 200), 25))
        world = DeviceWorld(JOB, accidents=Accidents(strikes, keep))
        scenario(world, rng)
        assert world.restarts > 3
        assert world.integers() == undisturbed


def test_two_owners_of_a_partition_agree_in_every_interleaving() -> None:
    def world_with_two_epochs() -> DeviceWorld:
        world = DeviceWorld(JOB)
        for epoch in (1, 2):
            world.at(epoch, 50)
            world.collect(epoch, ones(range(5), enrolls=epoch == 1))
        return world

    nows = (200.0, 201.0, 201.0 + GRACE, 202.0 + GRACE)
    world = world_with_two_epochs()
    world.now = nows[-1]
    first = Owner(world, "shuffle", *nows)
    actions = 0
    while not first.done:
        first.step(1)
        actions += 1
    expected = Counter(world.log.values(Role.MANIFESTS))
    assert len(expected) == 2
    for paused in range(1, actions):
        world = world_with_two_epochs()
        world.now = nows[-1]
        first, second = Owner(world, "shuffle", *nows), Owner(world, "shuffle", *nows)
        first.step(paused)
        # The successor collects one more report; only the first manifest of an epoch counts.
        world.collect(1, ones([77]))
        first.driver.fenced = True
        second.step()
        first.step()
        assert first.done
        assert second.done
        world.settle(("aggregate", "publish"))
        first_estimate = world.published()[1].estimate
        assert first_estimate is not None
        assert first_estimate.reports == world.manifests()[1].contributors
        assert len(world.integers()) == 2


def test_only_the_first_report_with_a_tag_counts() -> None:
    for first, second in itertools.permutations((0, 1)):
        world = DeviceWorld(JOB)
        world.at(1, 10)
        world.collect(1, ones([1, 2], enrolls=True))
        world.collect(1, [Sent(3, [first])])
        world.collect(1, [Sent(3, [second])] * 1000)
        finish(world, 1)
        reference = DeviceWorld(JOB)
        reference.at(1, 10)
        reference.collect(1, [*ones([1, 2], enrolls=True), Sent(3, [first])])
        finish(reference, 1)
        assert world.integers() == reference.integers()
        assert world.manifests()[1].contributors == 3
        stages = [each.worker("shuffle").stage for each in (world, reference)]
        counts = [each.counts for each in stages]  # type: ignore[attr-defined]
        assert [each["contradicting_reports"] for each in counts] == [1000, 0]


@pytest.mark.parametrize("answers", [1, 2])
@pytest.mark.parametrize("private_keys", [(), PRIVATE_KEYS[:1]], ids=["open", "sealed"])
def test_minimum_applies_to_the_number_of_answers_if_few_devices_answer(
    answers: int, private_keys: Sequence[X25519PrivateKey]
) -> None:
    parameters = {"epsilon": 2, "reports": 1}
    job = device_job("sampled_response", parameters, 4, private_keys)
    world = DeviceWorld(job, keys=KeyRing.of(private_keys))
    world.at(1, 10)
    world.collect(1, [Sent(device, [1] * (device < answers), enrolls=True) for device in range(6)])
    finish(world, 1)
    manifest = world.manifests()[1]
    assert (manifest.contributors, manifest.population) == (answers, 6)
    assert (manifest.window_status is WindowStatus.RELEASED) == (answers == 2)
    estimate = world.published()[1].estimate
    assert (estimate is None) == (answers == 1)
    if estimate is not None:
        assert (estimate.reports, estimate.population) == (2, 6)


def finish(world: DeviceWorld, epoch: int) -> None:
    world.at(epoch + 1, 1)
    world.settle()
    world.at(epoch + 1, GRACE + 3)
    world.settle()


def test_window_closes_after_the_grace_period_by_the_broker_clock() -> None:
    world = DeviceWorld(JOB)
    world.at(1, 99)
    world.collect(1, ones(range(3), enrolls=True))
    world.settle()
    world.at(2, 0)
    world.settle()
    world.at(2, GRACE - 1)
    world.settle()
    assert 1 not in world.manifests()
    world.collect(1, ones([5]))
    world.at(2, GRACE + 1)
    world.settle()
    assert world.manifests()[1].contributors == 4
    world.collect(1, ones([6]))
    world.settle()
    assert world.published()[1].estimate.reports == 4  # type: ignore[union-attr]
    assert world.worker("shuffle").stage.counts["late_reports"] == 1  # type: ignore[attr-defined]


def test_window_closes_when_all_live_collectors_have_closed_it() -> None:
    world = DeviceWorld(JOB)
    world.at(1, 50)
    world.beat(1)
    world.beat(2)
    world.collect(1, ones(range(3), enrolls=True))
    world.at(2, 5)
    world.beat(1)
    world.beat(2)
    world.watermark(1, 1)
    world.settle()
    assert 1 not in world.manifests()
    heartbeat = world.worker("shuffle").stage.heartbeat()
    assert heartbeat["windows"][0]["waits_for"] == ["collector 02020202"]  # type: ignore[index]
    world.watermark(1, 2)
    world.settle()
    assert world.manifests()[1].contributors == 3


def test_window_does_not_wait_for_stopped_collectors() -> None:
    for leaves in (lambda world: world.beat(2, stopped=True), lambda world: None):
        world = DeviceWorld(JOB)
        world.at(1, 60)
        world.beat(1)
        world.beat(2)
        world.collect(1, ones(range(3), enrolls=True))
        leaves(world)
        world.at(2, 1)
        world.beat(1)
        world.watermark(1, 1)
        world.settle()
        assert 1 in world.manifests()


def test_window_waits_for_a_new_collector() -> None:
    world = DeviceWorld(JOB)
    world.at(2, 1)
    world.collect(1, ones(range(3), enrolls=True))
    world.beat(1)
    world.settle()
    world.watermark(1, 1)
    world.beat(2)
    world.settle()
    assert 1 not in world.manifests()


def test_watermark_before_the_epoch_ends_is_ignored() -> None:
    world = DeviceWorld(JOB)
    world.at(1, 50)
    world.beat(1)
    world.collect(1, ones(range(3), enrolls=True))
    world.watermark(1, 1)
    world.settle()
    assert 1 not in world.manifests()


def test_due_epochs_without_reports_are_finalized_as_empty() -> None:
    world = DeviceWorld(JOB)
    world.at(4, 1)
    world.settle()
    world.at(4, GRACE + 3)
    world.settle()
    assert {e: m.window_status for e, m in world.manifests().items()} == dict.fromkeys(
        (1, 2, 3), WindowStatus.EMPTY
    )


def test_reports_are_accepted_after_a_long_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpstream.pipeline.stages.window_decision.EPOCHS_AHEAD", 8)
    monkeypatch.setattr("dpstream.pipeline.stages.device_decision.EPOCHS_AHEAD", 8)
    world = DeviceWorld(device_job(count=64))
    world.at(21, 0)
    while 20 not in world.manifests():
        world.settle()
        world.now += GRACE / 2
    epoch = int(world.now // EPOCH) + 1
    assert epoch < 25
    world.collect(epoch, ones(range(3), enrolls=True))
    finish(world, epoch)
    assert world.manifests()[epoch].contributors == 3


def test_population_includes_all_enrollments_so_far_in_the_horizon() -> None:
    job = device_job(
        count=2,
        epochs={
            "count": 2,
            "start": "2023-11-14T22:13:20Z",
            "length": "PT100S",
            "renew": True,
        },
    )
    world = DeviceWorld(job)
    world.at(2, 10)
    world.collect(1, [*ones(range(5), enrolls=True), *ones(range(3), enrolls=True)])
    world.collect(2, ones([1, 2]))
    world.collect(2, ones([8, 9], enrolls=True))
    finish(world, 2)
    world.at(3, 90)
    world.collect(3, ones([1, 2], enrolls=True))
    finish(world, 3)
    counts = {e: (m.contributors, m.population) for e, m in world.manifests().items()}
    assert counts == {1: (5, 5), 2: (4, 7), 3: (2, 2)}


def test_devices_without_an_enrollment_are_included_in_the_population() -> None:
    world = DeviceWorld(JOB)
    world.at(1, 10)
    world.collect(1, ones(range(7)))
    finish(world, 1)
    assert world.manifests()[1].population == 7


def test_invalid_report_does_not_affect_other_devices() -> None:
    world = DeviceWorld(JOB)
    world.at(1, 10)
    world.collect(1, [Sent(9, [200]), *ones(range(3), enrolls=True), Sent(8, [77]), Sent(7, [])])
    too_many = world.row(1, Sent(6, [1]))[:8] + b"\xff\xff\1"
    unused = world.row(1, Sent(5, [1]))[:8] + b"\0\0\1"
    world.write_batch(1, [too_many, *(world.row(1, each) for each in ones([3])), unused])
    finish(world, 1)
    # The device that reports without a message counts, too.
    assert world.manifests()[1].contributors == 5
    estimate = world.published()[1].estimate
    assert estimate is not None
    assert estimate.reports == 4
    assert world.worker("shuffle").stage.counts["unusable_reports"] == 4  # type: ignore[attr-defined]
    assert not world.log.values(Role.DEAD_LETTERS)


def dead_letters(world: DeviceWorld) -> list[tuple[Reason, str]]:
    records = world.log.read(Role.DEAD_LETTERS, 0, 0, world.log.end(Role.DEAD_LETTERS, 0)).records
    letters = [DeadLetter.from_record(record.value, record.headers) for record in records]
    return [(letter.reason, letter.detail) for letter in letters]


def test_inadmissible_records_become_dead_letters() -> None:
    world = DeviceWorld(JOB)
    world.at(1, 10)
    other = DeviceWorld(device_job(parameters={"epsilon": 2, "max_changes": 2}))
    other.collect(1, ones([1]))
    world.write(Role.REPORTS, 1, other.log.values(Role.REPORTS, 1)[0])
    world.write(Role.REPORTS, 1, b"nonsense")
    sealed = DeviceWorld(SEALED_JOB)
    sealed.collect(1, ones([1]))
    wrong_place = DeviceWorld(JOB)
    wrong_place.collect(2, ones([1]))
    world.write(Role.REPORTS, 1, wrong_place.log.values(Role.REPORTS, 0)[0])
    world.write_batch(1, [bytes(9 + 20)])
    world.collect(3, ones([1]))
    world.collect(9, ones([1]))
    world.settle()
    assert [reason for reason, _ in dead_letters(world)] == [
        Reason.FINGERPRINT,
        Reason.UNREADABLE,
        Reason.EPOCH,
        Reason.PROTOCOL,
        Reason.EPOCH,
        Reason.EPOCH,
    ]


def test_sealed_reports_are_decrypted_with_the_key_of_their_period() -> None:
    ring = KeyRing.of(PRIVATE_KEYS)
    reference, world = DeviceWorld(JOB), DeviceWorld(SEALED_JOB, keys=ring)
    for each in (reference, world):
        for epoch in (1, 3, 5):
            each.at(epoch, 10)
            each.collect(epoch, [Sent(device, [device % 2], True) for device in range(6)] * 2)
        each.at(6, 1)
        each.settle()
        each.at(6, GRACE + 2)
        each.settle()
    assert world.integers() == reference.integers()
    assert len(world.integers()) == 3
    with pytest.raises(WrongKeyError, match="no private key in nowhere for device reports"):
        DeviceWorld(SEALED_JOB).stage("shuffle")


def test_valid_report_is_counted_despite_earlier_undecryptable_reports_with_its_tag() -> None:
    world = DeviceWorld(SEALED_JOB, keys=KeyRing.of(PRIVATE_KEYS))
    world.at(1, 10)
    row = world.row(1, Sent(9, [1]))
    broken = row[:-1] + bytes([row[-1] ^ 1])
    moved = row[:8] + bytes(16) + row[24:]
    world.write_batch(1, [broken, moved, row, world.row(1, Sent(1, [0]))])
    finish(world, 1)
    assert world.manifests()[1].contributors == 2
    assert world.worker("shuffle").stage.counts["unusable_reports"] == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [True, False])
def test_copies_of_a_sealed_report_count_once(first: bool) -> None:
    """Otherwise, a forwarder could multiply a report, and infer it from the estimate."""
    honest = [Sent(device, [device % 2]) for device in range(5)]
    alone, copied = (DeviceWorld(SEALED_JOB, keys=KeyRing.of(PRIVATE_KEYS)) for _ in range(2))
    for world in (alone, copied):
        world.at(1, 10)
        rows = [world.row(1, each) for each in honest]
        if world is copied:
            copies = [tag.to_bytes(8, "big") + rows[1][8:] for tag in range(0, 2**64, 2**56)]
            rows = copies + rows if first else rows + copies
        world.write_batch(1, rows)
        finish(world, 1)
    assert copied.manifests()[1].contributors == alone.manifests()[1].contributors == 5
    assert copied.integers() == alone.integers()


def test_batch_that_is_unsealed_or_encrypted_to_another_key_is_rejected() -> None:
    world = DeviceWorld(SEALED_JOB, keys=KeyRing.of(PRIVATE_KEYS))
    world.at(3, 10)
    plain = DeviceWorld(device_job(private_keys=PRIVATE_KEYS[:1]))
    assert plain.job.fingerprint != world.job.fingerprint
    swapped = DeviceWorld(SEALED_JOB)
    assert SEALED_JOB.devices is not None
    rows = [swapped.row(1, Sent(1, [1]))]
    # Sealed to the key of the first period, in an epoch of the second.
    first_key = SEALED_JOB.devices.key_at(1)
    assert first_key is not None
    array = np.frombuffer(rows[0], np.uint8).reshape(1, -1)
    for key in (None, key_id(first_key)):
        batch = LooseBatch(SEALED_JOB.fingerprint, DEPLOYMENT, 3, key, array)
        world.write(Role.REPORTS, 1, encode_loose_batch(batch))
    world.settle()
    assert [reason for reason, _ in dead_letters(world)] == [Reason.SEALED, Reason.SEALED]
