"""Test that a worker's summary of a long history agrees with the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.cli.status_lines import status_lines
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.status.collection import JobWatch
from dpstream.pipeline.operations.status.facts import JobStatus
from dpstream.pipeline.stages.manifest_summaries import ManifestSummary, SummarizedDecisions
from dpstream.topics.manifests import (
    MANIFEST_STATUSES,
    Manifest,
    WindowStatus,
    decode_manifest,
    encode_manifest,
)
from dpstream.topics.names import Role
from tests.support.histories import NOW, fill, history_job
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_jobs import new_job

EPOCHS, AHEAD = 160, 6


@pytest.fixture(autouse=True)
def little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the maximum lead of windows, so that a short history acts like a long one."""
    monkeypatch.setattr("dpstream.pipeline.stages.decision_log.EPOCHS_AHEAD", AHEAD)
    monkeypatch.setattr("dpstream.pipeline.stages.manifest_summaries.EPOCHS_AHEAD", AHEAD)


@pytest.fixture(scope="module")
def job() -> DeployedJob:
    return history_job(EPOCHS, 16)


def decided(job: DeployedJob, seed: int) -> Iterator[LogRecord]:
    written: list[Append] = []
    fill(job, 1, written.append)
    base = decode_manifest(next(e.value for e in written if e.role is Role.MANIFESTS))
    rng = np.random.default_rng(seed)
    undecided, offset = list(range(1, EPOCHS + 1)), 0
    while undecided:
        near = [epoch for epoch in undecided if epoch <= undecided[0] + AHEAD]
        epoch = int(rng.choice(near))
        undecided.remove(epoch)
        kinds = [_released(base, epoch), _too_small(base, epoch)]
        first = kinds[int(rng.random() < 0.2)]
        repeated = [kinds[0]] if rng.random() < 0.1 else []
        foreign = [replace(first, deployment=b"f" * 16)] if rng.random() < 0.1 else []
        for manifest in (first, *repeated, *foreign):
            yield LogRecord(offset, encode_manifest(manifest))
            offset += 1


def _released(base: Manifest, epoch: int) -> Manifest:
    return replace(base, epoch=epoch)


def _too_small(base: Manifest, epoch: int) -> Manifest:
    return replace(
        base,
        epoch=epoch,
        window_status=WindowStatus.SUPPRESSED,
        contributors=1,
        producers=(True, False, False),
        populations=base.populations[:1],
    )


def summary_at(job: DeployedJob, records: list[LogRecord], offset: int) -> ManifestSummary:
    known = SummarizedDecisions(job)
    known.apply_all(records[:offset])
    return ManifestSummary.after(offset, records[offset - 1].value, known.windows)


def test_summary_and_later_records_yield_the_same_state_as_the_full_log(job: DeployedJob) -> None:
    believed = 0
    for seed in range(3):
        records = list(decided(job, seed))
        whole = SummarizedDecisions(job)
        whole.apply_all(records)
        for offset in range(1, len(records) + 1, 7):
            summary, found = summary_at(job, records, offset), SummarizedDecisions(job)
            begin, uncounted = offset - found.enough, SummarizedDecisions(job)
            if begin <= 0 or not found.begin(records[begin:offset], (), summary):
                assert found.windows.total() == 0
                continue
            believed += 1
            assert uncounted.begin(records[begin:offset], (), None)
            assert found.counted
            assert not uncounted.counted
            uncounted.apply_all(records[offset:])
            assert _known(uncounted) == _known(whole)
            found.apply_all(records[offset:])
            assert +found.windows == +whole.windows
            assert _known(found) == _known(whole)
    assert believed > 30


def _known(decisions: SummarizedDecisions) -> list[object]:
    log, following = decisions.log, decisions.log.decided.highest + 1
    outcomes = [log.recent(following - each) for each in range(1, AHEAD + 1)]
    missed = [log.missed(index, 1, following) for index in range(3)]
    return [
        following,
        [each and (each.window_status, each.cut_offset) for each in outcomes],
        missed,
    ]


