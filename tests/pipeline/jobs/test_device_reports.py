"""Test jobs whose devices report for themselves: their job files and signed descriptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.descriptions import (
    described,
    is_signed,
    signer_of,
    signing_key_at,
    statement_of,
)
from dpstream.pipeline.jobs.job_files import Job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.key_files import CollectorKey, WrongKeyError
from dpstream.pipeline.jobs.replays import deploy_replay, replayed_job
from dpstream.pipeline.jobs.sealing_keys import make_key_pair, public_bytes
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployments import deploy, latest_epoch
from dpstream.pipeline.protocols.registry import PROTOCOLS
from tests.support.memory_cluster import MemoryCluster

KEYS = [X25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2)]
PUBLIC = [public_bytes(key).hex() for key in KEYS]
JWK = {
    "kty": "OKP",
    "crv": "Ed25519",
    "kid": "a",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}
TEXT = """\
name: logins
protocol: future_rand
parameters: {epsilon: 4, max_changes: 2}
epochs: {count: 8, start: 2026-01-01, length: P1D}
"""


def job_of(devices: str = "{}", text: str = TEXT, folder: Path = Path()) -> Job:
    return parse_job(f"{text}devices: {devices}\n", "job.yaml", folder)


def problem_of(devices: str, text: str = TEXT, folder: Path = Path()) -> str:
    with pytest.raises(JobError) as rejected:
        job_of(devices, text, folder)
    return str(rejected.value)


def test_panels_on_devices_need_measures() -> None:
    panels = TEXT.replace("future_rand", "panels").replace(
        "max_changes: 2", "max_changes: 2, questions: [{name: a, answer: boolean}]"
    )
    assert "State the questions as 'measures'" in problem_of("{}", panels)


def deployed_of(devices: str = "{}", day: int = 1) -> DeployedJob:
    begun = 1_767_225_600_000 + (day - 1) * 86_400_000
    return deploy_job(job_of(devices), deployed_at=begun, deployment=bytes(16))


def test_deployed_job_round_trips() -> None:
    job = deployed_of(f"{{seal: [{', '.join(PUBLIC)}], rotate: 3, late: 20 s}}")
    told = described(job, Ed25519PrivateKey.generate())
    again = DeployedJob.from_bytes(told.to_bytes())
    assert again == told
    assert again.signed_description == told.signed_description
    assert b"signed_description" not in job.to_bytes()


@pytest.mark.parametrize(
    ("devices", "text", "message"),
    [
        ("{late: 2 min}", TEXT, "devices.late is longer than shuffle.grace"),
        ("{seal: missing.pub}", TEXT, "cannot read the public key"),
        (
            f"{{seal: [{PUBLIC[0]}, {PUBLIC[1]}]}}",
            TEXT,
            "devices.rotate: is missing; expected the number of epochs for which each key",
        ),
        (
            "{}",
            TEXT.replace(", start: 2026-01-01, length: P1D", ""),
            "devices: requires a calendar of epochs, because devices report independently. Set",
        ),
        (
            "{}",
            TEXT.replace("future_rand", "memoized_response").replace(", max_changes: 2", ""),
            "devices: cannot be combined with protocol memoized_response",
        ),
        (
            "{}",
            TEXT.replace("future_rand", "count_min").replace(
                "max_changes: 2", "delta: 1.0e-6, domain: [a, b]"
            )
            + "shuffle: {minimum: 100, instances: 2}\n",
            "devices: cannot be combined with shuffle.instances",
        ),
        (
            "{}",
            f"{TEXT}sealed: {{aggregate: {PUBLIC[0]}, stages: [{PUBLIC[1]}]}}\n",
            "devices: cannot be combined with sealed",
        ),
        ("{tokens: {keys: no.jwks, audience: a}}", TEXT, "cannot read the key set"),
        (
            "{tokens: {keys: [{kty: oct, k: AA, kid: a}], audience: a}}",
            TEXT,
            "devices.tokens.keys: must be public; one has a private part, 'd' or 'k'",
        ),
        (
            "{tokens: {keys: [{kty: XX, kid: a}], audience: a}}",
            TEXT,
            "devices.tokens.keys: contains a key with 'kty' \"XX\"; expected one of: EC, OKP, RSA",
        ),
    ],
)
def test_invalid_devices_section_is_rejected(devices: str, text: str, message: str) -> None:
    assert message in problem_of(devices, text)


def test_device_keys_are_read_from_files(tmp_path: Path) -> None:
    public = make_key_pair(tmp_path / "keys" / "stage.key", tmp_path / "stage.pub")
    (tmp_path / "app.jwks").write_text(json.dumps({"keys": [JWK]}))
    job = job_of("{seal: stage.pub, tokens: {keys: app.jwks, audience: logins}}", folder=tmp_path)
    assert job.devices is not None
    assert job.devices.keys == (public,)
    assert job.devices.tokens is not None
    assert job.devices.tokens.keys == (JWK,)
    (tmp_path / "app.jwks").write_text("[]")
    assert "is not a JSON Web Key Set; expected {" in problem_of(
        "{tokens: {keys: app.jwks, audience: logins}}", folder=tmp_path
    )


def test_sealing_key_is_used_during_its_period() -> None:
    devices = job_of(f"{{seal: [{', '.join(PUBLIC)}], rotate: 3}}").devices
    assert devices is not None
    first, second = map(bytes.fromhex, PUBLIC)
    assert [devices.key_at(epoch) for epoch in (1, 3, 4, 99)] == [first, first, second, second]
    assert devices.periods() == [(first, 1, 3), (second, 4, None)]
    assert job_of().devices.key_at(1) is None  # type: ignore[union-attr]


def test_fingerprint_covers_sealing_keys_but_not_tokens() -> None:
    prints = [
        deployed_of(devices).fingerprint
        for devices in (
            "{}",
            "{late: 5 s}",
            f"{{tokens: {{keys: [{json.dumps(JWK)}], audience: a}}}}",
            f"{{seal: {PUBLIC[0]}}}",
            f"{{seal: {PUBLIC[1]}}}",
        )
    ]
    assert prints[0] == prints[1] == prints[2]
    assert len(set(prints)) == 3
    producers = deploy_job(parse_job(TEXT), deployed_at=0, deployment=bytes(16))
    assert producers.fingerprint not in prints


def test_deployment_starts_in_the_current_epoch() -> None:
    assert [deployed_of(day=day).first_epoch for day in (-9, 1, 2, 7)] == [1, 1, 2, 7]


RENEWING = TEXT.replace("P1D", "P1D, renew: true")


def test_horizons_are_counted_from_the_first_epoch_of_the_deployment() -> None:
    """Deployed on day 30, in the calendar's fourth horizon: devices are charged once so far."""
    deployed_at = 1_767_225_600_000 + 29 * 86_400_000
    job = deploy_job(job_of(text=RENEWING), deployed_at=deployed_at, deployment=bytes(16))
    assert (job.first_epoch, job.epochs.horizon_of(30)) == (30, 3)
    counted = [job.guarantee_at(epoch, 30) for epoch in (30, 32, 33, 64, 65)]
    assert [each.horizons for each in counted] == [1, 1, 2, 5, 6]
    assert [round(each.epsilon, 1) for each in counted] == [4, 4, 8, 20, 24]
    assert job.position_of(33) == "epoch 33 (horizon 2, 2026-02-02)"
    # A budget for two horizons is spent in the two in which devices can participate.
    fitted = job.model_copy(update={"horizons": 2})
    assert fitted.last_epoch == 40
    assert json.loads(statement_of(fitted))["epochs"]["last"] == 40


