"""A central guarantee in a job file, and the local epsilon that it leaves room for."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.planning.plan import plan
from dpstream.pipeline.serve.privacy_sentences import guarantee_words
from dpstream.randomizers.accounting.amplification import amplified_delta, of_any_randomizer

CENTRAL = {"epsilon": 0.5, "delta": 1e-6}


def job_of(protocol: str = "value_stream", users: int | None = 100_000, **more: Any) -> Job:
    return make_job(
        {
            "name": "mixed",
            "protocol": protocol,
            "parameters": more.pop("parameters", {"changes": 2}),
            "epochs": {"count": 16},
            **({} if users is None else {"shuffle": {"minimum": users}}),
            "central": CENTRAL,
            **more,
        }
    )


def test_the_local_epsilon_is_the_largest_that_there_is_room_for() -> None:
    epsilon = job_of().parameters.epsilon
    assert epsilon == 5.917  # near 6
    spent, more = (
        amplified_delta(of_any_randomizer(loss), 100_000, 0.5) for loss in (epsilon, epsilon + 1e-3)
    )
    assert spent <= 1e-6 < more


def test_few_users_have_what_is_stated_as_it_is() -> None:
    assert job_of(users=2).parameters.epsilon == 0.5


def test_estimates_are_several_times_better_than_with_the_same_epsilon_for_each() -> None:
    local = make_job(
        {**job_of().to_json(), "parameters": {"epsilon": 0.5, "changes": 2}, "central": None}
    )
    assert plan(local, 100_000).rmse > 5 * plan(job_of(), 100_000).rmse


def test_both_sides_are_promised() -> None:
    deployed = deploy_job(job_of(), deployed_at=0)
    assert deployed.parameters.epsilon == 5.917
    guarantee = deployed.guarantee()
    assert 5.9 < guarantee.epsilon <= 5.917
    assert guarantee.delta == 0.0
    assert guarantee.trust.startswith("nobody")
    shuffled = guarantee.to_json()["shuffled"]
    assert shuffled == {"epsilon": 0.5, "delta": 1e-6, "contributors": 100_000}
    assert "epsilon 0.5, delta 1e-06 where these are trusted" in str(guarantee)
    assert "99,999 honest others" in str(guarantee)
    # What people are charged holds for those who were absent, too.
    assert Charge.of(deployed).epsilon == guarantee.epsilon
    assert DeployedJob.from_bytes(deployed.to_bytes()) == deployed


def test_the_page_says_both_sides() -> None:
    words = guarantee_words(deploy_job(job_of(), deployed_at=0).guarantee())
    (said,) = (each for each in words if each.startswith("Shuffled among 100,000 people"))
    assert "a factor of 1.65 (epsilon 0.5)" in said
    assert "a chance of 1 in 1,000,000" in said
    assert words[0].startswith("Nobody has to be trusted")


def test_horizons_add_up_on_both_sides() -> None:
    job = job_of(epochs={"count": 16, "renew": True})
    over = deploy_job(job, deployed_at=0).guarantee_at(33)
    assert over.shuffled is not None
    assert over.shuffled.epsilon == pytest.approx(1.5)
    assert over.shuffled.delta >= 3e-6 * (1 - 1e-15)
    assert over.epsilon == pytest.approx(3 * 5.917, rel=1e-4)


def test_a_job_is_what_it_was_written_as() -> None:
    job = job_of()
    assert make_job(json.loads(json.dumps(job.to_json()))) == job
    smaller = make_job({**job.to_json(), "parameters": {"epsilon": 2.0, "changes": 2}})
    assert smaller.parameters.epsilon == 2.0


def test_jobs_without_one_are_written_as_before() -> None:
    body = {**job_of().to_json()}
    del body["central"]
    without = deploy_job(make_job(body), deployed_at=0, deployment=bytes(16))
    assert b"central" not in without.to_bytes()
    assert b"shuffled" not in json.dumps(without.guarantee().to_json()).encode()
    same = deploy_job(job_of(), deployed_at=0, deployment=bytes(16))
    assert same.constants == without.constants
    assert same.fingerprint != without.fingerprint


def test_what_was_promised_cannot_be_altered_unseen() -> None:
    values = json.loads(deploy_job(job_of(), deployed_at=0).to_bytes())
    values["central"]["epsilon"] = 0.1
    with pytest.raises(JobError, match="fingerprint"):
        DeployedJob.from_bytes(json.dumps(values).encode())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"users": None}, "shuffle.minimum: is missing"),
        ({"parameters": {"changes": 2, "epsilon": 6.5}}, "parameters.epsilon: is 6.5, which among"),
        ({"protocol": "memoized_response", "parameters": {}}, "no local loss of a whole stream"),
        (
            {"protocol": "count_min", "parameters": {"delta": 1e-6, "domain": ["a"]}},
            "count_min states epsilon and delta of shuffled messages itself",
        ),
        ({"central": {"epsilon": 0.5}}, "central.delta: is required"),
        ({"central": {"epsilon": -1, "delta": 1e-6}}, "central.epsilon: -1 is not allowed"),
        ({"central": 3}, "central: 3 is not allowed"),
    ],
)
def test_what_cannot_be_is_told_where_it_stands(more: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        job_of(**more)


@pytest.mark.parametrize("protocol", ["future_rand", "split_budget", "hadamard_values"])
def test_other_streams_are_shuffled_alike(protocol: str) -> None:
    parameters = {
        "future_rand": {"changes": 2},
        "split_budget": {},
        "hadamard_values": {"changes": 1, "domain": ["a", "b"]},
    }[protocol]
    job = job_of(protocol, parameters=parameters)
    assert job.parameters.epsilon == 5.917
    assert math.isclose(job.guarantee_of(job.calibrate()).epsilon, 5.917, rel_tol=1e-4)


def test_a_deployed_job_is_read_without_accounting() -> None:
    record = deploy_job(job_of(), deployed_at=0).to_bytes()
    program = (
        "import sys; from dpstream.pipeline.jobs.deployed_job import DeployedJob; "
        "job = DeployedJob.from_bytes(sys.stdin.buffer.read()); job.guarantee(); "
        "assert not [name for name in sys.modules if 'accounting' in name]"
    )
    subprocess.run([sys.executable, "-c", program], input=record, check=True)
