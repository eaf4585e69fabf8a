"""Count every report once under kills, pauses, duplicates, full disks and clock faults.

Producers and workers are real processes with their own clocks, and their devices' randomness is a
function of a seed. All publications are then recomputed for exactly the producers listed in the
first manifests. `tests.kafka.test_long_chaos` has more faults and runs longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support import cells
from tests.support.chaos_scenario import CELLS, ChaosScenario, OneBroker, wait_for_retention
from tests.support.clocks import YEAR, compile_preload
from tests.support.faults import Kind
from tests.support.fleet import LEAD

WORKERS = {"shuffle": 1, "aggregate": 1, "publish": 1}


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_preload(tmp_path_factory.mktemp("preload"))


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory: pytest.TempPathFactory, preload: Path) -> Iterator[OneBroker]:
    """Broker shared by all tests of this file."""
    with OneBroker(tmp_path_factory.mktemp("broker"), preload) as broker:
        yield broker


@pytest.mark.verify
def test_reports_count_once_although_clocks_are_wrong_and_jump(
    one_broker: OneBroker, preload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    with ChaosScenario(
        one_broker, preload, tmp_path, cells.NAME, shuffle={"producers": 2}
    ) as scenario:
        scenario.add_producers(north=CELLS - 18_000, south=18_000)
        scenario.add_workers(**WORKERS)
        outlast_retention(scenario, one_broker)
        # The clock of every process is changed once, and some clocks twice.
        scenario.survive({Kind.CLOCK: 6, Kind.BROKER_CLOCK: 1})
        account = scenario.account()
    assert account.late == account.rejected == 0
    assert account.counted == account.epochs * CELLS


def outlast_retention(scenario: ChaosScenario, broker: OneBroker) -> None:
    """Set clocks back by decades; start each stage after its input would have expired."""
    fleet = scenario.fleet
    for member in fleet.members.values():
        member.clock.set(-30 * YEAR)
        member.held = not member.is_producer
    fleet.wait_until(
        lambda: all(each.closed >= LEAD for each in fleet.producers.values()),
        "producers are ahead by the maximum",
    )
    wait_for_retention(broker.servers)
    fleet.members["shuffle-1"].held = False
    for role in (Role.MANIFESTS, Role.SHUFFLED):
        topic = scenario.job.topic(role)
        fleet.wait_until(
            lambda topic=topic: sum(scenario.cluster.end_offsets(topic)) >= LEAD,  # type: ignore[misc]
            f"all windows are in {topic}",
        )
    wait_for_retention(broker.servers)
    for member in fleet.members.values():
        member.held = False
    fleet.wait_for_epochs(LEAD)
    for member in fleet.members.values():
        member.clock.set(0.0)


def test_reports_count_once_when_processes_fail(
    one_broker: OneBroker, preload: Path, tmp_path: Path
) -> None:
    with ChaosScenario(
        one_broker, preload, tmp_path, "future_rand", shuffle={"producers": 2}
    ) as scenario:
        scenario.add_producers(north=300, south=200)
        scenario.add_workers(shuffle=2, aggregate=1, publish=1)
        scenario.survive(
            {
                Kind.KILL: 2,
                Kind.PAUSE: 1,
                Kind.DOUBLE_WORKER: 1,
                Kind.IMPOSTOR: 1,
                Kind.FULL_DISK: 1,
            }
        )
        account = scenario.account()
    assert account.rejected > 0, "the impostor's records are rejected"


@pytest.mark.verify
def test_punctual_producers_lose_no_reports_because_of_early_or_late_producers(
    one_broker: OneBroker, preload: Path, tmp_path: Path
) -> None:
    # More epochs have ended than are ever closed; epochs sent ahead of time have not started.
    begins = datetime.now(UTC) - timedelta(minutes=600)
    calendar = {"start": begins.isoformat(timespec="seconds"), "length": "PT1M"}
    with ChaosScenario(
        one_broker,
        preload,
        tmp_path,
        "shuffled_counts",
        epochs=calendar,
        shuffle={"producers": 2},
    ) as scenario:
        scenario.add_producers(north=150, south=150)
        scenario.add_workers(**WORKERS)
        scenario.fleet.wait_for_epochs(LEAD)
        # It starts with epoch 1, which the other producers have closed, and catches up.
        scenario.add_producers(west=100)
        west = scenario.fleet.members["west"]
        west.punctual, west.orders = False, replace(west.orders, pace=0.0)
        scenario.fleet.wait_until(
            lambda: west.closed > scenario.fleet.published, "west has caught up"
        )
        scenario.survive({Kind.AHEAD: 1})
        account = scenario.account()
    assert account.late > 0
    assert set(account.windows_by_status) == {WindowStatus.RELEASED}


@pytest.mark.verify
def test_windows_ignore_a_minority_of_early_and_copied_producers(
    one_broker: OneBroker, preload: Path, tmp_path: Path
) -> None:
    with ChaosScenario(
        one_broker,
        preload,
        tmp_path,
        "future_rand",
        shuffle={"producers": 3, "grace": "10s"},
    ) as scenario:
        scenario.add_producers(north=150, south=150, east=100, west=100)
        scenario.add_workers(**WORKERS)
        # On a slow machine, any producer can be late.
        for member in scenario.fleet.producers.values():
            member.punctual = False
        scenario.survive(
            {Kind.DOUBLE_PRODUCER: 1, Kind.AHEAD: 1},
            only={Kind.DOUBLE_PRODUCER: ["west"], Kind.AHEAD: ["east"]},
        )
        account = scenario.account()
    assert set(account.windows_by_status) == {WindowStatus.RELEASED}
