"""Test that a running job names a value of an attribute, and that recordings and replays match."""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.commands import Commands

USERS, EPOCHS, NAMED_AT = 400, 6, 4


def write_job(path: Path, name: str, values: str) -> Path:
    path.write_text(
        f"name: {name}\nepochs: {{count: {EPOCHS}}}\nparameters: {{epsilon: 8, max_changes: 3}}\n"
        "measures: {wau: {type: active}}\nby: [plan]\nshuffle: {minimum: 1}\n"
        f"attributes: {{plan: {{values: [{values}], spare: 2}}}}\ntopics: {{partitions: 2}}\n"
    )
    return path


def write_events(path: Path) -> Path:
    """Write events at all epochs: every fourth user is on plan team, the others are on free."""
    rows = (
        f"u{user},{epoch},{'free' if user % 4 else 'team'}\n"
        for user in range(USERS)
        for epoch in range(1, EPOCHS + 1)
    )
    path.write_text("user,epoch,plan\n" + "".join(rows))
    return path


def test_running_job_names_a_value_and_its_replay_is_identical(
    dpstream: Commands,
    start: Callable[..., subprocess.Popen[str]],
    job_name: str,
    tmp_path: Path,
) -> None:
    def succeeded(*arguments: object) -> Any:
        result = dpstream(*arguments)
        assert result.code == 0, result.errors
        return result

    job, events = tmp_path / "job.yaml", write_events(tmp_path / "events.csv")
    succeeded("deploy", write_job(job, job_name, "free, pro"))
    for stage in ("shuffle", "aggregate", "publish"):
        start("run", stage, job_name)
    succeeded("produce", job_name, "--input", events, "--to-epoch", 2)
    named = succeeded("deploy", write_job(job, job_name, "free, pro, team"))
    assert f"team in a spare cell from epoch {NAMED_AT} on" in " ".join(named.output.split())
    assert "0 epochs" not in succeeded("produce", job_name, "--input", events).output
    kept = tmp_path / "recording"
    succeeded("record", job_name, "--output", kept, "--follow")
    text = succeeded("estimates", job_name, "--by", "plan", "--format", "csv").output
    found = {(int(row["epoch"]), row["plan"]): row for row in csv.DictReader(io.StringIO(text))}
    for epoch in range(1, EPOCHS + 1):
        plans = {plan for at, plan in found if at == epoch}
        assert plans == {"none", "other", "free", "pro", *(["team"] if epoch >= NAMED_AT else [])}
        row = found[epoch, "team" if epoch >= NAMED_AT else "other"]
        assert abs(float(row["estimate"]) - USERS / 4) < 5 * float(row["standard_error"]) < USERS
    checked = Commands(dpstream.capture)("record", "--verify", kept, "--deep", "--json")
    assert checked.json["intact"] is True
    succeeded("replay", kept, "--new-name", f"{job_name}-again")
    succeeded("diff", job_name, f"{job_name}-again")
