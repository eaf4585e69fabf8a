"""Test the workers that a supervisor derives from the jobs topic."""

from __future__ import annotations

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob, Origin, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import NoTopicError
from dpstream.pipeline.kafka.deployed_jobs import set_phase
from dpstream.pipeline.kafka.jobs_follower import JobsReader
from dpstream.pipeline.operations.deployments import deploy, undeploy
from dpstream.pipeline.operations.supervisor.target_tasks import Task, Tasks, tasks_of
from dpstream.topics.names import JOBS_TOPIC
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import job_text


@pytest.fixture
def reader(cluster: MemoryCluster) -> JobsReader:
    return JobsReader(cluster)  # type: ignore[arg-type]


def deployed(cluster: MemoryCluster, name: str, number: int = 0) -> DeployedJob:
    return deploy(
        cluster,  # type: ignore[arg-type]
        parse_job(job_text(name)),
        deployment=bytes([number] * 16),
        now=number,
    )


def target_tasks(tasks: Tasks, stage: str) -> dict[str, bytes]:
    return {job: task.version for job, task in tasks.tasks.items() if task.is_for(stage)}


def test_active_job_has_target_tasks(cluster: MemoryCluster, reader: JobsReader) -> None:
    job = deployed(cluster, "one")
    for phase, works in (
        (Phase.RUNNING, True),
        (Phase.PAUSED, False),
        (Phase.DRAINING, True),
        (Phase.DRAINED, False),
    ):
        set_phase(cluster, job, phase, 1)  # type: ignore[arg-type]
        reader.read()
        assert bool(target_tasks(tasks_of(reader.topic, "*"), "shuffle")) is works
    undeploy(cluster, "one")  # type: ignore[arg-type]
    reader.read()
    assert not tasks_of(reader.topic, "*").tasks


def test_task_version_changes_with_the_deployment_or_job_record() -> None:
    job = deploy_job(parse_job(job_text()), deployed_at=0, deployment=bytes(16))
    shuffle = job.shuffle.model_copy(update={"grace": 2 * job.shuffle.grace})
    jobs = [
        job,
        job.model_copy(update={"deployment": bytes([1] * 16)}),
        job.model_copy(update={"shuffle": shuffle}),
    ]
    versions = {Task.of(each, Phase.RUNNING).version for each in jobs}
    assert len(versions) == len(jobs)
    again = DeployedJob.from_bytes(job.to_bytes())
    assert Task.of(again, Phase.PAUSED).version == Task.of(job, Phase.RUNNING).version


def test_replay_has_no_shuffle_task() -> None:
    job = deploy_job(parse_job(job_text()), deployed_at=0, deployment=bytes(16))
    replay = job.model_copy(
        update={"replay_of": Origin.model_validate({"job": "small", "deployment": "00" * 16})}
    )
    task = Task.of(replay, Phase.RUNNING)
    assert [task.is_for(stage) for stage in ("shuffle", "aggregate", "publish")] == [
        False,
        True,
        True,
    ]


def test_pattern_selects_the_jobs_of_a_supervisor(
    cluster: MemoryCluster, reader: JobsReader
) -> None:
    for name in ("survey-a", "survey-b", "words"):
        deployed(cluster, name)
    cluster.append(JOBS_TOPIC, b"from the future", key=b"survey-c")
    reader.read()
    surveys, words = (tasks_of(reader.topic, pattern) for pattern in ("survey-*", "[!s]*"))
    assert surveys.tasks.keys() == {"survey-a", "survey-b"}
    assert surveys.unreadable == {"survey-c"}
    assert words.tasks.keys() == {"words"}
    assert not words.unreadable


def test_unreadable_job_record_affects_no_other_job(
    cluster: MemoryCluster, reader: JobsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(value: bytes) -> DeployedJob:
        raise ZeroDivisionError

    deployed(cluster, "one")
    reader.read()
    with monkeypatch.context() as broken:
        broken.setattr(DeployedJob, "from_bytes", explode)
        cluster.append(JOBS_TOPIC, b"{}", key=b"two")
        reader.read()
    tasks = tasks_of(reader.topic, "*")
    assert tasks.tasks.keys() == {"one"}
    assert tasks.unreadable == {"two"}


def test_recreated_topic_is_read_from_the_start(cluster: MemoryCluster, reader: JobsReader) -> None:
    deployed(cluster, "one")
    deployed(cluster, "two")
    reader.read()
    cluster.records.clear()
    deployed(cluster, "three")
    reader.read()
    assert reader.topic.jobs.keys() == {"three"}


def test_jobs_already_read_remain_when_the_jobs_topic_disappears(
    cluster: MemoryCluster, reader: JobsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(topic: str) -> list[int]:
        raise NoTopicError(topic)

    deployed(cluster, "one")
    reader.read()
    monkeypatch.setattr(cluster, "end_offsets", gone)
    with pytest.raises(NoTopicError):
        reader.read()
    assert reader.topic.jobs.keys() == {"one"}
