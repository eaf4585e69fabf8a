"""Test the poisoning bound of a single malicious device, for arbitrary messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate, Participation
from dpstream.pipeline.jobs.device_reports import Tokens
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.planning.job_plan import _of_unknown_users, plan
from dpstream.pipeline.planning.poisoning import poisoning_bound
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from tests.pipeline.stages.test_device_stage import JOB, finish
from tests.support.device_world import DeviceWorld, Sent, device_job
from tests.support.new_jobs import new_job


def test_poisoning_of_a_count_is_bounded_by_the_number_of_slots_in_a_report() -> None:
    job = device_job(
        "count_min",
        {"epsilon": 2, "delta": 1e-6, "domain": ["a", "b", "c"]},
        1,
        shuffle={"minimum": 1000, "grace": "PT40S"},
    )
    assert poisoning_bound(job) == pytest.approx(job.content_format.slots, rel=1e-9)


@pytest.mark.parametrize("protocol", ["future_rand", "value_stream"])
def test_poisoning_bound_holds_for_malicious_devices(protocol: str) -> None:
    job = device_job(protocol, count=8)
    allowed = poisoning_bound(job)
    assert allowed is not None
    assert allowed > 1
    devices, users, rng = job.randomizer(), 4_000, seeded_generator(2)
    devices.enroll(users, rng)
    honest, moved = job.aggregator(), 0.0
    messages_of = {}
    for epoch in range(1, 9):
        words = written_out(devices.report(epoch, np.zeros(users, np.int8), None, rng))
        honest.add(epoch, words, None)
        messages_of[epoch] = np.unique(words[:, 0])
    participation = Participation.constant(8, users)
    before = honest.estimate(8, participation)
    assert isinstance(before, Estimate)
    assert before.value is not None
    for seed in range(300):
        state = job.aggregator_from_bytes(honest.to_bytes())
        chance = seeded_generator(9, seed)
        for epoch, words in messages_of.items():
            word = words[int(chance.integers(0, len(words)))]
            state.add(epoch, np.array([[word]], np.uint8), None)
        after = state.estimate(8, participation)
        assert isinstance(after, Estimate)
        assert after.value is not None
        moved = max(moved, abs(after.value - before.value))
    # The orders are random, so their frequencies match the expected ones only approximately.
    assert moved <= 1.15 * allowed
    assert moved > 0.2 * allowed


def test_plan_states_the_poisoning_bound_of_device_jobs() -> None:
    job = device_job()
    assert plan(job, 1_000, compared=True).poisoning_bound == poisoning_bound(job)
    alone = job.model_copy(update={"devices": None})
    assert plan(alone, 1_000, compared=True).poisoning_bound is None


def _counts(dummies: str) -> Job:
    return new_job(
        "counts",
        "shuffled_counts",
        {"epsilon": 1, "delta": 1e-6, "max_changes": 2, "dummies": dummies},
        epochs={"count": 4, "start": "2026-01-01", "length": "P1D"},
        shuffle={"minimum": 1_000},
        devices={},
    )


def test_plan_warns_that_attackers_can_invent_devices() -> None:
    (note,) = (text for text in plan(device_job(), 1_000).notes if "invent" in text)
    assert "invent all but one of the shuffle.minimum devices (2)" in note
    assert note.endswith("its own epsilon still protects")
    for dummies, left in (
        ("poisson", "without the noise of other users that the guarantee assumes"),
        ("shuffle", "which the shuffler's noise still protects"),
    ):
        law: Any = _counts(dummies).calibrate()
        (note,) = _of_unknown_users(_counts(dummies), law)
        assert note.endswith(left)
    devices = device_job().devices
    assert devices is not None
    key = {"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": "A" * 43}
    asking = devices.model_copy(update={"tokens": Tokens(keys=(key,))})
    for other in (asking, None):
        job = device_job().model_copy(update={"devices": other})
        assert not any("invent" in text for text in plan(job, 1_000).notes)


def test_repeated_reports_of_a_device_stay_within_the_poisoning_bound() -> None:
    rng, devices = seeded_generator(4), 3_000
    population = JOB.randomizer()
    population.enroll(devices, rng)
    honest = {}
    for epoch in (1, 2):
        words = written_out(population.report(epoch, np.zeros(devices, np.int8), None, rng))
        # It does not matter which device sends a message, as long as each sends one.
        honest[epoch] = words[:, 0].tolist()
    found = []
    for lies in (0, 1_000):
        world = DeviceWorld(JOB)
        for epoch in (1, 2):
            world.at(epoch, 10)
            sent = [Sent(n, [word], enrolls=epoch == 1) for n, word in enumerate(honest[epoch])]
            world.collect(epoch, sent)
            dropout = range(len(honest[epoch]), devices)
            world.collect(epoch, [Sent(n, [], enrolls=epoch == 1) for n in dropout] or sent[:1])
            for lie in range(lies // 100):
                world.collect(epoch, [Sent(9_999, [1 + lie % 2], enrolls=epoch == 1)] * 100)
        finish(world, 2)
        estimate = world.published()[2].estimate
        assert isinstance(estimate, Estimate)
        assert estimate.value is not None
        found.append(estimate.value)
        assert world.manifests()[2].contributors == devices + (lies > 0)
    allowed = poisoning_bound(JOB)
    assert allowed is not None
    assert 0 < abs(found[1] - found[0]) <= 1.15 * allowed
