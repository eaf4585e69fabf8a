"""Measure sealed reports per second and core: ``python -m tests.benchmarks.sealing [--reports N]``.

A window of reports passes a producer and the real stages, with two chained shufflers, in memory.
Prints the processor time of each step; then the times with one process and partition per core, like
workers; and finally the times for tables of many producers in two shares.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context

import numpy as np
from rich.console import Console

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, MemoryWorker
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage, stages_after_release
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.names import Role
from dpstream.topics.sealing import CIPHERTEXT_BYTES
from dpstream.topics.shares import share_table
from tests.benchmarks.measuring import table_of
from tests.support.sealing import all_keys, ring, sealed_section, shares_section

STAGES = ((2,), (3,))
WHAT = {
    "producer": "seals two ciphertexts per report, and batches",
    "shuffle": "opens batches, drops the order",
    "shuffle-2": "opens one ciphertext per report, drops the order",
    "aggregate": "opens one ciphertext per report, adds counts",
}

SHARED = {
    "producer": "seals one table in two shares",
    "shuffle": "drops the sender",
    "aggregate-a": "opens seeds, expands and adds them",
    "aggregate-b": "opens differences, adds them",
    "aggregate": "adds both sums, once per window",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.sealing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reports", type=int, default=20_000, metavar="N")
    parser.add_argument("--tables", type=int, default=200, metavar="N")
    parser.add_argument("--cells", type=int, default=10_000, metavar="N")
    given = parser.parse_args()
    reports = given.reports
    cores = len(os.sched_getaffinity(0))
    alone = measure(reports)
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        together = list(pool.map(measure, [reports] * cores))
    rows = [
        {
            "who": who,
            "what": what,
            "microseconds of a report": 1e6 * alone[who][0] / reports,
            "reports per second and core": reports / alone[who][0],
            f"on {cores} cores": cores * reports / max(seconds[who][1] for seconds in together),
        }
        for who, what in WHAT.items()
    ]
    console = Console()
    console.print(table_of("reports", rows))
    console.print(f"each ciphertext adds {CIPHERTEXT_BYTES} bytes")
    shares(console, given.tables, given.cells)


def shares(console: Console, tables: int, cells: int) -> None:
    seconds, size = measure_shares(tables, cells)
    rows = [
        {
            "who": who,
            "what": what,
            "microseconds of a table": 1e6 * seconds[who][0] / tables,
            "tables per second and core": tables / seconds[who][0],
        }
        for who, what in SHARED.items()
    ]
    console.print(table_of("tables", rows))
    console.print(f"{cells:,} cells: {size:,.0f} bytes a table as sent")


def measure_shares(tables: int, cells: int) -> tuple[dict[str, tuple[float, float]], float]:
    """Return processor and wall-clock seconds of each step, and the bytes of a sent table."""
    values = {
        "name": "shares",
        "protocol": "single_message",
        "parameters": {"epsilon": 1, "delta": 1e-3, "domain": [f"{each}" for each in range(cells)]},
        "epochs": {"count": 1},
        "shuffle": {"minimum": tables, "producers": tables},
        "topics": {"partitions": 1},
        "sealed": shares_section(),
    }
    job, keys, log = deploy_job(make_job(values), deployed_at=0), ring([1, 2]), MemoryLog()
    form, numbers = job.table_format, count()
    locks = job.locks.of(SHARERS[0], 1), job.locks.of(SHARERS[1], 1)
    producers = [
        Producer(job, None, name=f"{each}", transport=MemoryDriver(log)) for each in range(tables)
    ]
    for producer in producers:
        producer.enroll(["one"])
        producer.report_all(1, np.ones((1, 1), np.int64))
        producer.close(1)
    sent = sum(map(len, log.values(Role.REPORTS))) / tables
    made = np.ones(form.cells, np.uint32)

    def seal_all() -> None:
        for _ in range(tables):
            share_table(made, 1, form, locks, secrets.token_bytes)

    seconds = {"producer": _timed(seal_all)}
    shuffle = build_stage(
        job,
        "shuffle",
        Environment(
            identifiers=lambda: next(numbers).to_bytes(16, "big"),
            wall_clock=lambda: 0,
            broker_time=lambda: None,
            generator=cryptographic_generator(),
        ),
    )
    later = stages_after_release(job)[:-1]
    adding = [build_stage(job, name, Environment(keys=keys)) for name in later]
    for name, stage in zip(job.route.stages, (shuffle, *adding), strict=False):
        seconds[name] = _timed(lambda name=name, stage=stage: _work(name, stage, log))  # type: ignore[misc]
    assert log.values(Role.PARTIALS)
    return seconds, sent


def measure(reports: int) -> dict[str, tuple[float, float]]:
    """Return processor and wall-clock seconds of each step."""
    values = {
        "name": "sealing",
        "protocol": "single_message",
        "parameters": {"epsilon": 1, "delta": 1e-6, "domain": ["a", "b", "c"]},
        "epochs": {"count": 1},
        "shuffle": {"minimum": reports},
        "topics": {"partitions": 1},
        "sealed": sealed_section(STAGES),
    }
    job, keys, log = deploy_job(make_job(values), deployed_at=0), all_keys(STAGES), MemoryLog()
    numbers = count()

    def identifiers() -> bytes:
        return next(numbers).to_bytes(16, "big")

    stages: dict[str, Stage] = {
        "shuffle": build_stage(
            job,
            "shuffle",
            Environment(
                identifiers=identifiers,
                wall_clock=lambda: 0,
                broker_time=lambda: None,
                generator=cryptographic_generator(),
                keys=keys,
            ),
        ),
        "shuffle-2": build_stage(job, "shuffle-2", Environment(keys=keys, identifiers=identifiers)),
        "aggregate": build_stage(job, "aggregate", Environment(keys=keys)),
    }
    assert [*stages, "publish"] == list(job.route.stages)
    producer = Producer(job, None, name="bench", transport=MemoryDriver(log))
    producer.enroll([str(user) for user in range(reports)])
    producer.report_all(1, np.ones((reports, 1), np.int64))
    seconds = {"producer": _timed(lambda: producer.close(1))}
    for name, stage in stages.items():
        seconds[name] = _timed(lambda name=name, stage=stage: _work(name, stage, log))  # type: ignore[misc]
    assert log.values(Role.PARTIALS)
    return seconds


def _work(name: str, stage: Stage, log: MemoryLog) -> None:
    worker = MemoryWorker(stage, log, reader=name)
    worker.run(worker.assign(0))
    worker.run(worker.drain())


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


if __name__ == "__main__":
    main()
