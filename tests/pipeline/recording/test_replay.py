"""Test replays: the same windows give the same integers and estimates from any source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.replays import deploy_replay, replayed_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.recording.record_verify import verify
from dpstream.pipeline.recording.replay.pace import Pace, Speed
from dpstream.pipeline.recording.replay.replay_plan import ReplayRange, plan_replay
from dpstream.pipeline.recording.replay.sources import ReplaySource
from dpstream.pipeline.recording.replay.writer import ReplayWriter
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.chunks import Chunk, decode_chunk, encode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.shares import share_table
from tests.support.new_jobs import hidden_sizes, new_job
from tests.support.replays import (
    DECIDED,
    KEYS,
    REPLAY,
    LiveRun,
    example_job,
    manifests_of,
    replayed,
)
from tests.support.sealing import SHUFFLE_KEYS, ring, sealed_section, shares_section

EPOCHS = 10
SMALL, ABSENT = {3, 6}, {5}
HORIZON = 4


def remembering(**changed: object) -> Job:
    """Return a job whose estimates depend on all epochs of a horizon."""
    values = {
        "name": "live",
        "protocol": "future_rand",
        "parameters": {"epsilon": 2, "max_changes": 2},
        "epochs": {"count": HORIZON, "renew": True},
        "shuffle": {"minimum": 10},
        "topics": {"partitions": 3},
    }
    return make_job({**values, **changed})


@pytest.fixture(scope="module")
def live() -> LiveRun:
    return LiveRun.of(remembering(), epochs=EPOCHS, small=SMALL, absent=ABSENT)


@pytest.fixture(scope="module")
def alone() -> LiveRun:
    job = example_job("count_min", PROTOCOLS["count_min"].examples[0])
    return LiveRun.of(job, epochs=EPOCHS, small=SMALL, absent=ABSENT)


@pytest.fixture(scope="module", params=["live", "alone"])
def run(request: pytest.FixtureRequest) -> LiveRun:
    live_run: LiveRun = request.getfixturevalue(request.param)
    return live_run


@pytest.fixture(scope="module")
def recorded(run: LiveRun, tmp_path_factory: pytest.TempPathFactory) -> ReplaySource:
    return run.record(tmp_path_factory.mktemp("recordings") / "whole")


def chunks_of(log: MemoryLog, partitions: int) -> Iterator[tuple[int, Chunk]]:
    for partition in range(partitions):
        for value in log.values(Role.SHUFFLED, partition):
            yield partition, decode_chunk(value)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_replays_from_topics_and_from_a_recording_agree(name: str, tmp_path: Path) -> None:
    for number, example in enumerate(PROTOCOLS[name].examples):
        run = LiveRun.of(example_job(name, example), epochs=5, small={2}, absent={4})
        assert [len(run.results.estimates), len(run.results.integers)] == [5, 3]
        recorded = run.record(tmp_path / str(number))
        for source, partitions in ((run.source, 3), (recorded, 1)):
            assert replayed(source, partitions=partitions)[2] == run.results


def test_replay_decrypts_sealed_windows(tmp_path: Path) -> None:
    """Ciphertexts belong to the original deployment, whatever the replay's name."""
    values = example_job("fragments", PROTOCOLS["fragments"].examples[0]).to_json()
    run = LiveRun.of(make_job({**values, "sealed": sealed_section(SHUFFLE_KEYS[:1])}))
    assert len(run.results.integers) == 6
    for source in (run.source, run.record(tmp_path / "recording")):
        deployed, _, results = replayed(source, partitions=3)
        assert deployed.deployment != run.job.deployment
        assert results == run.results


