"""Test that randomness is cryptographic, drawn once and secret, and that faults are detected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from randomgen import AESCounter

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from dpstream.randomizers.future_rand import FutureRand
from tests.attacks import randomness
from tests.attacks.examples import EXAMPLES, case_of, with_entry
from tests.attacks.randomness import attack_generators, attack_randomness
from tests.conformance.cases import Case


def test_generators_are_cryptographic_and_differ_after_a_fork() -> None:
    assert list(attack_generators()) == []


@pytest.mark.parametrize("case", EXAMPLES, ids=str)
def test_randomness_is_drawn_once_and_stays_secret(case: Case) -> None:
    assert list(attack_randomness(case)) == []


def reasons(case: Case) -> str:
    return "\n".join(attack_randomness(case))


def test_device_that_draws_its_sign_vector_again_is_detected() -> None:
    """Single reports are correct; the fault only shows in several reports."""

    class Forgetful(FutureRand):
        def report(
            self,
            epoch: int,
            values: NDArray[Any],
            present: NDArray[np.bool_] | None,
            rng: np.random.Generator,
        ) -> Any:
            kept = self._order.copy()
            drawn = self._draw(self.population, rng)
            self._signs[kept == drawn["order"]] = drawn["signs"][kept == drawn["order"]]
            return super().report(epoch, values, present, rng)

    case = with_entry(case_of("future_rand", 1), randomizer=Forgetful)
    assert "changes signs, which was drawn at enrollment, at epoch 1" in reasons(case)


def test_seed_shared_by_forks_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = np.random.Generator(AESCounter())
    monkeypatch.setattr(randomness, "cryptographic_generator", lambda: shared)
    assert list(attack_generators())


def test_insecure_generator_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "cryptographic_generator", np.random.default_rng)
    assert list(attack_generators())


def test_epoch_randomized_again_after_a_crash_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_fact = ProducerStore.set_fact

    def forgetting(store: ProducerStore, name: str, value: Any) -> None:
        if name != "closed_epoch":
            set_fact(store, name, value)

    monkeypatch.setattr(ProducerStore, "set_fact", forgetting)
    found = reasons(case_of("split_budget"))
    assert "randomizes an epoch again that was stored before a crash" in found


def test_producer_that_sends_different_bytes_after_a_crash_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send, calls = Producer._send, [0]

    def once(producer: Producer) -> Any:
        calls[0] += 1
        # The first producer registers and draws. Its successor after the crash sends nothing.
        return send(producer) if calls[0] <= 2 else iter(())

    monkeypatch.setattr(Producer, "_send", once)
    found = reasons(case_of("split_budget"))
    assert "sends bytes after a crash other than those drawn before it" in found


def test_heartbeat_that_contains_a_secret_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("fragments", 6)
    leaked: list[str] = []
    report = Producer.close

    def telling(producer: Producer, epoch: int) -> None:
        leaked.extend(row.tobytes().hex() for row in producer.store.arrays()["key"])
        report(producer, epoch)

    heartbeat = ShuffleStage.heartbeat
    monkeypatch.setattr(Producer, "close", telling)
    monkeypatch.setattr(
        ShuffleStage, "heartbeat", lambda stage: {**heartbeat(stage), "leaked": leaked}
    )
    assert "a topic or heartbeat contains" in reasons(case)
