"""Schedules of faults: functions of their seed, that strike everybody they may."""

from __future__ import annotations

from collections import Counter

from tests.support.faults import JUMPS, Kind, Schedule, draw_schedule

COUNTS = {Kind.KILL: 6, Kind.CLOCK: len(JUMPS), Kind.FULL_DISK: 2}
TARGETS = {Kind.KILL: ["a", "b", "c"], Kind.CLOCK: ["a", "b"], Kind.FULL_DISK: ["c"]}


def drawn(seed: int) -> Schedule:
    return draw_schedule(seed, COUNTS, TARGETS)


def test_a_seed_repeats_its_schedule_and_another_has_another() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1).faults != drawn(2).faults


def test_everybody_is_struck_equally_often_and_every_jump_is_made() -> None:
    faults = drawn(3).faults
    assert Counter(fault.kind for fault in faults) == COUNTS
    assert Counter(f.target for f in faults if f.kind is Kind.KILL) == dict.fromkeys("abc", 2)
    assert {fault.amount for fault in faults if fault.kind is Kind.CLOCK} == set(JUMPS)


def test_whoever_fails_is_told_the_seed_the_faults_and_which_was_at_work() -> None:
    schedule = drawn(4)
    lines = schedule.describe(done=2).splitlines()
    assert "DPSTREAM_CHAOS_SEED=4" in lines[0]
    assert [line.startswith("->") for line in lines[1:]].index(True) == 2
    assert len(lines) == 1 + len(schedule.faults)
