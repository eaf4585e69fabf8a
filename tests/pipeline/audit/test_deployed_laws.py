"""The constants of a deployed job lose what its parameters promise, or the audit says so."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpstream.pipeline.audit.deployed_laws import attack_law, with_constants_of
from dpstream.pipeline.audit.findings import Finding
from dpstream.pipeline.jobs.descriptions import described
from tests.attacks.attacked_devices import device_job


def why(findings: Iterable[Finding]) -> str:
    """The reason of the first conviction; empty if there is none."""
    return next((finding.reason for finding in findings if finding.convicted), "")


def test_a_deployed_job_with_other_constants_is_convicted() -> None:
    job = device_job()
    signed = described(job, Ed25519PrivateKey.generate())
    assert not why(attack_law(signed, job))
    loud = device_job(parameters={"epsilon": 2, "changes": 2})
    tampered = with_constants_of(loud, signed)
    assert "its constants lose epsilon 2, delta 0; its parameters promise 1" in why(
        attack_law(tampered, job)
    )
    assert "devices are told other constants" in why(attack_law(tampered, loud))
    told = signed.signed_description
    assert told is not None
    forged = told.model_copy(update={"signature": bytes(64)})
    altered = signed.model_copy(update={"signed_description": forged})
    assert "not signed by the key that it names" in why(attack_law(altered, job))
