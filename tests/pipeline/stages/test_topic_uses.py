"""The table of which stage uses which topic says what the stages really do."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dpstream.pipeline.actions import Action, Append, DeleteBelow, EndOffsets, ReadRange
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, SimulatedCluster
from dpstream.pipeline.stages.topic_uses import topic_uses
from dpstream.topics.names import Role
from tests.support.sealing import sealed_section
from tests.support.small_run import EPOCHS, FUTURE_RAND, generators, job_text, write_changes

# What a stage says of itself and what it refuses is the business of its worker, and of accidents.
_ASIDE = {Role.STATUS, Role.DEAD_LETTERS}
_INSTANCES = "shuffle: {instances: 2}\n"
_IN_SERIES = f"sealed: {json.dumps(sealed_section([[2], [3], [4]]))}\n"


@dataclass(slots=True)
class NotingDriver(MemoryDriver):
    """Notes which topics the actions are about, by what they do to them."""

    does: defaultdict[str, set[Role]] = field(default_factory=lambda: defaultdict(set))

    def carry_out(self, action: Action) -> object:
        match action:
            case Append(role):
                self.does["writes"].add(role)
            case ReadRange(role):
                self.does["reads"].add(role)
            case EndOffsets(places):
                self.does["reads"].update(role for role, _ in places)
            case DeleteBelow(role):
                self.does["deletes"].add(role)
        return MemoryDriver.carry_out(self, action)


def used(job: Job, folder: Path) -> dict[str, dict[str, set[Role]]]:
    """What each stage reads, writes and deletes in a run of a job in memory."""
    found: dict[str, dict[str, set[Role]]] = {}
    deployed = deploy_job(job, deployed_at=1_000, deployment=bytes(16))
    cluster = SimulatedCluster(deployed, generators)
    for stage, worker in cluster.workers.items():
        driver = NotingDriver(cluster.log, reader=worker.driver.reader)
        driver.does["reads"].add(worker.stage.role)
        found[stage], worker.driver = driver.does, driver
        for partition in range(len(deployed.start_offsets[worker.stage.role])):
            worker.run(worker.assign(partition))
    log = load_change_log(write_changes(folder / "changes.csv", users=100), last_epoch=EPOCHS)
    producer = Producer(
        cluster.job, None, name="p", transport=MemoryDriver(cluster.log), generators=generators
    )
    producer.enrol(log.users)
    for epoch, values in enumerate(log.values_by_epoch(), 1):
        producer.report_all(epoch, values)
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    return found


@pytest.mark.parametrize(
    "more", ["", _INSTANCES, _IN_SERIES], ids=["one stage", "two instances", "three in series"]
)
def test_stages_use_the_topics_of_the_table_and_no_others(more: str, tmp_path: Path) -> None:
    job = parse_job(job_text(asked=FUTURE_RAND + "\n" + more))
    for stage, does in used(job, tmp_path).items():
        uses = topic_uses(job, stage)
        assert does["reads"] == uses.reads - _ASIDE, stage
        assert does["writes"] == uses.writes - _ASIDE, stage
        assert does["deletes"] == ({uses.deletes} - {None}), stage
        assert Role.STATUS in uses.writes


def test_a_stage_that_a_job_has_not_uses_nothing() -> None:
    with pytest.raises(KeyError):
        topic_uses(parse_job(job_text()), "shuffle-2")
