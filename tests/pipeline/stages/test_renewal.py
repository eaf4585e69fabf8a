"""Test horizon renewal: devices start again with fresh randomness, from value 0."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.admission import Admission, Rejection
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.sampled_response import SampledResponseLaw
from dpstream.topics.batches import (
    Punctuation,
    decode_batch,
    encode_punctuation,
)
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role
from dpstream.topics.records import Reason
from tests.support.gateway import BrokenTransport, open_producer, seeded, sorted_punctuations
from tests.support.killed_worlds import killed_worlds
from tests.support.world import Accidents, World

HORIZON = 4
USERS = 4000
# An error of this many standard deviations has a probability of 3e-12.
FAR = 7.0


def parameters(epsilon: float = 2.0) -> dict[str, object]:
    return {"epsilon": epsilon, "max_changes": 2}


def job(count: int = HORIZON, protocol: str = "future_rand", **keys: Any) -> Job:
    return make_job(
        {
            "name": "renewal",
            "protocol": protocol,
            "parameters": parameters(),
            "epochs": {"count": count, "renew": True},
            "shuffle": {"minimum": 10, "producers": 2},
            "topics": {"partitions": 2},
            **keys,
        }
    )


def deployed(count: int = HORIZON, **keys: Any) -> DeployedJob:
    return deploy_job(job(count, **keys), deployment=bytes(range(16)), deployed_at=0)


def drawn(producer: Producer) -> dict[str, NDArray[Any]]:
    return {name: array.copy() for name, array in producer._randomizer.state_arrays().items()}


def batches(log: MemoryLog) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for partition in range(2):
        for value in log.values(Role.REPORTS, partition):
            if kind_of(value) is RecordType.BATCH:
                batch = decode_batch(value)
                rows.setdefault(batch.epoch, []).extend(batch.words.values[:, 0].tolist())
    return rows


# All stages.


SHORT = 2
# All epochs end before a world starts, so windows only wait for the grace period.
OVER = {"count": SHORT, "renew": True, "start": "2023-01-01", "length": "PT1H"}
EPOCHS = 3 * SHORT + 1


def values() -> dict[str, dict[int, dict[str, int]]]:
    """Return values of two gateways that enroll devices in epoch 4, and lose one after epoch 1."""
    generator = np.random.default_rng(7)
    return {
        name: {
            epoch: {
                f"{name}{user}": int(generator.integers(2))
                for user in range(int(epoch > 1), 30 if epoch < 4 else 40)
                if generator.random() < 0.9
            }
            for epoch in range(1, EPOCHS + 1)
        }
        for name in ("north", "south")
    }


def run(world: World) -> World:
    """Run horizons of two epochs; the south skips a horizon, the north withdraws a device."""
    for epoch in range(1, EPOCHS + 1):
        for name in ("north", "south"):
            if name == "north" or epoch not in (5, 6):
                world.close_epoch(name, epoch)
            if (name, epoch) == ("north", 1):
                world.surviving(name, lambda: world.producer("north").withdraw(["north0"]))
            world.settle()
        while epoch not in world.manifests():
            world.now += 61.0
            world.settle()
    world.shut()
    return world


@pytest.mark.slow
@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost"),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.verify),
    ],
)
def test_stages_recover_across_horizons_when_killed(folder: Path, keep: bool, stride: int) -> None:
    world_job = deployed(SHORT, epochs=OVER)

    def started_and_run(place: Path, accidents: Accidents) -> World:
        return run(World(world_job, place, values(), accidents))

    for world in killed_worlds(started_and_run, folder, keep=keep, stride=stride):
        assert world.accidents.count > 250
        assert sorted(world.published()) == list(range(1, EPOCHS + 1))
        assert world.manifests()[5].producers == (True, False)
        assert len(world.log.values(Role.ESTIMATES)) == EPOCHS


def test_deregistered_producer_counts_until_the_horizon_ends(folder: Path) -> None:
    world = World(deployed(SHORT, epochs=OVER), folder, values())
    for epoch in range(1, 7):
        for name in ("north", "south"):
            if name == "north" or epoch <= 3:
                world.close_epoch(name, epoch)
        if epoch == 3:
            world.producer("south").leave(3)
        world.settle()
    enrolled = {name: len(world.producer(name).users) for name in ("north", "south")}
    world.shut()
    manifests = world.manifests()
    assert [manifests[epoch].producers for epoch in (3, 4, 5)] == [(True, True)] + 2 * [
        (True, False)
    ]
    assert manifests[4].population == manifests[4].populations[0] + enrolled["south"]
    assert manifests[5].population == manifests[5].populations[0]
    assert manifests[6].population == enrolled["north"]


# Draws.


def test_devices_draw_fresh_randomness_at_the_start_of_a_horizon() -> None:
    log = MemoryLog()
    users = [f"user {number}" for number in range(USERS)]
    with Producer(deployed(), None, name="gateway", transport=MemoryDriver(log)) as producer:
        producer.enroll(users)
        seen = [drawn(producer)]
        for epoch in range(1, 3 * HORIZON + 1):
            producer.report_all(epoch, np.ones(USERS, np.int8))
            producer.close(epoch)
            if epoch % HORIZON == 1:
                seen.append(drawn(producer))
        assert producer.users == tuple(users)
    for name in ("order", "signs"):
        np.testing.assert_array_equal(seen[0][name], seen[1][name])
        for one, other in ((1, 2), (2, 3)):
            assert not np.array_equal(seen[one][name], seen[other][name]), name


def test_value_carried_over_from_an_earlier_horizon_uses_up_a_change() -> None:
    log = MemoryLog()
    with open_producer(deployed(), None, log) as producer:
        producer.enroll([f"user {number}" for number in range(USERS)])
        for epoch in range(1, 3 * HORIZON + 1):
            producer.report_all(epoch, np.ones(USERS, np.int8))
            producer.close(epoch)
            state = drawn(producer)
            local = (epoch - 1) % HORIZON + 1
            due = local >> state["order"] > 0
            np.testing.assert_array_equal(state["used"], due)
            assert producer.exhausted == 0


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_supports_renewal(name: str, tmp_path: Path) -> None:
    example = json.dumps(dataclasses.asdict(PROTOCOLS[name].examples[0].parameters))
    renewing = deployed(protocol=name, parameters=json.loads(example))
    log = MemoryLog()
    # Epoch, devices enrolled before it, and population after it; 100 leave after epoch 2.
    for epoch, enrolled, population in [
        (1, 300, 300), (2, 300, 300), (HORIZON + 2, 400, 300), (4 * HORIZON, 500, 500),
        (4 * HORIZON + 1, 500, 500),
    ]:  # fmt: skip
        with open_producer(renewing, tmp_path / "state", log) as producer:
            producer.enroll([f"user {number}" for number in range(enrolled)])
            if epoch == 2:
                producer.withdraw([f"user {number}" for number in range(100)])
            shape = (len(producer.users), *renewing.domain.shape)
            producer.report_all(epoch, np.full(shape, renewing.domain.initial))
            producer.close(epoch)
            assert len(producer.users) == producer._randomizer.population == population
    admission = Admission(renewing)
    for partition in range(2):
        for value in log.values(Role.REPORTS, partition):
            assert not isinstance(admission.admit(partition, value), Rejection)


def test_randomness_of_a_horizon_is_drawn_only_once(tmp_path: Path) -> None:
    log = MemoryLog()
    producer = open_producer(deployed(), tmp_path / "state", log)
    producer.enroll([f"user {number}" for number in range(500)])
    producer.report_all(HORIZON, np.ones(500, np.int8))
    producer.close(HORIZON)
    producer._transport = BrokenTransport()
    producer.report_all(HORIZON + 1, np.ones(500, np.int8))
    with pytest.raises(ConnectionError):
        producer.close(HORIZON + 1)
    before = drawn(producer)
    producer.shut()
    with open_producer(deployed(), tmp_path / "state", log, seed=99) as producer:
        assert producer.closed_epoch == HORIZON + 1
        for name, array in drawn(producer).items():
            np.testing.assert_array_equal(array, before[name])
        assert len(batches(log)[HORIZON + 1]) > 0
        with pytest.raises(ProducerError, match=f"epoch {HORIZON + 1} is closed"):
            producer.close(HORIZON + 1)


def test_interrupted_renewal_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole renewal is one transaction: leaving devices stay after the interruption."""

    def interrupt(name: str, value: object) -> None:
        raise KeyboardInterrupt

    log = MemoryLog()
    with open_producer(deployed(), tmp_path / "state", log) as producer:
        producer.enroll(["a", "b", "c"])
        producer.withdraw(["b"])
        producer.report(HORIZON, {"a": 1})
        producer.close(HORIZON)
        before = drawn(producer)
        with monkeypatch.context() as patch:
            patch.setattr(producer._store, "set_fact", interrupt)
            with pytest.raises(KeyboardInterrupt):
                producer.close(HORIZON + 1)
        for name, array in drawn(producer).items():
            np.testing.assert_array_equal(array, before[name])
        assert producer.closed_epoch == HORIZON
        assert list(producer.users) == ["a", "b", "c"]
        producer.report(HORIZON + 1, {"c": 1})
        producer.close(HORIZON + 1)
        assert list(producer.users) == ["a", "c"]
        assert not producer._leaving.any()
    with open_producer(deployed(), tmp_path / "state", log) as producer:
        assert list(producer.users) == ["a", "c"]
        producer.enroll(["b"])
        assert list(producer.users) == ["a", "c", "b"]


