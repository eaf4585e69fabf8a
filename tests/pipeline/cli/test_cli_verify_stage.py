"""``dpstream verify-stage``: a line for every rule, and exit code 1 where one is broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.run import StageName
from pipeline.cli.verify_stage import pairs_of
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.operations.deployed_jobs import find_deployed
from pipeline.operations.stage_verification.findings import Finding, Violation
from pipeline.operations.status.facts import stages_of
from pipeline.whole_files import write_new
from tests.pipeline.operations.test_installed_software import FILES, wheel_of
from tests.support.commands import Commands
from tests.support.memory_run import RunCluster, Worker
from tests.support.public_view import as_cluster
from tests.support.signed_stages import public_key
from tests.support.small_run import job_text
from topics.manifests import decode_manifest, encode_manifest

RULES = [
    *("signatures", "software", "attestation", "membership", "minimum", "timing", "order"),
    *("amount", "attempts", "noise key", "noise", "cut", "raw contents", "secrecy"),
]


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    return Commands(capsys)


@pytest.fixture
def cluster(dpstream: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunCluster:
    """A small job that has run, of stages that sign."""
    cluster = RunCluster()
    place = "pipeline.cli.cluster_and_jobs"
    monkeypatch.setattr(f"{place}.connection_of", lambda *_, **__: cluster.connection)
    monkeypatch.setattr(f"{place}.Cluster", lambda connection: cluster)
    job_file, rows = tmp_path / "small.yaml", tmp_path / "rows.csv"
    job_file.write_text(job_text())
    users = "".join(f"u{number},1,1\n" for number in range(200))
    rows.write_text(f"user,epoch,value\n{users}")
    assert dpstream("deploy", job_file).code == 0
    assert dpstream("produce", "small", "--input", rows).code == 0
    job = find_deployed(as_cluster(cluster), "small")
    for stage in stages_of(job):
        Worker(cluster, job, StageName(stage), tmp_path / stage).work()
    return cluster


def test_a_line_for_every_rule(dpstream: Commands, cluster: RunCluster) -> None:
    said = dpstream("verify-stage", "small")
    assert (said.code, said.errors) == (0, "")
    lines = said.output.splitlines()
    rules = [line[2:15].strip() for line in lines[1:] if line[2:15].strip()]
    assert rules == RULES
    assert "12 epochs decided" in lines[0]
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("  order         verified over 12 windows: ") for line in lines)
    assert any(line.startswith("  secrecy       cannot be verified: ") for line in lines)
    assert public_key("shuffle").hex() in said.output
    found = dpstream("verify-stage", "small", "--json").json
    assert [each["rule"] for each in found["findings"]] == RULES
    assert (found["violated"], found["decided"], found["unseen"]) == (False, 12, 0)


def test_what_the_verifier_expects_is_held_against_what_stages_say(
    dpstream: Commands, cluster: RunCluster, tmp_path: Path
) -> None:
    wheel = wheel_of(tmp_path / "dpstream.whl", FILES)
    for options, code in (
        (("--expect-version", "0.1.0"), 0),
        (("--expect-version", "9"), 1),
        (("--wheel", wheel), 1),
        (("--signer", public_key("shuffle").hex()), 0),
        (("--signer", public_key("somebody").hex()), 1),
    ):
        said = dpstream("verify-stage", "small", *options)
        assert (said.code, said.errors) == (code, ""), options
        assert ("VIOLATED" in said.output) == bool(code)


def test_a_rule_that_is_broken_is_named_with_the_epoch_and_why(
    dpstream: Commands, cluster: RunCluster
) -> None:
    held = cluster.records["small.manifests", 0]
    manifest = decode_manifest(held[2].value)
    other = encode_manifest(replace(manifest, timestamp=manifest.timestamp + 1))
    held[2] = replace(held[2], value=other)
    said = dpstream("verify-stage", "small")
    assert said.code == 1
    assert "  signatures    VIOLATED over 24 manifests and windows" in said.output
    why = f"epoch {manifest.epoch}: no shuffle stage has signed the manifest at offset 2"
    assert why in " ".join(said.output.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--signer", "abc"), "64 hexadecimal digits"),
        (("--wheel", "nowhere.whl"), "pip wheel --no-deps"),
        (("--noise-key", "key"), "draws no noise"),
    ],
)
def test_what_cannot_be_asked(
    dpstream: Commands, cluster: RunCluster, tmp_path: Path, options: tuple[str, str], told: str
) -> None:
    write_new(tmp_path / "key", NoiseKey.random().secret, 0o600)
    said = dpstream("verify-stage", "small", *options)
    assert (said.code, said.output) == (2, "")
    assert told in said.errors


def test_no_more_violations_are_listed_than_can_be_read() -> None:
    many = tuple(Violation(epoch, "why") for epoch in range(1, 9))
    pairs = list(pairs_of(Finding("order", "promise", 9, violations=many, missing="this")))
    assert pairs[0] == ("order", "VIOLATED over 9 windows: promise")
    assert pairs[-2:] == [("", "and 3 more"), ("", "not verified: this")]
    assert len(pairs) == 8
