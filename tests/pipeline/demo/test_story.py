"""The demonstration's story: four screens that fit a terminal, and say what is so."""

from __future__ import annotations

import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.demo import (
    demo_change_log,
    demo_job_file,
    demo_shuffled_job_file,
    demo_stream_job_file,
)
from dpstream.pipeline.demo.story import (
    PEOPLE,
    STUDENT,
    WIDTH,
    ScreenOfStory,
    values_of,
    what_a_device_sends,
    what_everyone_sees,
    what_is_asked,
    what_it_would_take,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate

WEEKS = 170


@pytest.fixture(scope="module")
def jobs() -> list[DeployedJob]:
    files = demo_job_file(), demo_stream_job_file(), demo_shuffled_job_file()
    return [deploy_job(load_job(file), deployed_at=0, deployment=bytes(16)) for file in files]


def records(job: DeployedJob) -> list[EstimateRecord]:
    def estimate(epoch: int) -> Estimate:
        return Estimate.around(7_000.0 + 60 * min(epoch, 100), 100.0, 196.0, PEOPLE, PEOPLE)

    return [
        EstimateRecord(
            job.deployment, epoch, Fate.RELEASED, 1 << 41, PEOPLE, PEOPLE, estimate(epoch), {}
        )
        for epoch in range(1, WEEKS + 1)
    ]


@pytest.fixture(scope="module")
def story(jobs: list[DeployedJob]) -> list[ScreenOfStory]:
    return [
        what_is_asked(jobs, PEOPLE),
        what_a_device_sends(jobs[1], values_of(demo_change_log(), STUDENT, WEEKS)),
        what_everyone_sees([(job, records(job)) for job in jobs], "http://127.0.0.1:8765/"),
        what_it_would_take(jobs),
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_it_has_four_screens_that_fit_a_terminal(story: list[ScreenOfStory], width: int) -> None:
    assert [screen.number for screen in story] == [1, 2, 3, 4]
    for screen in story:
        lines = screen.folded(width)
        assert len(lines) <= 18
        # But for the address, which is to be copied whole.
        folded = [line for line in lines if "http" not in line]
        assert len(lines) - len(folded) == (screen.number == 3)
        assert all(len(line) <= min(width, WIDTH) for line in folded)
        assert not any(line.lstrip().startswith("%") for line in folded)
