"""Whether released windows tell who sent what: by their order, or by ids of batches and producers.

Of two people with different values, each with a producer of its own, one is the first to report. If
they exchange their values, what is released has to look the same with the same probability, and no
record of it may hold the id of a producer or of one of its batches.
"""

from __future__ import annotations

import numpy as np

from dpstream.pipeline.actions import Append
from dpstream.pipeline.audit.hockey_stick import Sight, Sights, choose_guess, loss_bound
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.topics.batches import Batch, decode_batch
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import CodecError
from dpstream.topics.names import Role

# Devices that say nearly the truth, so that only the order hides who sent what; in words that no
# table of counts holds, whose order is lost in any case.
_JOB = {
    "name": "audit",
    "protocol": "laplace_histogram",
    "parameters": {"epsilon": 12, "domain": ["a", "b"]},
    "topics": {"partitions": 2},
}
_HELD = ((1, 2), (2, 1))
"""The items of the first person to report and of the second, before and after the exchange."""


def attack_linkage(order: str, trials: int, coins: np.random.Generator, false_alarm: float) -> str:
    """Exchange the values of two people, and look for their order and ids in released windows.

    Args:
        order: of windows, as in job files.
        trials: half of the windows that are judged. As many of either arrangement are drawn before.
        coins: all that is drawn.
        false_alarm: maximum probability of a reason against a correct stage.

    Returns:
        How a window links a report to its sender, or an empty text.
    """
    values = {
        **_JOB,
        "epochs": {"count": 1},
        "shuffle": {"minimum": 2, "producers": 2, "order": order},
    }
    job = deploy_job(make_job(values), deployed_at=0)
    linked: list[str] = []
    judged = 2 * trials
    # Those that are judged are of either arrangement by a fair coin.
    first = int(coins.binomial(judged, 0.5))

    def drawn(held: tuple[int, int], windows: int) -> Sights:
        return Sights.of([_window(job, held, coins, linked) for _ in range(windows)])

    before, after = (drawn(held, trials) for held in _HELD)
    guess = choose_guess(before, after, 0.0, false_alarm)
    one, other = (drawn(*each) for each in zip(_HELD, (first, judged - first), strict=True))
    observed = loss_bound(*guess.count(one, other), judged, 0.0, false_alarm)
    if observed > 0:
        return (
            "windows in the order in which reports arrived: who of two sent what is seen by at "
            f"least epsilon {observed:.4g}"
        )
    if not any(sights.tables for sights in (before, one)):
        return "no window of two people is released where that is the minimum"
    return linked[0] if linked else ""


class _Log(MemoryLog):
    """Topics that remember the ids of producers and batches."""

    def __init__(self) -> None:
        super().__init__()
        self.identities: set[bytes] = set()

    def append(self, action: Append) -> None:
        """Write a record, and note whose it is."""
        if action.role is Role.REPORTS:
            try:
                batch: Batch = decode_batch(action.value)
            except CodecError:
                pass
            else:
                self.identities |= {batch.batch, batch.enrolment}
        super().append(action)


def _window(
    job: DeployedJob, held: tuple[int, int], coins: np.random.Generator, linked: list[str]
) -> Sight:
    """Words of a released window in their order, each at a place of its own."""

    def generators(purpose: str, number: int) -> np.random.Generator:
        return coins

    log = _Log()
    cluster = SimulatedCluster(job, generators, log=log)
    producers = [
        Producer(
            cluster.job,
            None,
            name=name,
            transport=MemoryDriver(log),
            generators=generators,
            identifiers=lambda: coins.bytes(16),
        )
        for name in ("first", "second")
    ]
    for producer, value in zip(producers, held, strict=True):
        producer.enrol([producer.name])
        producer.report_all(1, np.array([[value]]))
        producer.close(1)
        producer.shut()
    shuffle = cluster.workers["shuffle"]
    shuffle.run(shuffle.drain())
    words: list[tuple[int, ...]] = []
    for partition in range(len(job.start_offsets[Role.SHUFFLED])):
        for value_bytes in log.values(Role.SHUFFLED, partition):
            chunk = decode_chunk(value_bytes)
            rows, counts = chunk.words.values, chunk.words.counts
            rows = rows if counts is None else np.repeat(rows, counts, axis=0)
            words += map(tuple, rows.tolist())
            if any(identity in value_bytes for identity in log.identities):
                linked.append("a released record holds the id of a batch or of its producer")
    return tuple(((word, 1),) for word in words)
