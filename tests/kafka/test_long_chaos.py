"""Count every report once under all kinds of faults for at least a quarter of an hour.

In addition to `tests.kafka.test_chaos`, there are more faults of each kind, brokers are killed and
suspended, and links between three brokers are cut in one direction at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dpstream.pipeline.protocols.registry import PROTOCOLS
from tests.support import cells
from tests.support.chaos_scenario import CELLS, ChaosScenario, OneBroker
from tests.support.clocks import Clock, compile_preload
from tests.support.faults import Kind
from tests.support.namespaces import Namespaces, rejection
from tests.support.three_brokers import NODES, BrokersInNamespaces, broker_name

pytestmark = pytest.mark.verify

PRODUCERS = {
    cells.NAME: {"north": CELLS - 18_400, "south": 18_000},
    "future_rand": {"north": 300, "south": 200},
    "shuffled_counts": {"north": 150, "south": 150},
}
WORKERS = {"shuffle": 2, "aggregate": 2, "publish": 2}
FAULTS = {
    Kind.KILL: 12,
    Kind.PAUSE: 6,
    Kind.CLOCK: 12,
    Kind.DOUBLE_WORKER: 3,
    Kind.IMPOSTOR: 2,
    Kind.FULL_DISK: 4,
    Kind.KILL_BROKER: 3,
    Kind.PAUSE_BROKER: 3,
    Kind.BROKER_CLOCK: 6,
}
IN_A_NETWORK = {
    Kind.CUT: 30,
    Kind.KILL: 4,
    Kind.PAUSE: 2,
    Kind.CLOCK: 4,
    Kind.KILL_BROKER: 3,
    Kind.PAUSE_BROKER: 3,
    Kind.BROKER_CLOCK: 3,
}


@pytest.fixture(autouse=True)
def _cells_are_a_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_preload(tmp_path_factory.mktemp("preload"))


@pytest.fixture
def one_broker(tmp_path: Path, preload: Path) -> Iterator[OneBroker]:
    """Broker of a single test, so that clock faults do not affect later tests."""
    with OneBroker(tmp_path, preload) as broker:
        yield broker


@pytest.mark.parametrize("protocol", list(PRODUCERS))
def test_reports_count_once_under_random_faults(
    protocol: str, one_broker: OneBroker, preload: Path, tmp_path: Path
) -> None:
    with ChaosScenario(
        one_broker, preload, tmp_path, protocol, shuffle={"producers": 2}
    ) as scenario:
        scenario.add_producers(**PRODUCERS[protocol])
        scenario.add_workers(**WORKERS)
        scenario.survive(FAULTS)
        account = scenario.account()
    assert account.counted > 0


@pytest.mark.parametrize("protocol", list(PRODUCERS))
def test_reports_from_copied_early_and_late_producers_count_once(
    protocol: str, one_broker: OneBroker, preload: Path, tmp_path: Path
) -> None:
    shuffle = {"producers": 3, "grace": "5s"}
    with ChaosScenario(one_broker, preload, tmp_path, protocol, shuffle=shuffle) as scenario:
        scenario.add_producers(**PRODUCERS[protocol], east=200, west=200)
        scenario.add_workers(shuffle=2, aggregate=1, publish=1)
        for member in scenario.fleet.producers.values():
            member.punctual = False
        scenario.survive(
            {Kind.DOUBLE_PRODUCER: 6, Kind.AHEAD: 1, Kind.KILL: 4, Kind.PAUSE: 6},
            only={Kind.DOUBLE_PRODUCER: ["west", "north"], Kind.AHEAD: ["east"]},
        )
        account = scenario.account()
    assert account.counted > 0


@pytest.mark.parametrize("protocol", [cells.NAME, "future_rand"])
def test_reports_count_once_when_links_fail_in_one_direction(
    protocol: str, preload: Path, tmp_path: Path
) -> None:
    reason = rejection()
    if reason is not None:
        pytest.skip(f"no network that can be cut: {reason}")
    brokers = [broker_name(node) for node in NODES]
    members = [*PRODUCERS[protocol], *(f"{s}-{n}" for s, count in WORKERS.items() for n in (1, 2))]
    groups = {"brokers": brokers, "fleet": members}
    clocks = {name: Clock(preload, tmp_path / f"{name}.clock") for name in brokers}
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces([*brokers, *members], groups))
        three = stack.enter_context(BrokersInNamespaces(tmp_path / "kafka", network, clocks))
        scenario = stack.enter_context(
            ChaosScenario(
                three,
                preload,
                tmp_path,
                protocol,
                network=network,
                shuffle={"producers": 2},
                topics={"replication": 3},
            )
        )
        scenario.add_producers(**PRODUCERS[protocol])
        scenario.add_workers(**WORKERS)
        scenario.survive(IN_A_NETWORK)
        account = scenario.account()
    assert account.late == account.rejected == 0
