"""Where topics end is asked once for what is done with an epoch, and once when time passes.

Each question is a request to every broker, of every worker: beside many jobs they add up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dpstream.pipeline.actions import Action, EndOffsets
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.simulation.memory import MemoryDriver
from dpstream.pipeline.simulation.simulate import SimulatedCluster
from tests.support.small_run import EPOCHS, generators, job_text, write_changes


@dataclass(slots=True)
class CountingDriver(MemoryDriver):
    """Counts questions."""

    questions: int = 0

    def carry_out(self, action: Action) -> object:
        self.questions += isinstance(action, EndOffsets)
        return MemoryDriver.carry_out(self, action)


def counted(cluster: SimulatedCluster) -> dict[str, CountingDriver]:
    """The workers' drivers, which count."""
    drivers = {name: CountingDriver(cluster.log, reader=name) for name in cluster.workers}
    for name, worker in cluster.workers.items():
        worker.driver = drivers[name]
    return drivers


def test_a_stage_asks_once_for_an_epoch_and_once_for_a_tick(tmp_path: Path) -> None:
    job = deploy_job(parse_job(job_text()), deployed_at=1_000, deployment=bytes(16))
    cluster = SimulatedCluster(job, generators)
    drivers = counted(cluster)
    log = load_change_log(write_changes(tmp_path / "changes.csv", users=100), last_epoch=EPOCHS)
    producer = Producer(
        cluster.job, None, name="p", transport=MemoryDriver(cluster.log), generators=generators
    )
    producer.enrol(log.users)
    asked = []
    for epoch, values in enumerate(log.values_by_epoch(), 1):
        producer.report_all(epoch, values)
        producer.close(epoch)
        before = Counter({name: driver.questions for name, driver in drivers.items()})
        cluster.settle()
        asked.append(Counter({name: each.questions for name, each in drivers.items()}) - before)
    # Before the first epoch nobody is known to be registered.
    assert asked[1:] == (EPOCHS - 1) * [{"shuffle": 2, "aggregate": 1, "publish": 2}]


def test_whoever_is_in_while_others_are_missing_has_nothing_asked(tmp_path: Path) -> None:
    """Of ten thousand producers, all would be reason to ask."""
    text = f"{job_text()}shuffle: {{minimum: 1, producers: 3}}\n"
    job = deploy_job(parse_job(text), deployed_at=1_000, deployment=bytes(16))
    cluster = SimulatedCluster(job, generators)
    driver, worker = counted(cluster)["shuffle"], cluster.workers["shuffle"]
    producers = [
        Producer(
            cluster.job, None, name=name, transport=MemoryDriver(cluster.log),
            generators=generators,
        )
        for name in ("north", "south", "east")
    ]  # fmt: skip
    for producer in producers:
        producer.enrol([producer.name])
    asked = []
    for epoch in (1, 2):
        for producer in producers:
            producer.report(epoch, {producer.name: 1})
            producer.close(epoch)
            driver.questions = 0
            while worker.run(worker.poll()):
                pass
            asked.append(driver.questions)
        cluster.settle()
    # Before the first record nobody is known to be registered.
    assert asked == [1, 0, 1, 0, 0, 1]
