"""Two producers with copies of one folder: whatever comes first, no device is in more than once."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from pipeline.actions import Append
from pipeline.deployed_job import DeployedJob, deploy_job
from pipeline.jobs import make_job
from pipeline.memory import MemoryDriver, MemoryLog
from pipeline.producer import Producer
from pipeline.protocols import PROTOCOLS
from pipeline.simulate import SimulatedCluster
from randomizers.randomness import seeded_generator
from tests.support import cells
from topics.manifests import Fate, decode_manifest
from topics.names import Role

# More than one batch.
CELLS = 40_000


def job() -> DeployedJob:
    return deploy_job(
        make_job(
            {
                "name": "copied",
                "protocol": cells.NAME,
                "parameters": {"cells": CELLS},
                "epochs": {"count": 1},
                "shuffle": {"minimum": 1},
                "topics": {"partitions": 1},
            }
        ),
        deployed_at=0,
        deployment=bytes(16),
    )


def records_of_copies(deployed: DeployedJob, folder: Path, log: MemoryLog) -> list[list[bytes]]:
    """What each of two copies sends for epoch 1, after the registration that both have."""
    first = Producer(deployed, folder / "a", name="gateway", transport=MemoryDriver(log))
    first.enrol([f"user {number}" for number in range(CELLS)])
    first.shut()
    shutil.copytree(folder / "a", folder / "b")
    sent = []
    for name in "ab":
        own = MemoryLog()
        with Producer(
            deployed, folder / name, name="gateway", transport=MemoryDriver(own)
        ) as producer:
            producer.report_all(1, np.arange(CELLS))
            producer.close(1)
        sent.append(own.values(Role.REPORTS))
    return sent


def test_however_the_records_of_two_copies_mix_every_report_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    deployed = job()
    registered = MemoryLog()
    one, other = records_of_copies(deployed, tmp_path, registered)
    assert len(one) == len(other) >= 3, "two batches and a punctuation"
    total = len(one) + len(other)
    for places in combinations(range(total), len(one)):
        cluster = SimulatedCluster(deployed, lambda purpose, number: seeded_generator(number))
        driver = MemoryDriver(cluster.log)
        for value in registered.values(Role.PRODUCERS):
            driver.carry_out(Append(Role.PRODUCERS, 0, value))
        mine, theirs = iter(one), iter(other)
        for place in range(total):
            # The stage sees every record by itself: what it decides, it decides on what it has.
            value = next(mine if place in places else theirs)
            driver.carry_out(Append(Role.REPORTS, 0, value))
            driver.crash(keep=True)
            cluster.settle()
        (manifest,) = map(decode_manifest, cluster.log.values(Role.MANIFESTS))
        assert (manifest.fate, manifest.contributors) == (Fate.RELEASED, CELLS)
        (record,) = cluster.new_estimates()
        assert record.headline is not None
        assert (record.headline.low, record.headline.high) == (1.0, 1.0), places
        assert not cluster.log.values(Role.DEAD_LETTERS)
