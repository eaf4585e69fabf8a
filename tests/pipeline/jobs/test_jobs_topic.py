"""Test the state of the jobs topic: jobs, phases and charges, for any writers and order."""

from __future__ import annotations

import json

import pytest

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_phases import JobPhase, Phase, phase_key
from dpstream.pipeline.jobs.jobs_topic import JobsTopic
from dpstream.topics.frames import CodecError
from tests.support.small_run import job_text

FIRST, SECOND = bytes([1] * 16), bytes([2] * 16)


def deployed(name: str = "small", deployment: bytes = FIRST) -> DeployedJob:
    return deploy_job(parse_job(job_text(name)), deployed_at=5, deployment=deployment)


def apply_job(state: JobsTopic, job: DeployedJob) -> None:
    state.apply(job.name.encode(), job.to_bytes())


def apply_phase(state: JobsTopic, phase: Phase, deployment: bytes = FIRST) -> None:
    record = JobPhase("small", deployment, phase, 7)
    state.apply(record.key, record.to_bytes())


def test_last_record_for_a_job_applies_until_its_tombstone() -> None:
    state = JobsTopic()
    for deployment in (FIRST, SECOND):
        apply_job(state, deployed(deployment=deployment))
    apply_job(state, deployed("other"))
    assert {name: job.deployment for name, job in state.jobs.items()} == {
        "small": SECOND,
        "other": FIRST,
    }
    for tombstone in (None, b""):
        apply_job(state, deployed())
        state.apply(b"small", tombstone)
        assert list(state.jobs) == ["other"]


def test_job_runs_unless_paused_by_an_operator() -> None:
    state = JobsTopic()
    apply_job(state, deployed())
    assert state.phase("small") is Phase.RUNNING
    for phase in Phase:
        apply_phase(state, phase)
        assert state.phase("small") is phase
    apply_phase(state, Phase.PAUSED)
    state.apply(phase_key("small"), None)
    assert state.phase("small") is Phase.RUNNING


def test_phase_applies_to_its_deployment_only() -> None:
    state = JobsTopic()
    apply_phase(state, Phase.PAUSED)
    assert state.phase("small") is Phase.RUNNING
    apply_job(state, deployed(deployment=SECOND))
    assert state.phase("small") is Phase.RUNNING
    apply_job(state, deployed())
    assert state.phase("small") is Phase.PAUSED


def test_job_record_of_another_version_is_listed_as_unreadable() -> None:
    state = JobsTopic()
    later = json.loads(deployed().to_bytes()) | {"version": 2}
    state.apply(b"small", json.dumps(later).encode())
    for value in (b"garbage", b"[" * 9_999, b"{}"):
        state.apply(b"strange", value)
        state.apply(phase_key("small"), value)
        state.apply(b"charge/strange", value)
    state.apply(None, b"x")
    assert (state.jobs, state.unreadable, state.charges) == ({}, {"small", "strange"}, [])
    apply_job(state, deployed())
    state.apply(b"strange", None)
    assert (list(state.jobs), state.unreadable) == (["small"], set())
    assert state.phase("small") is Phase.RUNNING


def test_charges_outlive_their_jobs_and_only_the_latest_record_for_a_charge_counts() -> None:
    state = JobsTopic()
    charges = [Charge("people", "small", name * 32, 1.0, 0.0, 5) for name in "ab"]
    fewer = Charge("people", "small", "a" * 32, 1.0, 0.0, 5, horizons=3)
    apply_job(state, deployed())
    for charge in [*charges, fewer]:
        state.apply(charge.key, charge.to_bytes())
    state.apply(b"small", None)
    assert state.charges == [fewer, charges[1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"phase": "asleep"},
        {"deployment": "xy"},
        {"job": None, "deployment": None},
    ],
)
def test_invalid_phase_is_rejected(wrong: dict[str, object]) -> None:
    body = json.loads(JobPhase("small", FIRST, Phase.PAUSED, 7).to_bytes())
    with pytest.raises(CodecError, match="not a job phase"):
        JobPhase.from_bytes(json.dumps(body | wrong).encode())


def test_phase_record_encoding_is_pinned() -> None:
    golden = (
        b'{"deployment":"01010101010101010101010101010101","job":"small","phase":"paused",'
        b'"since":7,"version":1}'
    )
    assert JobPhase("small", FIRST, Phase.PAUSED, 7).to_bytes() == golden
    assert phase_key("small") == b"phase/small"
