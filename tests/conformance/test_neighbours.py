"""Whatever a user's values are, everything on the topics but the randomized view is the same.

Two runs with the same coins, of which one user's values differ at every epoch, through the real
producers and stages: the randomized view is the words of batches and chunks, what partials hold of
them and what estimates say of them. All else is compared bit for bit: how many records there are,
where, of what size and when, who punctuated with how many devices, manifests, committed offsets,
heartbeats, dead letters, and the windows that were withheld.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.deployed_job import DeployedJob
from pipeline.memory import MemoryDriver
from pipeline.producer import Producer
from pipeline.simulate import SimulatedCluster
from pipeline.stage import Stage
from randomizers.randomness import seeded_generator
from tests.conformance.cases import CASES, Case
from tests.conformance.jobs import LAST_EPOCH, job_of
from topics.frames import Kind, kind_of
from topics.names import Role

# Gateways with several devices, and devices that are producers of their own.
PRODUCERS = (5, 3, 1, 1, 1, 1, 1, 1)
DEVICES = sum(PRODUCERS)


def public_view(job: DeployedJob, values: NDArray[Any]) -> list[object]:
    """All that can be seen of a run but the randomized view, in order."""
    generators: dict[tuple[str, int], np.random.Generator] = {}

    def of_the_stages(purpose: str, number: int) -> np.random.Generator:
        return generators.setdefault((purpose, number), seeded_generator(1, len(purpose), number))

    cluster = SimulatedCluster(job, of_the_stages)
    seen: list[object] = []
    producers = [_producer(cluster, index) for index in range(len(PRODUCERS))]
    ends = np.cumsum(PRODUCERS)
    for epoch in range(1, LAST_EPOCH + 1):
        partition = cluster.job.partition_of(epoch)
        begin = cluster.log.end(Role.REPORTS, partition)
        for producer, devices, end in zip(producers, PRODUCERS, ends, strict=True):
            producer.report_all(epoch, values[epoch - 1, end - devices : end])
            producer.close(epoch)
        stop = cluster.log.end(Role.REPORTS, partition)
        for record in cluster.log.read(Role.REPORTS, partition, begin, stop).records:
            punctuation = kind_of(record.value) is Kind.PUNCTUATION
            said = record.value if punctuation else len(record.value)
            seen.append((record.offset, record.key, record.headers, said))
        cluster.settle()
        seen.extend(
            (estimate.epoch, estimate.fate, estimate.contributors, estimate.population)
            for estimate in cluster.new_estimates()
        )
    roles = (Role.PRODUCERS, Role.MANIFESTS, Role.DEAD_LETTERS)
    seen.extend((role, cluster.log.values(role)) for role in roles)
    seen.append(sorted(cluster.log.committed.items()))
    seen.extend(_heartbeat(worker.stage) for worker in cluster._workers)
    for producer in producers:
        producer.shut()
    return seen


def _heartbeat(stage: Stage) -> dict[str, object]:
    """Without the number of words in released windows, which is part of the view."""
    told = dict(stage.heartbeat())
    if stage.role is Role.SHUFFLED:
        counts = told["counts"]
        assert isinstance(counts, dict)
        told["counts"] = {name: count for name, count in counts.items() if name != "reports"}
    return told


def _producer(cluster: SimulatedCluster, index: int) -> Producer:
    identifiers = seeded_generator(2, index)
    producer = Producer(
        cluster.job,
        None,
        name=f"producer {index}",
        transport=MemoryDriver(cluster.log),
        generators=lambda purpose, number: seeded_generator(3, index, len(purpose), number),
        identifiers=lambda: identifiers.bytes(16),
    )
    producer.enrol([f"user {index} {number}" for number in range(PRODUCERS[index])])
    return producer


def neighbours(case: Case) -> Sequence[NDArray[np.integer]]:
    """Streams of all devices; in each, one gateway's last user and one lone device have others."""
    size = len(case.values)
    generator = np.random.default_rng(0)
    indices = generator.integers(0, size, (LAST_EPOCH, DEVICES))
    found = []
    for value in (size - 1, None):
        for user in (PRODUCERS[0] - 1, DEVICES - 1):
            changed = indices.copy()
            # None: another one at every epoch.
            others = np.arange(LAST_EPOCH) % size if value is None else value
            changed[:, user] = others
            found.append(case.array_of(changed))
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("minimum", [12, 100], ids=["released", "withheld"])
def test_nothing_but_the_randomized_view_depends_on_values(case: Case, minimum: int) -> None:
    for dummies in (None, "shuffle") if hasattr(case.parameters, "dummies") else (None,):
        try:
            job = job_of(case, dummies=dummies, minimum=minimum)
        except ValueError:
            assert dummies == "shuffle"  # Not of every parameters.
            continue
        first, *others = (public_view(job, values) for values in neighbours(case))
        for other in others:
            assert other == first