def test_summary_is_rejected_when_an_epoch_might_be_open(job: DeployedJob) -> None:
    in_order = sorted(decided(job, 1), key=lambda record: decode_manifest(record.value).epoch)
    ours = {decode_manifest(e.value).epoch: e.value for e in in_order if b"f" * 16 not in e.value}
    # Epoch 95 is not finalized, while another epoch is repeated.
    values = [ours[epoch] for epoch in range(1, 95)] + 5 * AHEAD * [ours[96]]
    records = [LogRecord(offset, value) for offset, value in enumerate(values)]
    summary, found = summary_at(job, records, len(records)), SummarizedDecisions(job)
    near = records[-found.enough :]
    for known in (summary, None):
        assert not found.begin(near, (), known)
    found.apply_all([*records, LogRecord(len(records), ours[95])])
    assert found.windows.total() == 96


@pytest.mark.parametrize("kind", ["stale", "other log", "torn", "too far", "nothing near it"])
def test_summary_of_another_log_is_rejected(job: DeployedJob, kind: str) -> None:
    records = list(decided(job, 1))
    summary, found = summary_at(job, records, 100), SummarizedDecisions(job)
    near = records[100 - found.enough : 100]
    match kind:
        case "stale":  # The summary is of the log before its end was rewritten.
            near[-1] = LogRecord(99, records[100].value)
        case "other log":
            other = list(decided(job, 2))
            near = other[100 - found.enough : 100]
        case "torn":
            summary = replace(summary, checksum=summary.checksum ^ 1)
        case "too far":
            near = near[:-1]
        case "nothing near it":
            near = []
    assert not found.begin(near, (), summary)
    assert found.windows.total() == 0
    found.apply_all(records)
    assert found.windows.total() == EPOCHS


class CountingCluster(MemoryCluster):
    manifests = 0

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        for record in super().read(topic, partition, start, stop):
            self.manifests += topic.endswith(".manifests")
            yield record


def _cluster(job: DeployedJob, records: list[LogRecord]) -> CountingCluster:
    cluster = CountingCluster(clock=lambda: NOW)
    cluster.create_topics(job.topic_settings().values())
    for record in records:
        cluster.append(job.topic(Role.MANIFESTS), record.value)
    return cluster


def _tell(
    cluster: MemoryCluster, job: DeployedJob, summary: ManifestSummary, *, stopped: bool = False
) -> None:
    beat = {
        "deployment": job.deployment.hex(),
        "stage": "shuffle",
        "worker": "w",
        "partitions": [0],
        "records_per_second": 0.0,
        "windows": [],
        "counts": {},
        "finalized": summary.to_json(),
        **({"stopped": True} if stopped else {}),
    }
    cluster.append(job.topic(Role.STATUS), json.dumps(beat).encode(), b"shuffle/w")


def _seen(status: JobStatus) -> list[object]:
    return [status.missing_producers, status.suppressed, status.stages[0].epoch]


@pytest.mark.parametrize("stopped", [False, True])
def test_status_reads_only_the_latest_manifests(job: DeployedJob, stopped: bool) -> None:
    records = list(decided(job, 3))
    whole = SummarizedDecisions(job)
    whole.apply_all(records)
    cluster = _cluster(job, records)
    watch = JobWatch(cast(Cluster, cluster), job)
    untold = watch.status(NOW)
    assert cluster.manifests == 4 * AHEAD
    assert untold.windows == {}
    assert any("not counted" in str(line) for line in status_lines(untold, NOW))
    _tell(cluster, job, summary_at(job, records, 120), stopped=stopped)
    status = watch.status(NOW)
    end = len(records) - 120 + 4 * AHEAD
    assert cluster.manifests == 4 * AHEAD + end
    assert status.windows == {
        window_status.value: whole.windows[window_status.value]
        for window_status in MANIFEST_STATUSES
    }
    assert _seen(untold) == _seen(status)
    assert status.stages[0].epoch == EPOCHS
    assert watch.status(NOW).windows == status.windows
    assert cluster.manifests == 4 * AHEAD + end
    assert JobWatch(cast(Cluster, cluster), job).status(NOW).windows == status.windows
    assert cluster.manifests == 4 * AHEAD + 2 * end


def test_status_states_that_a_rolling_guarantee_holds_forever(job: DeployedJob) -> None:
    sampled = new_job("sampled", "sampled_response", {"epsilon": 1}, count=52, renew=True)
    for each, stated in ((deploy_job(sampled, deployed_at=0), True), (job, False)):
        cluster = cast(Cluster, _cluster(each, []))
        lines = [str(line) for line in status_lines(JobWatch(cluster, each).status(NOW), NOW)]
        line = "guarantee: epsilon 1 for any 52 consecutive epochs, forever"
        assert (line in lines) == stated
