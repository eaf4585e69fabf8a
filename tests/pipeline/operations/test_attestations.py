"""What vouches for a stage is found by name, and believed for one start of one key alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import parse_job
from pipeline.kafka.connection import Connection
from pipeline.operations import attestations
from pipeline.operations.attestations import AttestationError, document_of, find_attestation
from pipeline.operations.stage_verification.attestation import Scheme
from pipeline.operations.stage_verification.findings import Verdict
from pipeline.operations.stage_verification.verify_stage import verify_stages
from pipeline.operations.supervisor.supervise import SupervisorSettings
from pipeline.stages.signed_stage import SignedStage, Signer
from pipeline.stages.stage import Stage
from tests.support.commands import Commands
from tests.support.signed_stages import SOFTWARE, evidence_of, finding, signer_of
from tests.support.small_run import job_text
from tests.support.vault import Vault, vault
from tests.support.world import BEGUN, World
from topics.names import Role
from topics.signed import DOCUMENT_MAX, Attested, StageRecord, binding_of, read_statement

SCHEME = Scheme("vault", vault.verify)
OTHER = hashlib.sha256(b"other").digest()


class VouchedWorld(World):
    """A world whose shuffle stage is vouched for, by what `change` makes of its signer."""

    change: Callable[[Signer], Signer]

    def stage(self, name: str) -> Stage:
        made = super().stage(name)
        if name != "shuffle":
            return made
        signer = self.change(signer_of(self.job, name))
        return SignedStage(made, self.job, signer, wall_clock=self.broker_time)


def vouched(by: Vault = vault, scheme: str = "vault") -> Callable[[Signer], Signer]:
    return lambda signer: replace(signer, scheme=scheme, attest=by.document)


@pytest.fixture
def job() -> DeployedJob:
    return deploy_job(parse_job(job_text()), deployed_at=0, deployment=bytes(16))


def started(
    job: DeployedJob, folder: Path, *changes: Callable[[Signer], Signer]
) -> tuple[VouchedWorld, Mapping[str, Any]]:
    """A stage that was started so often, one after the other; and what comes of the rule."""
    users = {f"u{number}": 1 for number in range(5)}
    world = VouchedWorld(job, folder, {"one": dict.fromkeys(range(1, 3), users)})
    for change in changes:
        world.now += 1
        world.change = change
        world.kill("shuffle")
        world.settle(["shuffle"])
    world.shut()
    found = finding(verify_stages(evidence_of(job, world.log), scheme=SCHEME), "attestation")
    return world, found.to_json()


def test_every_start_that_is_vouched_for_is_verified(job: DeployedJob, tmp_path: Path) -> None:
    world, found = started(job, tmp_path, vouched(), vouched())
    assert (found["verdict"], found["checked"]) == ("verified", 2)
    assert found["notes"] == [f"a vault measured image {vault.measured.hex()[:6]}: 2 started"]
    assert "what vault does not measure" in found["missing"]
    unasked = finding(verify_stages(evidence_of(job, world.log)), "attestation")
    assert unasked.verdict is Verdict.UNKNOWN
    assert "--attestation NAME" in unasked.missing
    others = {each.rule for each in verify_stages(evidence_of(job, world.log)).findings}
    assert "signatures" in others
    signatures = finding(verify_stages(evidence_of(job, world.log)), "signatures")
    assert not signatures.violations


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda signer: signer, "nothing vouches for a start of shuffle/one"),
        (vouched(scheme="safe"), "nothing vouches for a start of shuffle/one"),
        (vouched(Vault(measured=OTHER)), f"image {OTHER.hex()[:6]} is not the one to run"),
        (vouched(Vault(key=Ed25519PrivateKey.generate())), "its maker did not sign this about it"),
    ],
    ids=["no document", "of another scheme", "of another image", "of another maker"],
)
def test_one_start_without_is_a_violation(
    change: Callable[[Signer], Signer], why: str, job: DeployedJob, tmp_path: Path
) -> None:
    _, found = started(job, tmp_path, vouched(), change, vouched())
    assert (found["verdict"], found["checked"]) == ("violated", 3)
    (violation,) = found["violations"]
    assert why in violation["why"]


@pytest.mark.parametrize(
    "other",
    [
        lambda signer: replace(signer, key=Ed25519PrivateKey.generate()),
        lambda signer: replace(signer, software={**SOFTWARE, "more": SOFTWARE["numpy"]}),
        lambda signer: replace(signer, worker="two"),
        lambda signer: replace(signer, python="3.12.0"),
        lambda signer: replace(signer, noise_key=OTHER),
        # Nothing but the time of its start.
        lambda signer: signer,
    ],
    ids=["key", "software", "worker", "python", "noise key", "time"],
)
def test_a_document_vouches_for_nothing_else(
    other: Callable[[Signer], Signer], job: DeployedJob, tmp_path: Path
) -> None:
    """Who gets hold of an honest start's document can make no other start look vouched for."""
    kept: list[bytes] = []

    def keeping(binding: bytes) -> bytes:
        kept.append(vault.document(binding))
        return kept[-1]

    def honest(signer: Signer) -> Signer:
        return replace(signer, scheme="vault", attest=keeping)

    def thief(signer: Signer) -> Signer:
        return replace(other(signer), scheme="vault", attest=lambda binding: kept[0])

    _, found = started(job, tmp_path, honest, thief)
    assert found["checked"] == 2
    (violation,) = found["violations"]
    assert "its maker did not sign this about it" in violation["why"]


