"""What goes wrong, and in which order: a schedule that is a function of its seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.support.clocks import HOUR, YEAR


class Kind(StrEnum):
    """What can be done to a fleet and its brokers."""

    KILL = "kill"
    """SIGKILL to a process, which is started again."""
    PAUSE = "pause"
    """SIGSTOP to a process, for longer than its group waits for it, and SIGCONT."""
    CLOCK = "clock"
    """The clock of a process jumps, and later back."""
    DOUBLE_WORKER = "double worker"
    """A second worker with a copy of a worker's folder, name and identity."""
    DOUBLE_PRODUCER = "double producer"
    """A second producer with a copy of a producer's folder."""
    IMPOSTOR = "impostor"
    """A second producer of the same name, with an empty folder."""
    FULL_DISK = "full disk"
    """No room is left where a producer keeps its state."""
    AHEAD = "ahead"
    """A producer closes an epoch far ahead of all others."""
    KILL_BROKER = "kill broker"
    """SIGKILL to a broker, which is started again at once."""
    PAUSE_BROKER = "pause broker"
    """SIGSTOP to a broker, and SIGCONT."""
    BROKER_CLOCK = "broker clock"
    """The clock of a broker jumps, and later back."""
    CUT = "cut"
    """What one end sends to the other is dropped; the other direction is open."""


# Half an hour is less than Kafka's tolerance of an hour, two hours are more.
JUMPS = (-53 * YEAR, -20 * YEAR, -HOUR, HOUR / 2, HOUR, 2 * HOUR)
# Room that is left, in bytes: not enough for an epoch, from nothing on.
_ROOM = (0, 4_096, 16_384, 32_768)
_HOLDS = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: what.
        target: to whom; of a cut, "SOURCE>TARGET".
        amount: seconds of a jump, bytes of room, or epochs ahead.
        hold: epochs for which it lasts, if there are any meanwhile.
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
    """Faults in order, and the seed they are a function of."""

    seed: int
    faults: tuple[Fault, ...]

    def describe(self, done: int) -> str:
        """The whole of it, with a mark at the fault that was at work.

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
    """So many faults of each kind, shuffled; the targets of a kind take turns, in random order.

    Args:
        seed: of everything.
        counts: how many there are of each kind.
        targets: who may be struck by each kind.
    """
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