def test_skipped_first_epochs_of_a_horizon_count_as_absence() -> None:
    """Devices do not report changes across a skipped epoch; new devices had value 0 before."""
    log = MemoryLog()
    with open_producer(deployed(), None, log) as producer:
        producer.enroll([f"old {number}" for number in range(200)])
        producer.report_all(HORIZON, np.ones(200, np.int8))
        producer.close(HORIZON)
        producer.report_all(HORIZON + 2, np.ones(200, np.int8))
        producer.close(HORIZON + 2)
        assert {word % 128 // 2 for word in batches(log)[HORIZON + 2]} == {1}
        before = len(producer.users)
        producer.enroll([f"new {number}" for number in range(200)])
        producer.report_all(2 * HORIZON + 2, np.ones(400, np.int8))
        producer.close(2 * HORIZON + 2)
        words = np.array(batches(log)[2 * HORIZON + 2])
        orders = drawn(producer)["order"]
    assert np.count_nonzero(words % 128 // 2 == 0) == np.count_nonzero(orders[before:] == 0) > 0
    assert np.count_nonzero(words % 128 // 2 == 1) == np.count_nonzero(orders == 1)


# Estimates.


def estimates(
    values_of: Mapping[str, NDArray[np.int8]],
    last_epoch: int,
    *,
    epsilon: float = 12.0,
    absent: Mapping[str, range] | None = None,
    absence: float = 0.0,
    withdrawn: Mapping[str, int] | None = None,
    enrolled: Mapping[str, int] | None = None,
    seed: int = 5,
) -> list[EstimateRecord]:
    """Return published estimates when groups of `USERS` have values by epoch, index 0 unused.

    Args:
        absent: Epochs at which a group is absent.
        absence: Probability that a device is absent at an epoch.
        withdrawn: Epoch before which a group leaves.
        enrolled: Epoch before which a group is enrolled, 1 by default.
    """
    absent, withdrawn, enrolled = absent or {}, withdrawn or {}, enrolled or {}
    renewing = deployed(
        parameters=parameters(epsilon), shuffle={"minimum": 10}, topics={"partitions": 1}
    )
    cluster = SimulatedCluster(renewing, seeded(seed))
    producer = Producer(
        renewing, None, name="gateway", transport=MemoryDriver(cluster.log), generators=seeded(seed)
    )
    users = {group: [f"{group} {number}" for number in range(USERS)] for group in values_of}
    participation = np.random.default_rng(seed)
    for epoch in range(1, last_epoch + 1):
        present: dict[str, int] = {}
        for group, by_epoch in values_of.items():
            if epoch == enrolled.get(group, 1):
                producer.enroll(users[group])
            if epoch == withdrawn.get(group):
                producer.withdraw(users[group])
            gone = epoch >= withdrawn.get(group, last_epoch + 1)
            if epoch >= enrolled.get(group, 1) and epoch not in absent.get(group, ()) and not gone:
                here = users[group]
                if absence:
                    drawn = participation.random(USERS) >= absence
                    here = [user for user, is_here in zip(here, drawn, strict=True) if is_here]
                present.update(dict.fromkeys(here, int(by_epoch[epoch])))
        producer.report(epoch, present)
        producer.close(epoch)
    cluster.settle()
    producer.shut()
    records = cluster.new_estimates()
    assert [record.epoch for record in records] == list(range(1, last_epoch + 1))
    return records


def assert_near(records: list[EstimateRecord], ground_truth: list[int]) -> None:
    for record, expected in zip(records, ground_truth, strict=True):
        estimate = record.estimate
        assert isinstance(estimate, Estimate)
        assert estimate.value is not None
        assert estimate.standard_error is not None
        assert 2 * FAR * estimate.standard_error < USERS, "the test could not fail"
        error = abs(estimate.value - expected)
        assert error < FAR * estimate.standard_error, f"epoch {record.epoch}"


def test_estimates_of_three_horizons_are_unbiased() -> None:
    always = np.ones(3 * HORIZON + 1, np.int8)
    halfway = np.arange(3 * HORIZON + 1) > HORIZON + 2
    records = estimates({"a": always, "b": halfway.astype(np.int8)}, 3 * HORIZON)
    assert_near(records, [USERS * (1 + int(one)) for one in halfway[1:]])
    assert {record.population for record in records} == {2 * USERS}


@pytest.mark.parametrize("epoch", [3, 6])
def test_devices_enroll_at_any_epoch_of_a_running_horizon(epoch: int) -> None:
    always = np.ones(2 * HORIZON + 1, np.int8)
    records = estimates({"a": always, "b": always}, 2 * HORIZON, enrolled={"b": epoch})
    assert_near(records, [USERS * (1 + (at >= epoch)) for at in range(1, 2 * HORIZON + 1)])
    assert [record.population for record in records] == [
        USERS * (1 + (at >= epoch)) for at in range(1, 2 * HORIZON + 1)
    ]


@pytest.mark.parametrize("epoch", [2, 4])
def test_estimates_no_longer_count_withdrawn_users(epoch: int) -> None:
    always = np.ones(2 * HORIZON + 1, np.int8)
    records = estimates({"a": always, "b": always}, 2 * HORIZON, withdrawn={"b": epoch})
    assert_near(records, [USERS * (1 + (at < epoch)) for at in range(1, 2 * HORIZON + 1)])
    populations = [record.population for record in records]
    assert populations == [2 * USERS] * HORIZON + [USERS] * HORIZON


@pytest.mark.slow
def test_withdrawn_users_report_like_absent_users() -> None:
    """30 % of all users are absent at each epoch; 12,000 users with value 1 leave, others have 0.

    If leaving users were always present, the estimate of epoch 3 would be 1,600 users too low.
    """
    zeros, ones = np.zeros(HORIZON + 1, np.int8), np.ones(HORIZON + 1, np.int8)
    groups = {"a": zeros, "b": zeros, "x": ones, "y": ones, "z": ones}
    withdrawn, trials = {"x": 3, "y": 3, "z": 3}, 10
    runs = [
        estimates(groups, HORIZON, absence=0.3, withdrawn=withdrawn, seed=seed)
        for seed in range(trials)
    ]
    for epoch, of_epoch in enumerate(zip(*runs, strict=True), 1):
        published = [cast(Estimate, record.estimate).to_json() for record in of_epoch]
        errors = [each["value"] - 3 * USERS * (epoch < 3) for each in published]
        deviations = [each["standard_error"] for each in published]
        tolerance = FAR * np.sqrt(np.square(deviations).sum()) / trials
        assert 2 * tolerance < 1600, "the test could not fail"
        assert abs(np.mean(errors)) < tolerance, f"epoch {epoch}"


@pytest.mark.parametrize("present", [0, 1, 50, 100])
def test_withdrawn_users_mimic_the_participation_of_others(tmp_path: Path, present: int) -> None:
    """Participation is drawn once: a restart after the draw changes nothing."""
    log = MemoryLog()
    users = [f"user {number}" for number in range(10_100)]
    with open_producer(deployed(), tmp_path / "state", log) as producer:
        producer.enroll(users)
        producer.withdraw(users[100:])
        # Values given for users who leave are ignored.
        producer.report(1, dict.fromkeys(users[100 - present : 5000], 0))
        producer.close(1)
    with open_producer(deployed(), tmp_path / "state", log) as producer:
        assert producer.closed_epoch == 1
    (punctuation,) = sorted_punctuations(log)
    leaving = punctuation.contributors - present
    assert punctuation.population == 10_100
    if present in (0, 100):
        assert leaving == 100 * present
    else:
        share = present / 100
        assert abs(leaving - 10_000 * share) < FAR * np.sqrt(10_000 * share * (1 - share))


def test_withdrawn_users_still_report_when_all_users_withdraw() -> None:
    log = MemoryLog()
    with open_producer(deployed(), None, log) as producer:
        producer.enroll(["thermostat"])
        producer.report(1, {"thermostat": 1})
        producer.close(1)
        producer.withdraw(["thermostat"])
        producer.close(2)
    assert [record.contributors for record in sorted_punctuations(log)] == [1, 1]


def test_reporting_a_single_zero_before_an_absence_does_not_withdraw_a_user() -> None:
    """Intervals that end later miss the 0, which must be sent until the horizon ends."""
    always = np.ones(HORIZON + 1, np.int8)
    gone = np.array([0, 1, 1, 0, 0], np.int8)
    records = estimates({"a": always, "b": gone}, HORIZON, absent={"b": range(4, HORIZON + 1)})
    assert_near(records[:3], [2 * USERS, 2 * USERS, USERS])
    estimate = records[3].estimate
    assert isinstance(estimate, Estimate)
    assert estimate.value is not None
    assert estimate.standard_error is not None
    assert estimate.value > USERS + FAR * estimate.standard_error
    records = estimates({"a": always, "b": gone}, HORIZON)
    assert_near(records, [2 * USERS, 2 * USERS, USERS, USERS])


# Jobs.


def test_recurring_job_has_a_last_epoch_if_its_number_of_horizons_is_limited() -> None:
    endless = deployed(170)
    counted = endless.model_copy(update={"horizons": 3})
    assert DeployedJob.from_bytes(counted.to_bytes()) == counted
    assert (endless.last_epoch, counted.last_epoch) == (None, 510)
    places = [
        (endless.epochs.horizon_of(epoch), endless.epochs.local(epoch)) for epoch in (1, 170, 171)
    ]
    assert places == [(0, 1), (0, 170), (1, 1)]
    assert endless.position_of(300) == "epoch 300 (horizon 2)"
    assert counted.position_of(1) == "epoch 1 of 510 (horizon 1)"
    assert counted.position_of(300, 320) == "epoch 300 of 320 (horizon 2)"


def test_guarantee_holds_per_horizon_and_its_loss_is_summed_over_horizons() -> None:
    endless = deployed()
    guarantee = str(endless.guarantee)
    assert guarantee.startswith(
        "epsilon 2 for a user's whole stream of one horizon, n times that for n"
    )
    assert str(endless.guarantee_at(2 * HORIZON + 1, 1)).startswith(
        "epsilon 6 for a user's whole stream of 3 horizons (exact)"
    )
    ending = deployed(epochs={"count": HORIZON})
    assert endless.guarantee_at(2 * HORIZON + 1, HORIZON + 1).horizons == 2
    assert ending.guarantee_at(HORIZON, 1) == ending.guarantee
    assert "horizons" not in ending.guarantee.to_json()


def test_epoch_after_the_last_horizon_is_rejected() -> None:
    counted = deployed().model_copy(update={"horizons": 2})
    with open_producer(counted, None, MemoryLog()) as producer:
        producer.enroll(["a"])
        producer.close(2 * HORIZON)
        with pytest.raises(
            ProducerError, match="epoch 9 is out of range: the last epoch of job renewal"
        ):
            producer.close(2 * HORIZON + 1)
    late = encode_punctuation(
        Punctuation(counted.fingerprint, counted.deployment, bytes(16), 9, 0, 0, 0, bytes(8))
    )
    rejection = Admission(counted).admit(1, late)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.detail) == (
        Reason.EPOCH,
        "epoch 9 is out of range: the last epoch is 8",
    )
    assert isinstance(Admission(deployed()).admit(1, late), Punctuation)


def test_messages_are_checked_against_the_epoch_within_their_horizon(folder: Path) -> None:
    log = MemoryLog()
    with open_producer(deployed(), None, log) as producer:
        producer.enroll([f"user {number}" for number in range(100)])
        for epoch in (3 * HORIZON, 3 * HORIZON + 1):
            producer.report_all(epoch, np.ones(100, np.int8))
            producer.close(epoch)
    admission = Admission(deployed())
    for partition in range(2):
        for value in log.values(Role.REPORTS, partition):
            assert not isinstance(admission.admit(partition, value), Rejection)
    ending = Admission(deployed(epochs={"count": 4 * HORIZON}))
    assert isinstance(ending.admit(0, log.values(Role.REPORTS, 0)[0]), Rejection)


# Draws that outlast a horizon.


def sampled() -> DeployedJob:
    return deployed(protocol="sampled_response", parameters={"epsilon": 1})


def test_phases_are_kept_and_flips_are_drawn_again_per_horizon_despite_restarts(
    tmp_path: Path,
) -> None:
    """Restarted producers have other generators: what they keep comes from the store alone."""
    log, seen = MemoryLog(), []
    users = [f"user {number}" for number in range(400)]
    for epoch in range(1, 3 * HORIZON + 1):
        with open_producer(sampled(), tmp_path / "state", log, seed=epoch) as producer:
            producer.enroll(users[: 300 if epoch <= HORIZON else 400])
            producer.report_all(epoch, np.ones(len(producer.users), np.int8))
            producer.close(epoch)
            seen.append(drawn(producer))
    for before, after in pairwise(seen):
        known = len(before["phase"])
        np.testing.assert_array_equal(before["phase"], after["phase"][:known])
    for begin in range(0, 3 * HORIZON, HORIZON):
        for state in seen[begin + 1 : begin + HORIZON]:
            np.testing.assert_array_equal(seen[begin]["flips"], state["flips"])
    for begin in (HORIZON, 2 * HORIZON):
        assert (seen[begin - 1]["flips"][:300] != seen[begin]["flips"][:300]).any()
    answers = {epoch: len(rows) for epoch, rows in batches(log).items()}
    assert [answers[epoch] for epoch in range(1, HORIZON + 1)] == [75] * HORIZON
    assert all(answers[epoch] == answers[epoch + HORIZON] for epoch in range(5, 9))


def test_user_who_leaves_and_enrolls_again_keeps_the_same_phase(tmp_path: Path) -> None:
    """Another phase could be next to the last one: two answers within a horizon's length."""
    log = MemoryLog()
    users = [f"user {number}" for number in range(200)]
    phases: dict[str, int] = {}
    with open_producer(sampled(), tmp_path / "state", log) as producer:
        producer.enroll(users)
        phases = dict(zip(users, drawn(producer)["phase"].tolist(), strict=True))
        producer.withdraw(users[:150])
        for epoch in (HORIZON, HORIZON + 1, 2 * HORIZON + 1):
            producer.report_all(epoch, np.ones(len(producer.users), np.int8))
            producer.close(epoch)
        assert producer.users == tuple(users[150:])
    with open_producer(sampled(), tmp_path / "state", log, seed=9) as producer:
        producer.enroll(["new", *users[:150]])
        kept = dict(zip(producer.users, drawn(producer)["phase"].tolist(), strict=True))
        assert producer.users[-1] == "new"
    assert kept.items() >= phases.items()


def test_interrupted_enrollment_is_rolled_back(tmp_path: Path) -> None:
    """A phase is stored before its user is counted, or the user is not enrolled."""
    log = MemoryLog()
    with open_producer(sampled(), tmp_path / "state", log) as producer:
        producer.enroll(["a"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(producer._store, "save_arrays", lambda arrays: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                producer.enroll(["b"])
        assert producer.users == ("a",)
        assert producer._randomizer.population == 1
    with open_producer(sampled(), tmp_path / "state", log, seed=2) as producer:
        assert producer.users == ("a",)


def test_user_of_a_recurring_job_answers_once_per_horizon() -> None:
    """Without renewal this epsilon asks three times in a horizon of twelve epochs."""
    once = deployed(12, protocol="sampled_response", parameters={"epsilon": 4})
    assert isinstance(once.law, SampledResponseLaw)
    assert once.law.reports == 1
    assert once.guarantee.rolling is not None
    assert str(once.guarantee.rolling) == "epsilon 4 for any 12 consecutive epochs, forever"
    assert once.guarantee_over(3).rolling == once.guarantee.rolling
    planning = once.protocol_entry.planning
    assert planning is not None
    notes = planning.forecast(once.law, once.parameters, 12).notes
    (note,) = [note for note in notes if "recurring" in note]
    assert "would ask 3 times" in note
    with pytest.raises(JobError, match=r"reports is 2; expected 1 in a recurring job.*Remove"):
        deployed(12, protocol="sampled_response", parameters={"epsilon": 4, "reports": 2})
    assert deployed().guarantee.rolling is None