def test_replay_sums_shares_and_reproduces_corrupt_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = example_job("fragments", PROTOCOLS["fragments"].examples[0]).to_json()
    drawn = count(1)

    def share(*given: Any) -> Any:
        rows = share_table(*given)
        return rows ^ np.uint64(1) if next(drawn) == 3 else rows

    monkeypatch.setattr("dpstream.pipeline.devices.sealed_records.share_table", share)
    run = LiveRun.of(make_job({**values, "sealed": shares_section((1, 2))}))
    estimates = {e: EstimateRecord.from_bytes(v) for e, v in run.results.estimates.items()}
    assert [each.window_status is WindowStatus.CORRUPT for each in estimates.values()] == [
        epoch == 3 for epoch in range(1, 7)
    ]
    path = tmp_path / "recording"
    for source in (run.source, run.record(path)):
        _, _, results = replayed(source, partitions=3)
        assert results == run.results
    assert verify(path, deep=True, keys=lambda job: KEYS).problems == []
    with pytest.raises(WrongKeyError, match="for aggregate-b"):
        verify(path, deep=True, keys=lambda job: ring([1]))


@pytest.mark.parametrize("order", ["sorted", "random"])
def test_replay_of_a_job_with_crowds_deletes_no_further_messages(
    order: str, tmp_path: Path
) -> None:
    job = new_job(
        "live",
        "single_message",
        {"epsilon": 2, "delta": 0.05, "domain": ["a", "b"]},
        epochs={"count": 2, "renew": True},
        shuffle={"minimum": 10, "order": order},
        topics={"partitions": 2},
        **hidden_sizes(["1", "2"], 4, 0.1),
    )
    run = LiveRun.of(job, epochs=5, small={2}, absent={4})
    assert [len(run.results.estimates), len(run.results.integers)] == [5, 3]
    left = {chunk.epoch: chunk.words.messages for _, chunk in chunks_of(run.log, 2)}
    assert all(0 < messages < 100 for messages in left.values())
    for source in (run.source, run.record(tmp_path / "recorded")):
        _, log, results = replayed(source, partitions=3)
        assert results == run.results
        assert {chunk.epoch: chunk.words.messages for _, chunk in chunks_of(log, 3)} == left


@pytest.mark.parametrize("order", ["sorted", "random"])
def test_replay_writes_windows_in_canonical_order(order: str) -> None:
    run = LiveRun.of(
        remembering(shuffle={"minimum": 10, "order": order}), epochs=EPOCHS, small=SMALL
    )
    _, log, results = replayed(run.source, partitions=2)
    assert results == run.results
    originals = {chunk.epoch: chunk for _, chunk in chunks_of(run.log, 3)}
    copies = {chunk.epoch: (place, chunk) for place, chunk in chunks_of(log, 2)}
    assert copies.keys() == originals.keys() == set(range(1, EPOCHS + 1)) - SMALL
    for epoch, (place, copy) in copies.items():
        original = originals[epoch]
        assert place == epoch % 2
        assert (copy.deployment, copy.fingerprint) == (REPLAY, run.job.fingerprint)
        assert copy.attempt != original.attempt
        assert copy.words.messages == original.words.messages
        written_out = original.words.values
        if original.words.counts is not None:
            written_out = np.repeat(written_out, original.words.counts, axis=0)
        canonical = Messages.canonical(written_out)
        np.testing.assert_array_equal(copy.words.values, canonical.values)
    sent = [original.words.values[:, 0].astype(int) for original in originals.values()]
    ordered = [bool((np.diff(words) >= 0).all()) for words in sent]
    assert all(ordered) == (order == "sorted")


def test_replay_preserves_window_statuses(run: LiveRun) -> None:
    job, log, _ = replayed(run.source)
    originals, copies = list(manifests_of(run.job, run.log)), list(manifests_of(job, log))
    assert {
        each.epoch for each in originals if each.window_status is not WindowStatus.RELEASED
    } == SMALL | ABSENT
    assert len(copies) == EPOCHS
    for original, copy in zip(originals, copies, strict=True):
        assert (copy.deployment, copy.first_epoch) == (REPLAY, 1)
        for name in (
            "epoch",
            "window_status",
            "contributors",
            "population",
            "timestamp",
            "producers",
        ):
            assert getattr(copy, name) == getattr(original, name)
    assert {chunk.epoch for _, chunk in chunks_of(log, job.topics.partitions)} == (
        set(range(1, EPOCHS + 1)) - SMALL - ABSENT
    )


