"""Inject faults into a fleet and its brokers, one at a time, and check that work continues."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tests.support.faults import Fault, Kind, Schedule
from tests.support.fleet import LEAD, Fleet
from tests.support.small_disks import SmallDisk

# Maximum duration (seconds) of a fault that stops progress, such as a missing broker.
_SECONDS_HELD = 8.0

# Faults that must not stop any member.
_HARMLESS = frozenset({Kind.KILL, Kind.CLOCK, Kind.BROKER_CLOCK, Kind.IMPOSTOR, Kind.AHEAD})

_NO_ROOM = "disk is full"
# A producer that closes more epochs than this on a full disk has space.
_WITHOUT_ROOM = 20

Undo = Callable[[], None]


class Brokers(Protocol):
    def kill(self, name: str) -> None: ...

    def start(self, name: str) -> None:
        """Restart a broker on its data."""
        ...

    def signal(self, name: str, number: signal.Signals) -> None: ...

    def set_clock(self, name: str, seconds: float) -> None:
        """Set a broker's clock `seconds` ahead."""
        ...


class Network(Protocol):
    def cut(self, source: str, target: str) -> None: ...

    def heal(self, source: str, target: str) -> None: ...


@dataclass
class Chaos:
    """Injector of faults into a fleet.

    Attributes:
        disks: Disks by name of the producer.
        settled: Number of epochs published between two faults.
        done: Number of finished faults.
    """

    fleet: Fleet
    brokers: Brokers
    network: Network | None = None
    disks: Mapping[str, SmallDisk] = field(default_factory=dict)
    settled: int = 2
    done: int = 0

    def survive(self, schedule: Schedule) -> None:
        """Inject all faults of a schedule; failures state how to repeat them."""
        self.done = 0
        try:
            for fault in schedule.faults:
                print(f"{self.fleet.published:6} published; {fault}", flush=True)
                undo = self._strike(fault)
                if fault.kind in _HARMLESS:
                    self.fleet.wait_for_epochs(fault.hold)
                else:
                    self.fleet.wait_for_epochs(fault.hold + _takeover(fault), _SECONDS_HELD)
                undo()
                self.fleet.wait_for_epochs(self.settled)
                self.done += 1
        except BaseException as error:
            error.add_note(schedule.describe(self.done))
            raise

    def _strike(self, fault: Fault) -> Undo:
        """Start a fault and return the function that ends it."""
        fleet, name = self.fleet, fault.target
        match fault.kind:
            case Kind.KILL:
                fleet.signal(name, signal.SIGKILL)
                return _nothing
            case Kind.PAUSE:
                fleet.signal(name, signal.SIGSTOP)
                return lambda: fleet.signal(name, signal.SIGCONT)
            case Kind.CLOCK:
                fleet.members[name].clock.set(fault.amount)
                return lambda: fleet.members[name].clock.set(0.0)
            case Kind.DOUBLE_WORKER | Kind.DOUBLE_PRODUCER:
                return self._double(name)
            case Kind.IMPOSTOR:
                return self._impersonate(name)
            case Kind.FULL_DISK:
                return self._fill_disk(name, int(fault.amount))
            case Kind.AHEAD:
                return self._run_ahead(name, int(fault.amount))
            case Kind.KILL_BROKER:
                self.brokers.kill(name)
                self.brokers.start(name)
                return _nothing
            case Kind.PAUSE_BROKER:
                self.brokers.signal(name, signal.SIGSTOP)
                return lambda: self.brokers.signal(name, signal.SIGCONT)
            case Kind.BROKER_CLOCK:
                self.brokers.set_clock(name, fault.amount)
                return lambda: self.brokers.set_clock(name, 0.0)
            case Kind.CUT:
                return self._cut(*name.split(">"))

    def _double(self, name: str) -> Undo:
        fleet = self.fleet
        twin = fleet.double(name)
        member = fleet.members[twin]
        if member.is_producer:
            before = len(member.noted("closed"))
            fleet.wait_until(lambda: len(member.noted("closed")) > before, f"{twin} closes epochs")
        return lambda: fleet.remove(twin)

    def _impersonate(self, name: str) -> Undo:
        """Start a producer that reports open epochs under a name already in use."""
        fleet = self.fleet
        before = fleet.dead_letters()
        # Other producers should not be ahead of this epoch when it is published.
        begins = fleet.published + 3 * LEAD
        twin = fleet.double(name, seed=fleet.seed + 1, first_epoch=begins)
        fleet.wait_until(lambda: fleet.dead_letters() > before, f"{twin} is rejected")
        return lambda: fleet.remove(twin)

    def _fill_disk(self, name: str, room: int) -> Undo:
        fleet, disk, member = self.fleet, self.disks[name], self.fleet.members[name]
        before, closed = fleet.said(name, _NO_ROOM), len(member.noted("closed"))
        disk.fill(room)
        # Overwriting old records needs no disk space.
        fleet.wait_until(
            lambda: (
                fleet.said(name, _NO_ROOM) > before
                or len(member.noted("closed")) > closed + _WITHOUT_ROOM
            ),
            f"{name} has a full disk",
        )
        return disk.empty

    def _run_ahead(self, name: str, epochs: int) -> Undo:
        member = self.fleet.members[name]
        ahead = member.orders.ahead
        ahead.with_suffix(".new").write_text(str(member.closed + epochs))
        ahead.with_suffix(".new").rename(ahead)
        self.fleet.wait_until(lambda: not ahead.exists(), f"{name} tries to run ahead")
        return _nothing

    def _cut(self, source: str, target: str) -> Undo:
        network = self.network
        assert network is not None, "the scenario has no network that can be cut"
        network.cut(source, target)
        return lambda: network.heal(source, target)


def _takeover(fault: Fault) -> int:
    """Return the maximum number of epochs already in flight; more require a takeover."""
    return 8 if fault.kind is Kind.PAUSE else 0


def _nothing() -> None:
    """End a fault that ends by itself."""