def test_latest_epoch_grows_with_time_since_deployment() -> None:
    day = 86_400_000
    cluster = cast(Cluster, MemoryCluster())
    deployed_at = 1_767_225_600_000 + 29 * day
    job = deploy(cluster, job_of(text=RENEWING), deployment=bytes(16), now=deployed_at)
    found = [latest_epoch(cluster, job, deployed_at + days * day) for days in (0, 2, 3)]
    assert found == [30, 32, 33]


def test_replay_counts_the_horizons_of_the_original_job() -> None:
    deployed_at = 1_767_225_600_000 + 29 * 86_400_000
    job = deploy_job(job_of(text=RENEWING), deployed_at=deployed_at, deployment=bytes(16))
    job = job.model_copy(update={"horizons": 2})
    later = deployed_at + 300 * 86_400_000
    replay = deploy_replay(job, replayed_job(job), deployment=bytes(range(16)), deployed_at=later)
    assert (replay.first_epoch, replay.last_epoch) == (30, 40)
    assert replay.guarantee_at(33, 33) == job.guarantee_at(33, 30)
    text = RENEWING.replace("name: logins", "name: gateway")
    gateway = deploy_job(parse_job(text), deployed_at=later, deployment=bytes(16))
    again = deploy_replay(
        gateway, replayed_job(gateway), deployment=b"r" * 16, deployed_at=later, first_epoch=30
    )
    assert gateway.guarantee_at(33, 30).horizons == 2
    assert again.guarantee_at(33, 33) == gateway.guarantee_at(33, 30)


