"""Coverage over time, and users who change more often than intervals assume."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpstream.pipeline.devices.bad_rows import BadRows
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.results.coverage import (
    coverage_lines,
    coverage_over_time,
    expected_coverage,
    used_up,
)

FOUR_EPOCHS = 4


def log_of(rows: list[tuple[int, int, int]], last_epoch: int) -> ChangeLog:
    """Of rows (user, epoch, value), of changes alone."""
    rows = sorted(rows, key=lambda row: (row[1], row[0]))
    users, epochs, values = np.array(rows).T
    names = tuple(f"u{user}" for user in range(users.max() + 1))
    return ChangeLog(
        names, epochs.astype(np.int32), users.astype(np.int32), values.astype(np.int8),
        last_epoch, 0, BadRows("log.csv"),
    )  # fmt: skip


TOGGLING = [(0, 1, 1), (0, 3, 0), (0, 5, 1), (0, 6, 0), (1, 2, 1), (2, 4, 1), (2, 8, 0)]


@pytest.mark.parametrize(
    ("changes", "horizon", "free", "epochs"),
    [
        (1, 8, False, [3, 8]),
        (2, 8, False, [5]),
        (2, 8, True, [6]),
        (4, 8, False, []),
        # From epoch 5 on everybody begins again at 0: a value of 1 is a change then.
        (1, FOUR_EPOCHS, False, [3, 6, 8]),
        (0, FOUR_EPOCHS, False, [1, 2, 4, 5, 5, 5]),
    ],
)
def test_users_exceed_a_limit_at_their_next_change(
    changes: int, horizon: int, free: bool, epochs: list[int]
) -> None:
    limit = ChangeLimit(changes, "delayed", first_is_free=free)
    assert used_up(log_of(TOGGLING, 8), limit, horizon).tolist() == epochs


def test_coverage_is_that_of_all_runs_in_each_part_of_time() -> None:
    runs = [
        [(1, [True]), (2, [True, True]), (3, [False, False])],
        [(1, [False]), (3, [True, False])],
    ]
    parts = coverage_over_time((epoch, np.array(held)) for run in runs for epoch, held in run)
    assert json.loads(json_text(parts)) == [
        {"first_epoch": 1, "last_epoch": 1, "held": 1, "claimed": 2, "coverage": 0.5},
        {"first_epoch": 2, "last_epoch": 2, "held": 2, "claimed": 2, "coverage": 1.0},
        {"first_epoch": 3, "last_epoch": 3, "held": 1, "claimed": 4, "coverage": 0.25},
    ]


@pytest.mark.parametrize(
    ("calendar", "since"), [("", "from 3 on"), (", start: 2026-03-01, length: P1D", "2026-03-03")]
)
def test_used_up_changes_are_named_as_the_cause(calendar: str, since: str) -> None:
    def told(protocol: str, rows: list[tuple[int, int, int]]) -> dict[str, str]:
        text = f"name: a\nprotocol: {protocol}\nepochs: {{count: 8{calendar}}}\n"
        job = deploy_job(parse_job(text), deployed_at=0)
        parts = coverage_over_time((epoch, np.array([True, False])) for epoch in (1, 2))
        return dict(coverage_lines(job, parts, log_of(rows, 8)))

    limited = "future_rand\nparameters: {epsilon: 1, changes: 1}"
    exceeded = told(limited, TOGGLING)
    assert exceeded["  over time"].count("50%") == 2
    assert "at most 1 change per person" in exceeded["assumption"]
    assert "66.7%" in exceeded["  exceeded"]
    assert "do not cover what these users do after that" in exceeded["  exceeded"]
    assert since in exceeded["  exceeded"]
    assert "  exceeded" not in told(limited, TOGGLING[4:5])
    job = deploy_job(
        parse_job(f"name: a\nprotocol: {limited}\nepochs: {{count: 8}}\n"), deployed_at=0
    )
    # What the intervals do not cover is not said to even out over many runs.
    assert "only if nobody exceeded" in expected_coverage(job, log_of(TOGGLING, 8))
    assert "over many runs 95 % do" in expected_coverage(job, log_of(TOGGLING[4:5], 8))
    free = told("memoized_response\nparameters: {epsilon: 1}", TOGGLING)
    assert free.keys() == {"  over time"}
