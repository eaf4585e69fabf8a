"""Test the guarantee against each party: one row each, for every protocol and topology."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpstream.pipeline.jobs.job_files import Job, validate
from dpstream.pipeline.planning.parties import (
    PartyGuarantee,
    format_success_rate,
    party_guarantees,
    whole_loss,
)
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.guarantee import Guarantee, attack_success_rate, rounded_up
from tests.support.new_jobs import hidden_sizes, new_job
from tests.support.sealing import public_key, sealed_section, shares_section

EVERYBODY = {"analyst", "aggregator", "stage", "broker"}
ITEMS = ["a", "b", "c"]


def job_of(protocol: str, epochs: int = 4, minimum: int = 1_000, **more: Any) -> Job:
    parameters = {"epsilon": 1.0, **more.pop("parameters", {})}
    return new_job(
        "seen",
        protocol,
        parameters,
        count=epochs,
        shuffle={"minimum": minimum, **more.pop("shuffle", {})},
        **more,
    )


def rows_of(job: Job) -> dict[str, PartyGuarantee]:
    return {each.party: each for each in party_guarantees(job, job.calibrate())}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_has_a_row_for_every_party(name: str) -> None:
    entry = PROTOCOLS[name]
    for example in entry.examples:
        law = entry.calibrate(example.parameters, example.last_epoch, example.minimum)
        values = {
            "name": "seen",
            "protocol": name,
            "parameters": {},
            "epochs": {"count": example.last_epoch},
            "shuffle": {"minimum": example.minimum},
        }
        job = validate(Job, {**values, "parameters": _json(example.parameters)})
        rows = party_guarantees(job, law)
        assert {each.kind for each in rows} == {*EVERYBODY, "producer"}
        for each in rows:
            assert each.sees
            assert each.assumes
            assert (each.epsilon is None) == (each.whole_epsilon is None) == (not each.neighbors)
            if each.epsilon is not None and each.whole_epsilon is not None:
                # A constant value may lose less than its claim.
                assert each.whole_epsilon >= each.epsilon > 0 or each.unit == "value"
                assert each.success_rate == attack_success_rate(
                    each.whole_epsilon, each.whole_delta
                )
        stated = entry.randomizer(law).guarantee
        assert rows[0].epsilon == stated.epsilon
        stage = next(each for each in rows if each.kind == "stage")
        if entry.shuffling is None:
            assert {each.epsilon for each in rows if each.kind != "analyst"} == {
                stated.epsilon,
                None,
            }
        elif (
            "honest users in each window to send dummy messages; the messages alone do not protect"
        ) in stated.trust or (
            "the shuffler to sum the messages of a window and noise, to release only the sum, and"
        ) in stated.trust:
            assert stage.epsilon is None
        elif "which messages come from the same device, epsilon is" in stated.trust:
            # The numbers that the guarantee itself states.
            assert stage.epsilon is not None
            assert rounded_up(stage.epsilon) in stated.trust
            assert stage.delta == 0
        else:
            assert stage.epsilon is None


def _json(parameters: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    body: dict[str, Any] = TypeAdapter(type(parameters)).dump_python(parameters, mode="json")
    return body


@pytest.mark.parametrize("name", PROTOCOLS)
def test_stream_loss_is_stated_only_for_local_stream_guarantees_without_delta(name: str) -> None:
    entry = PROTOCOLS[name]
    example = entry.examples[0]
    law = entry.calibrate(example.parameters, example.last_epoch, example.minimum)
    stated = entry.randomizer(law).guarantee
    pure = entry.shuffling is None and stated.unit == "stream" and stated.delta == 0
    # Phases are public: a user's answers are hidden among those of the same epoch alone. Groups
    # are public, too: devices of different groups do not hide each other.
    same = entry.sampled is None and name not in ("panels", "sampled_panels")
    assert entry.loss_of_streams == (pure and same)


@pytest.mark.parametrize(("reports", "stated"), [(1, True), (2, False)])
def test_single_answer_is_hidden_among_the_minimum_number_of_users_in_its_window(
    reports: int, stated: bool
) -> None:
    """The minimum counts answers, so the loss of one window is that of the stream."""
    parameters = {"epsilon": 2.0, "reports": reports}
    job = job_of("sampled_response", parameters=parameters, minimum=500)
    rows = rows_of(job)
    assert ("analyst, if shuffled" in rows) == stated
    assert rows["analyst"].epsilon == pytest.approx(2.0)
    if stated:
        row = rows["analyst, if shuffled"]
        assert row.epsilon == pytest.approx(0.5854, abs=5e-5)
        assert row.delta == 1e-6
        assert "suppress windows below the minimum, and 499 other honest users" in row.assumes


def test_shuffled_counts_are_visible_to_the_shuffler_unless_sealed() -> None:
    parameters = {"delta": 1e-6, "domain": ITEMS}
    rows = rows_of(job_of("count_min", parameters=parameters))
    assert rows["analyst"].epsilon == rows["aggregator"].epsilon
    for party in (
        "shuffler operator",
        "broker operator",
        "producer or gateway",
    ):
        assert rows[party].epsilon is None
        assert rows[party].success_rate == 1.0
    sealed = rows_of(job_of("count_min", parameters=parameters, sealed=sealed_section(((2,),))))
    for party in (
        "shuffler operator",
        "broker operator",
        "aggregator",
    ):
        assert sealed[party].epsilon == rows["analyst"].epsilon
        assert "collude" in sealed[party].assumes
    assert sealed["producer or gateway"].epsilon is None
    shared = rows_of(job_of("count_min", parameters=parameters, sealed=shares_section()))
    assert shared["aggregator"].sees.startswith("one share")
    assert (
        "it does not collude with both aggregators, and encryption holds"
        in shared["shuffler operator"].assumes
    )
    assert shared["shuffler operator"].epsilon == rows["analyst"].epsilon


def test_shuffler_that_adds_noise_sees_every_message() -> None:
    parameters = {"delta": 1e-6, "max_changes": 2, "dummies": "shuffle"}
    rows = rows_of(job_of("shuffled_counts", parameters=parameters))
    assert rows["shuffler operator"].epsilon is None
    assert "adds the noise itself" in rows["shuffler operator"].sees
    assert rows["aggregator"].sees == "one noisy sum per window"


def test_fragments_have_a_local_guarantee_per_epoch() -> None:
    small: dict[str, Any] = {"epochs": 2, "minimum": 100}
    job = job_of("fragments", parameters={"delta": 1e-3, "domain": ITEMS}, **small)
    stage, law = (
        rows_of(job)["shuffler operator"],
        job.calibrate(),
    )
    assert stage.epsilon == law.local_epsilon  # type: ignore[attr-defined]
    assert stage.epsilon is not None
    assert stage.whole_epsilon is not None
    assert 0 <= stage.whole_epsilon - 2 * stage.epsilon < 1e-12
    lasting = job_of(
        "fragments", parameters={"delta": 1e-3, "domain": ITEMS, "permanent": True}, **small
    )
    kept = rows_of(lasting)["shuffler operator"]
    assert kept.whole_epsilon == lasting.calibrate().changing_epsilon  # type: ignore[attr-defined]


def test_crowd_is_visible_to_the_shuffler() -> None:
    job = job_of(
        "single_message",
        epochs=1,
        minimum=100,
        parameters={"delta": 1e-3, "domain": ITEMS},
        **hidden_sizes(["1", "2"], 0.5, 1e-7),
    )
    rows = rows_of(job)
    assert "the crowd of each message" in rows["shuffler operator"].sees
    assert (
        "in the same crowd, which is visible; who is present is public"
        in rows["shuffler operator"].neighbors
    )
    assert "in any two crowds" in rows["analyst"].neighbors


def test_each_parallel_shuffler_sees_only_a_fraction_of_the_messages() -> None:
    parameters = {"delta": 1e-3, "domain": ITEMS, "reports": 4}
    rows = rows_of(job_of("fragments", 1, 100, parameters=parameters, shuffle={"instances": 3}))
    assert "1/3 of the messages" in rows["one of 3 shuffler operators"].sees


@pytest.mark.parametrize("protocol", ["value_stream", "count_min"])
def test_device_jobs_have_collectors_instead_of_producers(protocol: str) -> None:
    parameters: dict[str, Any] = {"max_changes": 1}
    if protocol == "count_min":
        parameters = {"delta": 1e-6, "domain": ITEMS}
    local = None if protocol == "count_min" else 1.0
    shown = rows_of(_of_devices(protocol, parameters, {}))
    assert "producer or gateway" not in shown
    assert shown["collector"].sees == "every report, and which device sends it"
    for party in (
        "collector",
        "broker operator",
        "shuffler operator",
    ):
        assert shown[party].epsilon == (local and pytest.approx(local, rel=1e-5))
    sealed = rows_of(_of_devices(protocol, parameters, {"seal": public_key(2)}))
    for party in ("collector", "broker operator"):
        assert sealed[party].epsilon == sealed["analyst"].epsilon
    assert sealed["shuffler operator"].epsilon == shown["shuffler operator"].epsilon
    assert "sealed" in sealed["collector"].sees


def _of_devices(protocol: str, parameters: dict[str, Any], devices: dict[str, Any]) -> Job:
    return new_job(
        "seen",
        protocol,
        {"epsilon": 1, **parameters},
        epochs={"count": 4, "start": "2026-01-01", "length": "P1D"},
        shuffle={"minimum": 1_000},
        devices=devices,
    )


def test_row_for_shuffled_reports_is_listed_only_if_shuffling_reduces_the_loss() -> None:
    many = job_of("future_rand", minimum=100_000, parameters={"max_changes": 2})
    row = rows_of(many)["analyst, if shuffled"]
    assert row.epsilon == pytest.approx(0.01528, abs=5e-6)
    assert row.delta == 1e-6
    assert "users who, like these, report in every window" in row.assumes
    assert "analyst, if shuffled" not in rows_of(
        job_of("future_rand", minimum=20, parameters={"max_changes": 2})
    )
    # This protocol has its own bound for shuffled reports.
    own = job_of("projective_geometry", epochs=1, minimum=100_000, parameters={"domain": ITEMS})
    law: Any = own.calibrate()
    assert rows_of(own)["analyst, if shuffled"].epsilon == law.shuffled_epsilon


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.2])
def test_attack_success_rate_matches_the_best_attack(epsilon: float, delta: float) -> None:
    """The worst pair reveals its input with probability delta, else by randomized response."""
    right = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    found = attack_success_rate(epsilon, delta)
    kept = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon)) + delta
    assert right == pytest.approx(kept)
    assert right * (1 - 1e-15) <= found <= right * (1 + 1e-14)


def test_success_rates_are_rounded_up() -> None:
    assert format_success_rate(math.log(3) - 1e-9) == "75 in 100"
    assert format_success_rate(math.log(3) + 1e-9) == "76 in 100"
    assert format_success_rate(1e-9) == "51 in 100"
    assert format_success_rate(0.0, 0.492) == "75 in 100"
    assert format_success_rate(10.0) == "99,996 in 100,000"
    assert format_success_rate(20.0) != "always"
    assert format_success_rate(31.0) == "always"


def test_losses_per_epoch_are_summed_over_all_charged_epochs() -> None:
    one = Guarantee(0.25, 1e-6, "epoch", "any two items", "none", "exact")
    epsilon, delta = whole_loss(one, 8)
    assert (epsilon, delta) == pytest.approx((2.0, 8e-6))
    assert epsilon >= 2.0
    stream = Guarantee(0.25, 1e-6, "stream", "any two streams", "none", "exact")
    assert whole_loss(stream, 8) == (0.25, 1e-6)
