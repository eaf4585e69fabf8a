"""Links from released windows to senders: by order, or by ids of batches and producers.

Two users with different values, each with a producer of its own, report one after the other. If
they exchange their values, the released window must have the same distribution. Its records must
not contain the id of a producer or of a batch.
"""

from __future__ import annotations

import numpy as np

from dpstream.pipeline.actions import Append
from dpstream.pipeline.audit.hockey_stick import Observation, Observations, choose_guess, loss_bound
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.topics.batches import Batch, decode_batch
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import CodecError
from dpstream.topics.names import Role

# Devices report almost the true value, so that only the order hides the sender. Messages do not fit
# a table of counts, which would not have their order.
_JOB = {
    "name": "audit",
    "protocol": "laplace_histogram",
    "parameters": {"epsilon": 12, "domain": ["a", "b"]},
    "topics": {"partitions": 2},
}
_HELD = ((1, 2), (2, 1))
"""Items of the first and the second user to report, before and after the exchange of values."""


def attack_linkage(
    order: str, trials: int, randomness: np.random.Generator, false_alarm: float
) -> str:
    """Exchange the values of two users, and search released windows for their order and ids.

    Args:
        trials: Number of windows per arrangement to train on; twice as many are then judged.
        false_alarm: Maximum probability that a correct stage fails.

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
    # A fair coin decides the arrangement of each judged window.
    first = int(randomness.binomial(judged, 0.5))

    def drawn(held: tuple[int, int], windows: int) -> Observations:
        return Observations.of([_window(job, held, randomness, linked) for _ in range(windows)])

    before, after = (drawn(held, trials) for held in _HELD)
    guess = choose_guess(before, after, 0.0, false_alarm)
    one, other = (drawn(*each) for each in zip(_HELD, (first, judged - first), strict=True))
    observed = loss_bound(*guess.count(one, other), judged, 0.0, false_alarm)
    if observed > 0:
        return (
            "windows keep the order of arrival: the sender of a report leaks by at "
            f"least epsilon {observed:.4g}"
        )
    if not any(observations.tables for observations in (before, one)):
        return "no window of two users is released with a minimum of two"
    return linked[0] if linked else ""


class _Log(MemoryLog):
    def __init__(self) -> None:
        super().__init__()
        self.identities: set[bytes] = set()

    def append(self, action: Append) -> None:
        if action.role is Role.REPORTS:
            try:
                batch: Batch = decode_batch(action.value)
            except CodecError:
                pass
            else:
                self.identities |= {batch.batch, batch.enrollment}
        super().append(action)


def _window(
    job: DeployedJob, held: tuple[int, int], randomness: np.random.Generator, linked: list[str]
) -> Observation:
    """Return the messages of a released window in order, each with its position."""

    def generators(purpose: str, number: int) -> np.random.Generator:
        return randomness

    log = _Log()
    cluster = SimulatedCluster(job, generators, log=log)
    producers = [
        Producer(
            cluster.job,
            None,
            name=name,
            transport=MemoryDriver(log),
            generators=generators,
            identifiers=lambda: randomness.bytes(16),
        )
        for name in ("first", "second")
    ]
    for producer, value in zip(producers, held, strict=True):
        producer.enroll([producer.name])
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
                linked.append("a released record contains the id of a batch or its producer")
    return tuple(((word, 1),) for word in words)
