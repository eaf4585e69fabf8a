"""Replays of jobs that learn: the same models, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.simulation.memory import MemoryLog
from dpstream.randomizers.labelled_examples import packed_examples
from dpstream.topics.models import ModelRecord
from dpstream.topics.names import Role
from tests.support.replays import LiveRun, example_job, replayed


def models(job: DeployedJob, log: MemoryLog) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for value in log.values(Role.MODEL):
        record = ModelRecord.from_bytes(value)
        assert record.deployment == job.deployment
        assert record.epoch not in found
        found[record.epoch] = record.model.tobytes()
    return found


@pytest.mark.parametrize("tested", [False, True])
def test_a_replay_learns_the_same_models(tested: bool, tmp_path: Path) -> None:
    """From topics and from a recording, with windows withheld, and in a second horizon."""
    test_set = packed_examples(np.array([[1, 5, 5], [2, -5, 5]])) if tested else None
    example = PROTOCOLS["ldp_sgd"].examples[0]
    example = replace(example, parameters=replace(example.parameters, test_set=test_set))
    job = example_job("ldp_sgd", example, epochs={"count": 5, "renew": True})
    live = LiveRun.of(job, epochs=7, small={3}, silent={4})
    expected = models(live.job, live.log)
    assert sorted(expected) == [1, 2, 3, 4, 5, 6, 7]
    assert expected[2] == expected[3] == expected[4], "nothing was learnt of what was withheld"
    assert len(set(expected.values())) == 5
    for source in (live.source, live.record(tmp_path / "recording")):
        deployed, log, results = replayed(source)
        assert models(deployed, log) == expected
        assert results == live.results
