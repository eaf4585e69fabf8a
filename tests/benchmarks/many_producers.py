"""Cost for the shuffler of windows of many producers: records, manifests, decision log.

``python -m tests.benchmarks.many_producers [PRODUCERS ...]``

Every producer sends a batch of one report and its punctuation. Prints `Closing` and `Remembered`
results as lines of JSON.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.topics.batches import (
    DRAWING_BYTES,
    Batch,
    Punctuation,
    batch_id,
    encode_batch,
    encode_punctuation,
)
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from tests.benchmarks.measuring import MEGABYTE
from tests.benchmarks.one_core import shuffle_stage

Order = Literal["registration", "random"]


@dataclass(frozen=True, slots=True)
class Closing:
    """Cost of closing a window.

    Attributes:
        order: Order of the punctuation; all batches come before it, in the opposite order.
        microseconds: Processor time per record, including admission.
    """

    producers: int
    order: Order
    microseconds: float
    manifest_bytes: int


@dataclass(frozen=True, slots=True)
class Remembered:
    """Cost of a full decision log in a worker.

    Attributes:
        producers: Number of producers, of which a different hundredth is missing at each epoch.
        megabytes: Memory of the decision log.
        microseconds: Processor time per decision.
    """

    producers: int
    decisions: int
    megabytes: float
    microseconds: float
    manifest_bytes: int


def many_job(producers: int) -> Job:
    values = {
        "name": "many",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "max_changes": 1},
        "epochs": {"count": 1 << 16},
        "shuffle": {"minimum": 1, "producers": producers, "grace": "1h"},
        "topics": {"partitions": 1},
    }
    return make_job(values)


def closing(producers: int, order: Order, epochs: int = 3) -> Closing:
    job, log = deploy_job(many_job(producers), deployed_at=0), MemoryLog()
    enrollments = [secrets.token_bytes(16) for _ in range(producers)]
    for number, enrollment in enumerate(enrollments):
        registration = Registration(job.deployment, f"{number}", enrollment, 1)
        log.append(Append(Role.PRODUCERS, 0, registration.to_bytes()))
    worker = MemoryWorker(shuffle_stage(job), log)
    worker.run(worker.assign(0))
    words = Messages(np.zeros((1, job.message_format.width), job.message_format.dtype))
    identity = job.fingerprint, job.deployment
    spent = []
    drawing = secrets.token_bytes(DRAWING_BYTES)
    for epoch in range(1, epochs + 1):
        for enrollment in reversed(enrollments):
            batch = Batch(*identity, batch_id(drawing, 0), enrollment, epoch, words)
            log.append(Append(Role.REPORTS, 0, encode_batch(batch)))
        shuffled = list(enrollments)
        if order == "random":
            np.random.default_rng(epoch).shuffle(shuffled)
        for enrollment in shuffled:
            punctuation = Punctuation(*identity, enrollment, epoch, 1, 1, 1000, drawing)
            log.append(Append(Role.REPORTS, 0, encode_punctuation(punctuation)))
        before = time.process_time()
        worker.run(worker.drain())
        spent.append(time.process_time() - before)
    manifests = log.values(Role.MANIFESTS)
    assert len(manifests) == epochs, "the windows were not closed"
    records = 2 * producers
    return Closing(producers, order, round(min(spent) / records * 1e6, 1), len(manifests[-1]))


def remembered(producers: int, decisions: int = EPOCHS_AHEAD) -> Remembered:
    """Measure reading a full decision log."""
    job = deploy_job(many_job(producers), deployed_at=0)
    rng = np.random.default_rng(1)
    populations = rng.integers(500, 1500, producers)
    tracemalloc.start()
    empty, _ = tracemalloc.get_traced_memory()
    log, spent, size = DecisionLog(job), 0.0, 0
    for epoch in range(1, decisions + 1):
        inside = rng.random(producers) >= 0.01
        counts = populations[inside]
        manifest = Manifest(
            job.fingerprint, job.deployment, epoch, WindowStatus.RELEASED, epoch, epoch + 1, 1,
            tuple(inside.tolist()), tuple(counts.tolist()), int(counts.sum()),
            int(populations.sum()), 0,
        )  # fmt: skip
        record = log.encode(manifest)
        size = len(record)
        before = time.process_time()
        log.apply(LogRecord(epoch, record))
        spent += time.process_time() - before
    del manifest, record, inside, counts
    held = tracemalloc.get_traced_memory()[0] - empty
    tracemalloc.stop()
    each = round(spent / decisions * 1e6, 1)
    return Remembered(producers, decisions, round(held / MEGABYTE, 1), each, size)


def main() -> None:
    for producers in map(int, sys.argv[1:] or ["1000"]):
        for order in ("registration", "random"):
            print(json.dumps(asdict(closing(producers, order))), flush=True)
        print(json.dumps(asdict(remembered(producers))), flush=True)


if __name__ == "__main__":
    main()
