"""All rules together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pipeline.jobs.noise_keys import NoiseKey
from pipeline.operations.stage_verification.attestation import Scheme, attestation
from pipeline.operations.stage_verification.contents import amount, attempts, order, undecided
from pipeline.operations.stage_verification.decisions import membership, minimum, timing
from pipeline.operations.stage_verification.evidence import Evidence
from pipeline.operations.stage_verification.findings import Finding, Verdict
from pipeline.operations.stage_verification.noise import noise
from pipeline.operations.stage_verification.raw import cut, raw_contents, remade_windows
from pipeline.operations.stage_verification.signatures import (
    Expected,
    noise_commitment,
    signatures,
    software,
)

_SECRETS = (
    "that a stage forgets: whether it keeps raw reports, or tells somebody whose they were, "
    "nobody can see from outside; seal reports for two stages of two operators (sealed.stages), "
    "of which one has to be honest"
)


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of all rules.

    Attributes:
        job: its name.
        deployment: 16 bytes.
        decided: epochs that are decided.
        unseen: released epochs whose words are not there: not written yet, or deleted.
        findings: one for each rule.
    """

    job: str
    deployment: bytes
    decided: int
    unseen: int
    findings: tuple[Finding, ...]

    @property
    def violated(self) -> bool:
        """Whether any rule was broken."""
        return any(each.verdict is Verdict.VIOLATED for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "job": self.job,
            "deployment": self.deployment.hex(),
            "decided": self.decided,
            "unseen": self.unseen,
            "violated": self.violated,
            "findings": [each.to_json() for each in self.findings],
        }


def verify_stages(
    evidence: Evidence,
    *,
    signers: Collection[bytes] = (),
    expected: Expected = Expected(),  # noqa: B008
    noise_key: NoiseKey | None = None,
    scheme: Scheme | None = None,
) -> Verification:
    """Hold the stages of a job to the rules.

    Args:
        evidence: to look at.
        signers: public keys that stages may sign with, beside those that the job states.
        expected: which software.
        noise_key: the job's, of an auditor who was given it.
        scheme: by which stages are vouched for.

    Raises:
        NoiseKeyError: it is another one.
    """
    job = evidence.job
    pinned = {*signers, *(bytes.fromhex(key) for key in job.shuffle.signers)}
    remade = remade_windows(evidence, noise_key)
    findings = (
        signatures(evidence, pinned),
        software(evidence, expected),
        attestation(evidence, scheme),
        membership(evidence),
        minimum(evidence),
        timing(evidence),
        order(evidence),
        amount(evidence),
        attempts(evidence),
        noise_commitment(evidence),
        noise(evidence, noise_key, {epoch: each.sent for epoch, each in remade.items()}),
        cut(evidence, remade),
        raw_contents(evidence, remade, noise_key),
        Finding("secrecy", "a stage keeps nothing and tells nobody", 0, missing=_SECRETS),
    )
    return Verification(
        job.name, job.deployment, len(evidence.decisions), undecided(evidence), findings
    )
