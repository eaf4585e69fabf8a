"""A job over sets of items on a real broker: it runs, and its windows are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands
from tests.support.set_jobs import job_text, within

ROOT = Path(__file__).parents[2]
USERS, EPOCHS = 2_000, 3
# Far longer than anything takes: who needs it has failed.
PATIENCE = 120.0


@pytest.mark.verify
def test_windows_of_an_open_domain_are_asked_after_the_run(
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    job, items = tmp_path / "job.yaml", tmp_path / "items.csv"
    parameters = "domain: {strings: {bytes: 4}}, items: 2, messages_per_user: 2000"
    job.write_text(
        job_text("count_min", parameters, minimum=USERS, epochs=EPOCHS, name=job_name)
        + "topics: {partitions: 2}\n"
    )
    rows = [
        f"u{user},{epoch},{item}\n"
        for epoch in range(1, EPOCHS + 1)
        for user in range(USERS)
        for item in (["tea", "milk"] if user < 1_200 else ["tea"])
    ]
    items.write_text("user,epoch,value\n" + "".join(rows))
    up = [
        sys.executable,
        "-m",
        "dpstream.pipeline.cli",
        "up",
        str(job),
        "--input",
        str(items),
        "--json",
    ]
    done = subprocess.run(
        [*up, "--output", str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "DPSTREAM_BOOTSTRAP_SERVERS": bootstrap_servers},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [epoch["labels"] for epoch in result["epochs"]] == [["tea", "milk"]] * EPOCHS
    assert [epoch["truth"] for epoch in result["epochs"]] == [[2_000, 1_200]] * EPOCHS
    assert Path(result["files"]["plot"]).read_bytes().startswith(b"\x89PNG")

    dpstream = Commands(capsys, ("--bootstrap-servers", bootstrap_servers))

    def asked(*options: object) -> list[dict[str, Any]]:
        said = dpstream("query", job_name, *options, "--json")
        assert said.code == 0, said.errors
        return [json.loads(line) for line in said.output.splitlines()]

    (one,) = asked("--epoch", 2, "--top", 5)
    assert [answer["name"] for answer in one["items"]] == ["tea", "milk"]
    (total,) = asked("--epochs", "1..3", "--item", "milk")
    (milk,) = total["items"]
    assert within(milk["estimate"], EPOCHS * 1_200, milk["standard_deviation"])
    assert total["composed"]["epsilon"] > 1
    followed = asked("--epoch", 1, "--item", "wine", "--follow")
    assert [body["epochs"] for body in followed] == [[1], [2], [3]]
    told = dpstream("estimates", job_name, "--json").output.splitlines()
    assert json.loads(told[0])["estimate"]["labels"] == ["tea", "milk"]
