"""Test flags of impossible estimates."""

from __future__ import annotations

import numpy as np

from dpstream.aggregators.estimate import OUTSIDE, Estimate
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.stages.estimation import Estimation
from dpstream.randomizers.value_stream.lattice import FIRST, LAST
from dpstream.topics.manifests import Manifest, WindowStatus

JOB = deploy_job(
    parse_job(
        "name: few\nprotocol: value_stream\nparameters: {epsilon: 4, max_changes: 2}\n"
        "epochs: {count: 8}\nshuffle: {minimum: 1}\n"
    ),
    deployed_at=0,
    deployment=bytes(16),
)
USERS = 202
LETTERS = (FIRST, 80, LAST)


def estimate_of(
    estimation: Estimation, epoch: int, window_status: WindowStatus, letters: list[int]
) -> object:
    window = JOB.aggregator()
    window.add(epoch, np.array(letters, np.uint8).reshape(-1, 1), None)
    manifest = Manifest(
        JOB.fingerprint,
        JOB.deployment,
        epoch,
        window_status,
        0,
        0,
        1,
        (True,),
        (USERS,),
        len(letters),
        USERS,
        5,
    )
    estimation.take_in(
        manifest, window.to_bytes() if window_status is WindowStatus.RELEASED else None
    )
    return estimation.estimate()


def test_estimate_below_0_or_above_the_population_is_flagged() -> None:
    estimates = [
        estimate_of(Estimation(JOB), 1, WindowStatus.RELEASED, [each] * 13) for each in LETTERS
    ]
    values = [each.value or 0.0 for each in estimates if isinstance(each, Estimate)]
    assert values[0] < 0 < values[1] < USERS < values[2]
    marked = [OUTSIDE in each.flags for each in estimates if isinstance(each, Estimate)]
    assert marked == [True, False, True]
