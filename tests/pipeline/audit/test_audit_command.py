"""Test the ``dpstream audit`` command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.audit.audits import FALSE_ALARM
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.devices import Devices
from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster


@pytest.mark.verify
def test_quick_audit_covers_all_protocols(dpstream: Commands) -> None:
    """`test_quick_audit` runs the attacks on each protocol separately."""
    result = dpstream("audit", "--quick", "--json")
    assert result.code == 0, result.output
    report = result.json
    assert report["outcome"] == "consistent"
    assert 0 < report["false_alarm"] <= FALSE_ALARM * (1 + 1e-9)
    attacked = {e["subject"] for e in report["findings"] if e["attack"] == "likelihood ratios"}
    assert {subject.rpartition("-")[0] for subject in attacked} == set(PROTOCOLS)


def test_audit_rejects_unknown_subject(dpstream: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    use_memory_cluster(monkeypatch)
    result = dpstream("audit", "missing")
    assert result.code == 2
    assert "missing is neither a protocol nor a usable job" in result.errors
    assert "job missing is not deployed" in result.errors


def test_audit_attacks_a_job_with_its_stored_constants(
    dpstream: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_memory_cluster(monkeypatch)
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert dpstream("deploy", file).code == 0
    result = dpstream("audit", "weekly", "--quick", "--seed", 3, "--json")
    assert result.code == 0, result.output + result.errors
    found = {each["attack"]: each for each in result.json["findings"]}
    law = found["deployed mechanism"]
    assert (law["claimed"], law["observed"], law["outcome"]) == (2.0, 2.0, "exact")
    assert found["likelihood ratios"]["subject"].startswith("split_budget")


def test_failed_audit_is_printed_and_exits_with_1(
    dpstream: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = PROTOCOLS["split_budget"]
    randomizer = entry.randomizer

    def boasting(law: Any) -> Devices[Any]:
        devices = randomizer(law)
        stated = devices.guarantee
        weaker = replace(stated, epsilon=stated.epsilon / 1.3)
        monkeypatch.setattr(type(devices), "guarantee", property(lambda self: weaker))
        return devices

    object.__setattr__(entry, "randomizer", boasting)
    try:
        result = dpstream("audit", "split_budget", "--quick", "--json")
    finally:
        object.__setattr__(entry, "randomizer", randomizer)
    assert result.code == 1
    report = json.loads(result.output)
    assert report["outcome"] == "failed"
    assert [each["attack"] for each in report["findings"] if each["outcome"] == "failed"]


JOB = """
name: weekly
protocol: split_budget
parameters: {epsilon: 2}
epochs: {count: 1}
shuffle: {minimum: 2}
"""


def test_quick_audit_samples_jobs_with_independent_epochs(
    dpstream: Commands, tmp_path: Path
) -> None:
    """No neighbors of this job have constant values."""
    job = tmp_path / "job.yaml"
    job.write_text(
        JOB.replace("split_budget", "projective_geometry")
        .replace("epsilon: 2", "epsilon: 2, domain: [a, b, c]")
        .replace("count: 1", "count: 2")
    )
    result = dpstream("audit", job, "--quick", "--seed", 3, "--json")
    assert result.code == 0, result.output + result.errors
    attacks = {each["attack"] for each in result.json["findings"]}
    assert {"local reports", "released windows", "published history"} <= attacks
