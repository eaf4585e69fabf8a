"""Test killed replays: repeating a partially written replay completes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.replays import ReplayError, deploy_replay, replayed_job
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.recording.replay.replay_plan import ReplayPlan, ReplayRange, plan_replay
from dpstream.pipeline.recording.replay.sources import ReplaySource
from dpstream.pipeline.recording.replay.writer import ReplayWriter
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.messages import split_messages
from dpstream.topics.names import Role
from tests.support.replays import REPLAY, LiveRun, Results, example_job, results_of
from tests.support.world import Accidents, CrashError, MortalDriver

pytestmark = pytest.mark.slow

EPOCHS = 7
FROM = 5
HORIZON = {"count": 8}


@pytest.fixture(scope="module", params=["future_rand", "count_min"])
def run(request: pytest.FixtureRequest) -> LiveRun:
    job = example_job(request.param, PROTOCOLS[request.param].examples[-1], epochs=HORIZON)
    return LiveRun.of(job, epochs=EPOCHS, small={2, 6}, absent={3})


@pytest.fixture(autouse=True)
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dpstream.pipeline.recording.replay.writer.split_messages",
        partial(split_messages, payload_bytes=8),
    )
    monkeypatch.setattr("dpstream.topics.partials._PART_BYTES", 20)


class Replay:
    def __init__(
        self, source: ReplaySource, replay_range: ReplayRange, accidents: Accidents
    ) -> None:
        self.job: DeployedJob = deploy_replay(
            source.job, replayed_job(source.job), deployment=REPLAY, deployed_at=2_000
        )
        self.source = source
        self.plan: ReplayPlan = plan_replay(source, replay_range)
        self.accidents = accidents
        self.log = MemoryLog()
        self._numbers = count(1)
        self._workers: dict[str, MemoryWorker] = {}

    def write(self, at_once: int) -> None:
        def work() -> None:
            writer, driver = self.writer(), MortalDriver(self.log, self.accidents)
            driver.run(writer.begin())
            items = list(self.plan.items(self.source))
            for start in range(0, len(items), at_once):
                driver.run(writer.write(items[start : start + at_once]))
                self._settle()

        self._surviving(work)
        self._settle()

    def writer(self) -> ReplayWriter:
        return ReplayWriter(
            self.job,
            self.source,
            self.plan,
            identifiers=lambda: next(self._numbers).to_bytes(16, "big"),
        )

    def _settle(self) -> None:
        for name in ("aggregate", "publish"):
            self._surviving(lambda name=name: self._drain(name), name)  # type: ignore[misc]

    def _drain(self, name: str) -> None:
        if name not in self._workers:
            stage = build_stage(self.job, name, Environment())
            worker = MemoryWorker(stage, self.log, MortalDriver(self.log, self.accidents))
            for partition in range(len(self.job.start_offsets[worker.stage.role])):
                worker.run(worker.assign(partition))
            self._workers[name] = worker
        worker = self._workers[name]
        worker.run(worker.drain())

    def _surviving(self, work: Callable[[], None], name: str | None = None) -> None:
        while True:
            try:
                return work()
            except CrashError:
                if name is not None:
                    self._workers.pop(name, None)

    @property
    def results(self) -> Results:
        return results_of(self.job, self.log)


RANGES = {
    "all": ReplayRange(),
    "a part": ReplayRange(FROM, to_epoch=EPOCHS - 1),
    "partials": ReplayRange(from_partials=True),
}


@pytest.mark.parametrize("replay_range", RANGES.values(), ids=RANGES)
@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost"),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.verify),
    ],
)
@pytest.mark.parametrize("at_once", [1, EPOCHS])
def test_stages_recover_when_killed_after_any_action(
    run: LiveRun, replay_range: ReplayRange, keep: bool, at_once: int, stride: int
) -> None:
    undisturbed = Replay(run.source, replay_range, Accidents())
    undisturbed.write(at_once)
    plan = undisturbed.plan
    assert undisturbed.results == run.results.part(plan.first, plan.last)
    assert undisturbed.accidents.count > 20
    for strike in range(1, undisturbed.accidents.count + 1, stride):
        disturbed = Replay(run.source, replay_range, Accidents(frozenset([strike]), keep))
        disturbed.write(at_once)
        assert disturbed.results == undisturbed.results, f"killed after action {strike}"
        check_nothing_is_left(disturbed, strike)


def check_nothing_is_left(replay: Replay, strike: int) -> None:
    log = replay.log
    assert not log.values(Role.DEAD_LETTERS), f"killed after action {strike}"
    assert len(log.values(Role.ESTIMATES)) == replay.plan.epochs, f"killed after action {strike}"
    for partition in range(replay.job.topics.partitions):
        end = log.end(Role.SHUFFLED, partition)
        assert log.committed.get((Role.SHUFFLED, partition), 0) == end, (
            "leftovers block the commit offset"
        )


@pytest.mark.parametrize("aggregated", [False, True])
def test_resumed_replay_does_not_rewrite_existing_records(run: LiveRun, aggregated: bool) -> None:
    replay = Replay(run.source, ReplayRange(FROM), Accidents())
    if aggregated:
        replay.write(2)
    else:
        MortalDriver(replay.log, replay.accidents).run(writing(replay))
    ends = list(all_ends(replay))
    MortalDriver(replay.log, replay.accidents).run(writing(replay))
    assert list(all_ends(replay)) == ends


def all_ends(replay: Replay) -> Iterator[int]:
    for role in (Role.MANIFESTS, Role.SHUFFLED, Role.PARTIALS, Role.ESTIMATES):
        for partition in range(len(replay.job.start_offsets[role])):
            yield replay.log.end(role, partition)


@pytest.mark.parametrize("ahead", [1, 5, 13, 34])
def test_concurrent_runs_of_a_replay_reproduce_the_same_results(run: LiveRun, ahead: int) -> None:
    replay = Replay(run.source, ReplayRange(), Accidents())
    drivers = [MortalDriver(replay.log, replay.accidents) for _ in range(2)]
    runs = [writing(replay), writing(replay)]
    replies: list[object] = [None, None]
    running = {0, 1}
    for turn in (*[0] * ahead, *[0, 1] * 1000):
        if turn in running:
            try:
                replies[turn] = drivers[turn].carry_out(runs[turn].send(replies[turn]))
            except StopIteration:
                running.remove(turn)
    assert not running
    replay.write(EPOCHS)
    assert replay.results == run.results


def writing(replay: Replay) -> Steps[None]:
    writer = replay.writer()
    yield from writer.begin()
    for item in replay.plan.items(replay.source):
        yield from writer.write([item])


def test_replay_does_not_resume_from_another_epoch(run: LiveRun) -> None:
    replay = Replay(run.source, ReplayRange(), Accidents())
    replay.write(1)
    replay.plan = plan_replay(replay.source, ReplayRange(FROM))
    if replay.plan.first == 1:
        replay.write(1)
        assert replay.results == run.results
        return
    with pytest.raises(ReplayError, match="starts with epoch 1; this one would start with 5"):
        replay.write(1)
