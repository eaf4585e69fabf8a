"""Test ``dpstream audit NAME`` for a job on a real broker, with the constants of its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.audit.plans import with_constants_of
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.randomizers import baselines
from dpstream.randomizers.draws import draw_categories
from dpstream.topics.names import JOBS_TOPIC
from tests.support.commands import Commands


@pytest.mark.verify
def test_audit_detects_weakened_constants_in_the_job_record(
    cluster: Cluster,
    bootstrap_servers: str,
    job_name: str,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dpstream = Commands(capsys)
    job = {
        "name": job_name,
        "protocol": "split_budget",
        "parameters": {"epsilon": 2},
        "epochs": {"count": 2},
        "shuffle": {"minimum": 2},
    }
    file = tmp_path / "job.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in job.items()).replace("'", ""))
    on_it = ("--bootstrap-servers", bootstrap_servers)
    assert dpstream("deploy", file, *on_it).code == 0

    def audited(*options: object) -> tuple[int, dict[str, Any]]:
        said = dpstream("audit", job_name, *on_it, "--seed", 3, "--json", *options)
        body = json.loads(said.output)
        return said.code, {each["attack"]: each for each in body["findings"]}

    code, found = audited("--trials", 200)
    assert code == 0
    law = found["deployed mechanism"]
    assert law["subject"] == job_name
    assert (law["claimed"], law["observed"], law["outcome"]) == (2.0, 2.0, "exact")
    for attack in ("likelihood ratios", "local reports", "released windows"):
        assert found[attack]["outcome"] != "failed"

    def less_noise(weights: Any, count: int, rng: np.random.Generator) -> Any:
        return draw_categories(weights, count, rng) & draw_categories(weights, count, rng)

    with monkeypatch.context() as patch:
        patch.setattr(baselines, "draw_categories", less_noise)
        code, found = audited("--quick")
    assert code == 1
    assert found["draws compared with the mechanism"]["outcome"] == "failed"

    # An attacker with write access to the job record could change the sampling of all devices and
    # stages.
    deployed = find_deployed(cluster, job_name)
    loud = deploy_job(make_job({**job, "parameters": {"epsilon": 4}}), deployed_at=0)
    record = with_constants_of(loud, deployed).to_bytes()
    cluster.append(JOBS_TOPIC, record, key=job_name.encode())
    said = dpstream("audit", job_name, *on_it, "--quick")
    assert said.code == 2
    assert f"job {job_name} was deployed by an incompatible version" in said.errors