def test_signed_statement_contains_all_device_settings() -> None:
    job = deployed_of(f"{{seal: {PUBLIC[0]}, late: 20 s}}")
    said: dict[str, Any] = json.loads(statement_of(job))
    assert said["deployment"] == job.deployment.hex()
    assert said["fingerprint"] == job.fingerprint.hex()
    assert PROTOCOLS["future_rand"].law(job.parameters).from_json(said["law"]) == job.law
    assert said["epochs"] == {
        "count": 8,
        "start": 1_767_225_600_000,
        "months": 0,
        "milliseconds": 86_400_000,
        "first": 1,
        "last": 8,
        "renew": False,
    }
    assert said["content"] == {"slots": 1, "width": 1, "word_bytes": 1}
    assert said["guarantee"]["epsilon"] == job.guarantee.epsilon
    assert said["late"] == 20
    assert said["seal"] == [{"key": PUBLIC[0], "first": 1, "last": None}]
    assert said["values"] == {"kind": "value", "size": 2, "slots": None, "initial": 0}
    assert statement_of(job) == statement_of(DeployedJob.from_bytes(job.to_bytes()))


def test_altered_signed_statement_fails_verification() -> None:
    key = Ed25519PrivateKey.generate()
    description = described(deployed_of(), key).signed_description
    assert description is not None
    assert is_signed(description)
    assert description.signer == signer_of(key)
    weaker = description.statement.replace('"epsilon":4.0', '"epsilon":0.1')
    assert weaker != description.statement
    assert not is_signed(description.model_copy(update={"statement": weaker}))
    other = signer_of(Ed25519PrivateKey.generate())
    assert not is_signed(description.model_copy(update={"signer": other}))


def test_key_file_is_created_once_with_owner_only_access(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "logins"
    made = CollectorKey.at(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert CollectorKey.at(file) == CollectorKey.read(file) == made
    assert made.secret.hex() not in repr(made)
    for mode in (0o640, 0o604):
        file.chmod(mode)
        with pytest.raises(WrongKeyError, match="chmod 600"):
            CollectorKey.read(file)
    with pytest.raises(
        WrongKeyError,
        match=("copy it from the machine that deployed the job, or name another file with --"),
    ):
        CollectorKey.read(tmp_path / "none")
    with pytest.raises(WrongKeyError, match="does not contain a collector key: is a folder"):
        CollectorKey.read(tmp_path)
    short = tmp_path / "short"
    short.touch(0o600)
    with pytest.raises(WrongKeyError, match="does not contain a collector key"):
        CollectorKey.read(short)

    signing = tmp_path / "keys" / "devices.key"
    key = signing_key_at(signing)
    assert signer_of(signing_key_at(signing)) == signer_of(key)
    signing.chmod(0o640)
    with pytest.raises(WrongKeyError, match="chmod 600"):
        signing_key_at(signing)
    signing.chmod(0o600)
    signing.write_bytes(b"nonsense")
    with pytest.raises(WrongKeyError, match="does not contain an unencrypted Ed25519 signing key"):
        signing_key_at(signing)