def test_the_binding_is_of_all_that_is_said_and_who_says_it(
    job: DeployedJob, tmp_path: Path
) -> None:
    world, _ = started(job, tmp_path, vouched())
    first, second = map(read_statement, world.log.values(Role.STAGES)[:2])
    assert isinstance(first.statement, StageRecord)
    assert isinstance(second.statement, Attested)
    assert first.statement.time == BEGUN + 1_000
    binding = binding_of(first.statement, first.signer)
    assert second.statement.document == vault.document(binding)
    assert binding != binding_of(first.statement, OTHER)
    assert binding != binding_of(replace(first.statement, deployment=OTHER[:16]), first.signer)
    assert len(binding) == 32


def offered(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    entries = [EntryPoint(name, value, attestations.GROUP) for name, value in values.items()]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [each for each in entries if name in (None, each.name)]

    monkeypatch.setattr(attestations, "entry_points", entry_points)


def test_a_package_is_found_by_the_name_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(
        monkeypatch,
        vault="tests.support.vault:vault",
        gone="tests.support.no_such:vault",
        none="tests.support.vault:MAKER",
    )
    assert find_attestation("vault") is vault
    for name, why in (
        ("tpm", "no installed package offers attestation tpm .*: there are gone, none, vault"),
        ("gone", "cannot be imported: ModuleNotFoundError"),
        ("none", "has no methods document and verify"),
    ):
        with pytest.raises(AttestationError, match=why):
            find_attestation(name)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "no document of 1 to"),
        (bytes(DOCUMENT_MAX + 1), "no document of 1 to"),
        ("text", "no document of 1 to"),
        (OSError("no such device"), "does not vouch for this machine: OSError: no such device"),
    ],
)
def test_a_machine_that_does_not_vouch_has_no_stage(document: object, why: str) -> None:
    class Broken(Vault):
        def document(self, binding: bytes) -> Any:
            if isinstance(document, Exception):
                raise document
            return document

    with pytest.raises(AttestationError, match=why):
        document_of("vault", Broken(), bytes(32))
    largest = Vault(measured=bytes(DOCUMENT_MAX - 64))
    assert len(document_of("vault", largest, bytes(32))) == DOCUMENT_MAX


def test_a_supervisor_has_its_workers_vouched_for() -> None:
    servers = Connection(("localhost:1",))
    settings = SupervisorSettings("shuffle", "w", attestation="vault")
    line = list(settings.command("small", servers, None))
    assert line[line.index("--attestation") + 1] == "vault"
    assert "--attestation" not in SupervisorSettings("shuffle", "w").command("small", servers, None)


def test_stages_that_sign_nothing_are_vouched_for_by_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for stage in ("aggregate", "publish"):
        said = Commands(capsys)("run", stage, "small", "--attestation", "vault")
        assert said.code == 2
        assert "--attestation is for stages that have to be trusted" in said.errors
    unknown = Commands(capsys)("verify-stage", "small", "--attestation", "no-such")
    assert unknown.code == 2
    assert "no installed package offers attestation no-such" in unknown.errors