def test_replay_skips_epochs_that_are_not_finalized(run: LiveRun) -> None:
    """The same applies to a window that is finalized, but neither written nor counted yet."""
    for keep in (EPOCHS - 1, EPOCHS - 2):
        log = copy_of(run.log)
        log.truncate(Role.MANIFESTS, 0, keep)
        assert replayed(LiveRun(run.job, log).source)[2] == run.results.part(1, keep)
    log = copy_of(run.log)
    partition = run.job.topics.partition_of(EPOCHS)
    log.truncate(Role.SHUFFLED, partition, log.end(Role.SHUFFLED, partition) - 1)
    log.truncate(Role.PARTIALS, 0, log.end(Role.PARTIALS, 0) - 1)
    assert replayed(LiveRun(run.job, log).source)[2] == run.results.part(1, EPOCHS - 1)


def again(value: bytes, total: int) -> bytes:
    chunk = decode_chunk(value)
    assert chunk.total == 1
    return encode_chunk(replace(chunk, attempt=bytes([total] * 16), total=total))


class CutLog(MemoryLog):
    def truncate(self, role: Role, partition: int, end: int) -> None:
        stored = self._partitions[role, partition]
        while stored.end > end:
            stored.records.pop()


def copy_of(log: MemoryLog) -> CutLog:
    copied = CutLog()
    for place, stored in log._partitions.items():
        copied._partitions[place] = type(stored)(stored.base, stored.records.copy())
    return copied


@settings(max_examples=25, deadline=None)
@given(data=st.data(), from_partials=st.booleans(), from_recording=st.booleans())
def test_replay_covers_any_range_of_epochs(
    run: LiveRun,
    recorded: ReplaySource,
    data: st.DataObject,
    from_partials: bool,
    from_recording: bool,
) -> None:
    start = data.draw(st.integers(1, EPOCHS))
    last = data.draw(st.integers(start, EPOCHS))
    by_time = data.draw(st.booleans())
    replay_range = ReplayRange(
        None if by_time else start,
        DECIDED + 1000 * (start - 1) + 1 if by_time else None,
        data.draw(st.sampled_from([last, None])) if last == EPOCHS else last,
        from_partials,
    )
    source = recorded if from_recording else run.source
    job, log, results = replayed(source, replay_range, partitions=data.draw(st.integers(1, 4)))
    alone = run.job.protocol_entry.per_epoch
    first = start if alone else (start - 1) // run.job.epochs.count * run.job.epochs.count + 1
    assert results == run.results.part(first, last)
    again = {chunk.epoch for _, chunk in chunks_of(log, job.topics.partitions)}
    released = set(run.results.integers)
    assert again == (set() if from_partials else released & set(range(start, last + 1)))


def test_replayed_chunks_are_timestamped_with_the_current_time(run: LiveRun) -> None:
    """The broker assigns the time, as for all records: retention would delete old ones at once."""
    source = run.source
    job = deploy_replay(source.job, replayed_job(source.job), deployment=REPLAY, deployed_at=2_000)
    plan = plan_replay(source, ReplayRange())
    log = MemoryLog(clock=lambda: 1_900_000_000_000)
    writer = ReplayWriter(job, source, plan, identifiers=lambda: bytes(16))
    MemoryDriver(log).run(writer.write(list(plan.items(source))))
    dates = {
        record.timestamp
        for partition in range(job.topics.partitions)
        for record in log.read(Role.SHUFFLED, partition, 0, 1_000).records
    }
    assert dates == {1_900_000_000_000}


def test_replay_speed_is_parsed_and_paces_epochs() -> None:
    assert Speed.parse("max") == Speed()
    pace = Pace(Speed.parse("0.5"), started=10.0)
    assert [pace.due(7_000) for _ in range(3)] == [10.0, 12.0, 14.0]
    for text in ("", "x", "0", "-1", "x0", "inf", "nan", "fast", "2x"):
        with pytest.raises(ValueError, match="expected epochs per second"):
            Speed.parse(text)
