"""Test rotation of the token keys of a running job: authorized users stay the same."""

from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.descriptions import described
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.operations.deploy_plan import DeployPlan, Step, plan_deployment
from tests.support.new_jobs import new_job

NOW = 1_772_323_200_000


def jwk(number: str) -> dict[str, str]:
    return {"kty": "OKP", "crv": "Ed25519", "kid": number, "x": "A" * 43}


def job_with(tokens: dict[str, Any] | None) -> Job:
    return new_job(
        "logins",
        "future_rand",
        {"epsilon": 1, "max_changes": 2},
        epochs={"count": 4, "start": "2026-03-01", "length": "1d"},
        devices={} if tokens is None else {"tokens": tokens},
    )


def running(tokens: dict[str, Any] | None) -> DeployedJob:
    plan = plan_deployment(Spending(), {}, job_with(tokens), deployment=bytes(16), now=NOW)
    return described(plan.deployed, Ed25519PrivateKey.generate())


def over(before: DeployedJob, tokens: dict[str, Any] | None) -> DeployPlan:
    state: Any = SimpleNamespace(
        topic=SimpleNamespace(jobs={"logins": before}, unreadable=set()),
        declared=[],
        charges=[Charge.of(before)],
    )
    return plan_deployment(state, {}, job_with(tokens), deployment=b"x" * 16, now=NOW)


def test_token_keys_are_rotated() -> None:
    before = running({"keys": [jwk("a")], "issuer": "app"})
    plan = over(before, {"keys": [jwk("a"), jwk("b")], "issuer": "app"})
    assert plan.rejection is None
    assert plan.step is Step.CHANGE
    deployed = plan.deployed
    assert deployed.devices is not None
    assert deployed.devices.tokens is not None
    assert [key["kid"] for key in deployed.devices.tokens.keys] == ["a", "b"]
    # All else is unchanged, including the description for devices.
    assert deployed.model_copy(update={"devices": before.devices}) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"keys": [jwk("a")]}),
        ({"keys": [jwk("a")]}, None),
        ({"keys": [jwk("a")]}, {"keys": [jwk("a")], "audience": "others"}),
        ({"keys": [jwk("a")], "issuer": "app"}, {"keys": [jwk("b")]}),
    ],
)
def test_redeployment_cannot_change_which_devices_are_eligible(
    before: dict[str, Any] | None, after: dict[str, Any] | None
) -> None:
    plan = over(running(before), after)
    assert "the keys of devices.tokens" in str(plan.rejection)
    assert plan.step is Step.NOTHING
