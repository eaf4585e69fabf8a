"""Fault schedules, determined by a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.support.clocks import HOUR, YEAR


class Kind(StrEnum):
    KILL = "kill"
    """SIGKILL to a process, followed by a restart."""
    PAUSE = "pause"
    """SIGSTOP to a process until its consumer group evicts it, then SIGCONT."""
    CLOCK = "clock"
    """A jump of a process's clock that is undone later."""
    DOUBLE_WORKER = "double worker"
    """A second worker with a copy of a worker's folder, name and identity."""
    DOUBLE_PRODUCER = "double producer"
    """A second producer with a copy of a producer's folder."""
    IMPOSTOR = "impostor"
    """A second producer with the same name and an empty folder."""
    FULL_DISK = "full disk"
    AHEAD = "ahead"
    """A producer closes an epoch far ahead of all others."""
    KILL_BROKER = "kill broker"
    """SIGKILL to a broker, followed by an immediate restart."""
    PAUSE_BROKER = "pause broker"
    """SIGSTOP to a broker, then SIGCONT."""
    BROKER_CLOCK = "broker clock"
    """A jump of a broker's clock that is undone later."""
    CUT = "cut"
    """Loss of all packets in one direction, while the other direction stays open."""


# Kafka tolerates one hour: half an hour is below this limit, two hours are above.
JUMPS = (-53 * YEAR, -20 * YEAR, -HOUR, HOUR / 2, HOUR, 2 * HOUR)
# Free space in bytes, from zero on, but too little for an epoch.
_ROOM = (0, 4_096, 16_384, 32_768)
_HOLDS = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule.

    Attributes:
        target: Process or broker; "SOURCE>TARGET" for a cut.
        amount: Seconds of a clock jump, bytes of disk space, or epochs ahead.
        hold: Duration in published epochs, unless the fault stops publication.
    """

    kind: Kind
    target: str
    amount: float = 0.0
    hold: int = 2

    def __str__(self) -> str:
        amount = f" by {self.amount:,.0f}" if self.amount else ""
        return f"{self.kind} {self.target}{amount} for {self.hold} epochs"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Ordered faults with the seed that determines them."""

    seed: int
    faults: tuple[Fault, ...]

    def describe(self, done: int) -> str:
        """Format all faults, with a mark at the current one.

        >>> print(Schedule(1, (Fault(Kind.KILL, "a"), Fault(Kind.PAUSE, "b"))).describe(1))
        faults of seed 1 (DPSTREAM_CHAOS_SEED=1 repeats them):
           1. kill a for 2 epochs
        -> 2. pause b for 2 epochs
        """
        lines = (
            f"{'->' if number == done else '  '} {number + 1}. {fault}"
            for number, fault in enumerate(self.faults)
        )
        head = f"faults of seed {self.seed} (DPSTREAM_CHAOS_SEED={self.seed} repeats them):"
        return "\n".join([head, *lines])


def draw_schedule(
    seed: int, counts: Mapping[Kind, int], targets: Mapping[Kind, Sequence[str]]
) -> Schedule:
    """Draw a shuffled schedule; targets for a kind of fault alternate in random order."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    for kind, count in counts.items():
        turns = list(targets[kind])
        chance.shuffle(turns)
        jumps = list(JUMPS)
        chance.shuffle(jumps)
        for number in range(count):
            amount = 0.0
            if kind in (Kind.CLOCK, Kind.BROKER_CLOCK):
                amount = jumps[number % len(jumps)]
            elif kind is Kind.FULL_DISK:
                amount = chance.choice(_ROOM)
            elif kind is Kind.AHEAD:
                amount = chance.choice((1_000, 2_000, 4_000))
            target = turns[number % len(turns)]
            faults.append(Fault(kind, target, amount, chance.choice(_HOLDS)))
    chance.shuffle(faults)
    return Schedule(seed, tuple(faults))
