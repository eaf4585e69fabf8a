"""``dpstream relay`` and ``produce --relay``: who may reach it, and what is no relay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster
from tests.support.small_run import job_text


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    (tmp_path / "job.yaml").write_text(job_text())
    (tmp_path / "rows.csv").write_text("user,epoch,value\nann,1,1\n")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "short").write_text("0123456789abcdef\nshort\n")
    (tmp_path / "empty").write_text("\n")
    for name in ("token", "short", "empty"):
        (tmp_path / name).chmod(0o600)
    return Commands(capsys)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--bind", "0.0.0.0:8400"), "give --tokens FILE, so that not everybody can write"),
        (("--bind", "relay.example.org:8400"), "which other machines reach"),
        (("--bind", "[::]:8400"), "which other machines reach"),
        (("--bind", "8400"), "give HOST:PORT"),
        (("--tokens", "missing"), "cannot read --tokens missing: No such file"),
        (("--tokens", "short"), "each of 16 characters or more; openssl rand -hex 32 makes one"),
        (("--tokens", "empty"), "needs a token a line"),
        (("--tls-cert", "chain.pem"), "--tls-cert and --tls-key are needed together"),
    ],
)
def test_a_relay_that_anybody_could_use_is_not_run(
    dpstream: Commands, words: tuple[str, ...], problem: str
) -> None:
    said = dpstream("relay", *words)
    assert said.code == 2
    assert problem in " ".join(said.errors.split())


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--relay-token", "token"), 2, "--relay-token and --relay-ca are for --relay"),
        (("--relay", "http://relay", "--relay-token", "no"), 2, "cannot read --relay-token no"),
        (("--relay", "http://relay", "--relay-token", "empty"), 2, "empty holds no token"),
        (("--relay", "http://relay", "--relay-ca", "token"), 1, "token has no certificates"),
        (("--relay", "http://relay"), 1, "only one that is deployed to wait for 100 producers"),
    ],
)
def test_what_is_no_way_to_a_relay_is_said_before_anything_is_drawn(
    dpstream: Commands,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    problem: str,
) -> None:
    cluster = use_memory_cluster(monkeypatch)
    assert dpstream("deploy", "job.yaml", "--yes").code == 0
    said = dpstream("produce", "small", "--input", "rows.csv", *words)
    assert (said.code, problem in " ".join(said.errors.split())) == (code, True), said.errors
    assert not cluster.records["small.producers", 0]
