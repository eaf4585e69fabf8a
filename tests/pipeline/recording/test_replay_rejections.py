"""Test rejected replays: deleted or damaged data, and invalid requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.replays import ReplayError, replayed_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed, set_phase
from dpstream.pipeline.operations.deployments import charges
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.recording.replay.on_cluster import find_replay, start_replay
from dpstream.pipeline.recording.replay.replay_plan import ReplayRange, plan_replay
from dpstream.topics.names import Role
from tests.support.memory_cluster import MemoryCluster
from tests.support.replays import (
    DECIDED,
    REPLAY,
    LiveRun,
    RetainingLog,
    example_job,
    replayed,
)

EPOCHS = 8
HORIZON = 4


def live_job(**changed: Any) -> Job:
    example = PROTOCOLS["future_rand"].examples[1]
    return example_job("future_rand", example, epochs={"count": HORIZON, "renew": True}, **changed)


@pytest.fixture
def run() -> LiveRun:
    return LiveRun.of(live_job(), epochs=EPOCHS, small={2})


def delete_windows(run: LiveRun, *epochs: int) -> None:
    assert isinstance(run.log, RetainingLog)
    for epoch in epochs:
        partition = run.job.topics.partition_of(epoch)
        later = [
            each
            for each in run.results.integers
            if each > epoch and run.job.topics.partition_of(each) == partition
        ]
        end = run.log.end(Role.SHUFFLED, partition)
        run.log.delete_below(Role.SHUFFLED, partition, end - len(later))


def test_windows_deleted_by_retention_are_reported_with_a_remedy(run: LiveRun) -> None:
    delete_windows(run, 1, 4)
    with pytest.raises(ReplayError) as rejected:
        replayed(run.source)
    message = str(rejected.value)
    assert "the windows of epochs 1, 4 are no longer in the topics of job live" in message
    assert "retention deletes them after 7 days" in message
    assert "--from-epoch 5" in message
    assert "--from-partials" in message
    assert "replay a recording" in message
    # The suggested command succeeds.
    assert replayed(run.source, ReplayRange(5))[2] == run.results.part(5, EPOCHS)
    assert replayed(run.source, ReplayRange(from_partials=True))[2] == run.results
    # Within the horizon, earlier counts are copied.
    assert replayed(run.source, ReplayRange(3, to_epoch=3))[2] == run.results.part(1, 3)


def test_window_deleted_during_a_replay_is_reported(run: LiveRun) -> None:
    source = run.source
    delete_windows(run, EPOCHS - 1, EPOCHS)
    with pytest.raises(ReplayError, match="epoch 1 of job live was deleted by retention during"):
        source.window(1)


@pytest.mark.parametrize(
    ("replay_range", "message"),
    [
        (
            ReplayRange(9),
            "epoch 9 is not finalized in the topics of job live: the last finalized epoch is 8",
        ),
        (
            ReplayRange(from_time=DECIDED + 1_000_000),
            "no epoch of the topics of job live was finalized at 2023-11-14T22:30:00.000Z or "
            "later: the latest epoch was finalized at 2023-11-14T22:13:28.000Z",
        ),
    ],
)
def test_replay_rejects_epochs_that_are_out_of_range(
    run: LiveRun, replay_range: ReplayRange, message: str
) -> None:
    with pytest.raises(ReplayError) as rejected:
        plan_replay(run.source, replay_range)
    assert str(rejected.value) == message


def test_replay_rejects_a_job_without_finalized_windows(run: LiveRun) -> None:
    empty = LiveRun(run.job, RetainingLog())
    with pytest.raises(ReplayError, match="no epoch is finalized in the topics of job live"):
        plan_replay(empty.source, ReplayRange())


def test_replay_rejects_a_recording_lacking_its_first_epochs(run: LiveRun, tmp_path: Path) -> None:
    source = run.record(tmp_path / "late", from_epoch=3)
    with pytest.raises(ReplayError) as rejected:
        replayed(source)
    assert "epochs 1 to 2 are not in the recording" in str(rejected.value)
    assert replayed(source, ReplayRange(5))[2] == run.results.part(5, EPOCHS)


def test_replay_rejects_a_recording_without_a_window(run: LiveRun, tmp_path: Path) -> None:
    results = run.results
    delete_windows(run, 3)
    source = run.record(tmp_path / "gap")
    with pytest.raises(
        ReplayError, match=r"the windows of epochs 1, 3 are no longer .* --from-epoch 4"
    ):
        replayed(source)
    assert replayed(source, ReplayRange(4))[2] == results
    assert replayed(source, ReplayRange(from_partials=True))[2] == results


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"parameters": {"epsilon": 3, "max_changes": 2}}, "parameters.epsilon: 2 -> 3"),
        ({"shuffle": {"minimum": 1}}, "shuffle.minimum: 10 -> 1"),
        ({"population": "students"}, 'population: left out -> "students"'),
    ],
)
def test_replay_rejects_changed_settings_that_affect_reports(
    run: LiveRun, changed: dict[str, Any], difference: str
) -> None:
    parameters = {"epsilon": 2, "max_changes": 2}
    with pytest.raises(ReplayError) as rejected:
        replayed_job(run.job, changed=live_job(**{"parameters": parameters, **changed}))
    assert f"({difference})" in str(rejected.value)
    assert "only the estimator" in str(rejected.value)


class TestTakenNames:
    """A name is taken, unless it belongs to the same, unfinished replay."""

    @pytest.fixture
    def cluster(self, run: LiveRun) -> Cluster:
        cluster: Any = MemoryCluster()
        cluster.create_topics(run.job.topic_settings().values())
        replay_range = replayed_job(run.job)
        start_replay(cluster, run.job, replay_range, deployment=REPLAY, now=5)
        return cluster  # type: ignore[no-any-return]

    def test_replay_in_progress_resumes(self, run: LiveRun, cluster: Cluster) -> None:
        existing = find_replay(cluster, run.job, replayed_job(run.job))
        assert existing is not None
        assert (existing.deployment, existing.fingerprint) == (REPLAY, run.job.fingerprint)
        assert find_replay(cluster, run.job, replayed_job(run.job, name="another")) is None

    def test_replay_charges_no_budget(self, cluster: Cluster) -> None:
        assert charges(cluster) == []

    def test_resuming_a_replay_with_other_settings_is_rejected(
        self, run: LiveRun, cluster: Cluster
    ) -> None:
        with pytest.raises(ReplayError, match=r"other settings \(topics.partitions: 2 -> 3\)"):
            find_replay(cluster, run.job, replayed_job(run.job, partitions=3))

    def test_resuming_a_replay_of_another_deployment_is_rejected(
        self, run: LiveRun, cluster: Cluster
    ) -> None:
        other = run.job.model_copy(update={"deployment": bytes(16)})
        with pytest.raises(ReplayError, match="already deployed, but not as a replay of this"):
            find_replay(cluster, other, replayed_job(run.job))

    def test_resuming_a_finished_replay_is_rejected(self, run: LiveRun, cluster: Cluster) -> None:
        set_phase(cluster, find_deployed(cluster, "live-replay"), Phase.DRAINED, 7)
        with pytest.raises(ReplayError, match=r"is a finished replay of .* choose .* or end it"):
            find_replay(cluster, run.job, replayed_job(run.job))
