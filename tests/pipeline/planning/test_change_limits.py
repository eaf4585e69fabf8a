"""Which jobs assume that people change a limited number of times."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.planning.plan import plan
from dpstream.pipeline.protocols.change_limits import ChangeLimit

ITEMS = "domain: [a, b, c]"
SHUFFLED = "shuffled_counts", "epsilon: 1, delta: 1.0e-6"


@pytest.mark.parametrize(
    ("protocol", "parameters", "epochs", "limit"),
    [
        ("value_stream", "epsilon: 4, changes: 4", 64, ChangeLimit(4, "delayed")),
        ("value_stream", "epsilon: 4, changes: 4", 4, None),
        # So few epochs that no change is boosted: all are followed at once, however many they are.
        ("value_stream", "epsilon: 4, changes: 4", 8, None),
        ("hadamard_values", f"epsilon: 2, changes: 1, {ITEMS}", 4, None),
        ("range_values", "epsilon: 2, changes: 3, low: 0, high: 8, buckets: 2", 6, None),
        ("future_rand", "epsilon: 4, changes: 4", 64, ChangeLimit(4, "lost")),
        ("erlingsson", "epsilon: 4, changes: 2", 64, ChangeLimit(2, "lost")),
        ("split_budget", "epsilon: 4", 4, None),
        ("memoized_response", "epsilon: 4", 4, None),
        (
            "hadamard_values",
            f"epsilon: 4, changes: 0, {ITEMS}",
            64,
            ChangeLimit(0, "delayed", first_is_free=True),
        ),
        ("hadamard_values", f"epsilon: 4, changes: 0, {ITEMS}", 1, None),
        (
            "range_values",
            "epsilon: 4, changes: 1, low: 0, high: 8, buckets: 4",
            16,
            ChangeLimit(1, "delayed", first_is_free=True),
        ),
        (SHUFFLED[0], f"{SHUFFLED[1]}, changes: 4", 170, ChangeLimit(4, "delayed")),
        (
            SHUFFLED[0],
            f"{SHUFFLED[1]}, changes: 4, dummies: shuffle",
            170,
            ChangeLimit(4, "delayed"),
        ),
        (SHUFFLED[0], SHUFFLED[1], 170, None),
        (SHUFFLED[0], f"{SHUFFLED[1]}, changes: 4, boost: 0", 170, None),
        (
            SHUFFLED[0],
            f"{SHUFFLED[1]}, changes: 4, cells: count_min, {ITEMS}",
            170,
            ChangeLimit(4, "delayed"),
        ),
    ],
)
def test_a_job_says_how_many_changes_its_intervals_assume(
    protocol: str, parameters: str, epochs: int, limit: ChangeLimit | None
) -> None:
    text = (
        f"name: a\nprotocol: {protocol}\nparameters: {{{parameters}}}\n"
        f"epochs: {{count: {epochs}}}\nshuffle: {{minimum: 100}}\n"
    )
    job = deploy_job(parse_job(text), deployed_at=0)
    assert job.change_limit == limit
    assert job.assumes_changes == (None if limit is None else limit.changes)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (None, "every 42 epochs last for all 170"),
        ([0.2, 0, 0, 0, 0, 0, 0.5, 0, 0.3], "makes 6: they run out by epoch 98"),
        ([0.2, 0.4, 0.4], "makes 1, and these last for all epochs"),
    ],
)
def test_plan_says_when_changes_run_out(shares: list[float] | None, said: str) -> None:
    job = parse_job(
        "name: a\nprotocol: value_stream\nparameters: {epsilon: 4, changes: 4}\n"
        "epochs: {count: 170}\n"
    )
    found = plan(job, 1_000, changes=None if shares is None else np.array(shares))
    assert found.assumption is not None
    assert said in found.assumption
