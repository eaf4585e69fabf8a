"""Writes what a version of the software leaves behind, for later ones to read and to go on with.

It is run by the version whose golden files are to be written, at the root of its sources::

    PYTHONPATH=. python tests/upgrade/write_golden.py FOLDER

For every job there is a folder with its record (``job.json``), the topics as they are in the middle
of an epoch (``log.json``), what producers have drawn, sent or not (``NAME.sqlite3.gz``), and the
last word of its workers (``heartbeats.json``). ``expected.json`` holds what all that says, and what
this version publishes in the end. Randomness is that of `tests.support.world.World`.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipeline.actions import Append, LogRecord
from pipeline.jobs.budgets import Charge
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.kafka.broker_clock import BrokerClock
from pipeline.kafka.workers.worker import _Process
from pipeline.protocols.registry import PROTOCOLS
from pipeline.simulation.memory import MemoryLog
from pipeline.stages.estimate_records import EstimateRecord
from tests.support.world import CrashError, World
from topics.batches import decode_batch, decode_punctuation
from topics.chunks import decode_chunk
from topics.frames import CodecError, Kind, kind_of
from topics.manifests import decode_manifest
from topics.names import Role
from topics.partials import decode_partial
from topics.records import DeadLetter, decode_producer_record
from topics.rows import Row

PRODUCERS = ("gateway", "kiosk", "visitor")
USERS = 12
STAGES = ("shuffle", "aggregate", "publish")
NOISE_KEY = NoiseKey(bytes(range(32)))


def jobs() -> dict[str, DeployedJob]:
    """A job of every protocol, one that shuffles at random, and one whose shuffle stage adds noise.

    The visitor is to leave in the middle, so there are two epochs at least.
    """
    values: dict[str, dict[str, Any]] = {}
    for name, protocol in PROTOCOLS.items():
        example = max(protocol.examples, key=lambda example: example.last_epoch)
        values[name] = {
            "protocol": name,
            "parameters": json.loads(json.dumps(asdict(example.parameters))),
            "epochs": {"count": max(2, example.last_epoch)},
            "shuffle": {"minimum": example.minimum},
        }
    values["random_order"] = values["future_rand"] | {"shuffle": {"minimum": 1, "order": "random"}}
    values["stage_noise"] = {
        "protocol": "shuffled_counts",
        "parameters": {"epsilon": 2, "delta": 1e-3, "dummies": "shuffle"},
        "epochs": {"count": 4, "renew": True},
        "shuffle": {"minimum": 10},
        "population": "students",
        "budget": {"epsilon": 8, "delta": 1e-2},
    }
    return {name: _deployed(name, each) for name, each in values.items()}


def _deployed(name: str, values: Mapping[str, Any]) -> DeployedJob:
    job = make_job({**values, "name": name, "topics": {"partitions": 2}})
    deployed = deploy_job(job, deployment=bytes(range(16)), deployed_at=1_700_000_000_000)
    if deployed.epochs.renew:
        deployed = deployed.model_copy(update={"horizons": 2})
    if deployed.needs_noise_key:
        deployed = deployed.model_copy(update={"noise_key": NOISE_KEY.digest})
    return deployed


def middle_of(job: DeployedJob) -> int:
    """The last epoch before the version is changed."""
    return job.epochs.count // 2


def world_of(job: DeployedJob, folder: Path) -> World:
    """A job and its people: user u of a producer changes value at some epochs."""
    size, slots = job.domain.size, job.domain.slots
    values = {}
    for number, producer in enumerate(PRODUCERS):
        last = middle_of(job) if producer == "visitor" else job.epochs.count
        values[producer] = {
            epoch: {
                f"{producer}-{user}": _value((user + number) // epoch % size, slots)
                for user in range(USERS)
            }
            for epoch in range(1, last + 1)
        }
    return World(job, folder, values, noise_key=NOISE_KEY if job.needs_noise_key else None)


def _value(number: int, slots: int | None) -> Any:
    if slots is None:
        return number
    return [number] if number else []


def run_first_half(world: World) -> None:
    """Up to the middle, and then so far that one producer is in and another dies while it sends."""
    middle = middle_of(world.job)
    world.log.append(Append(Role.REPORTS, 0, b"what nobody can read"))
    for epoch in range(1, middle + 1):
        for producer in PRODUCERS:
            world.close_epoch(producer, epoch)
        world.settle()
    world.producer("visitor").leave(middle)
    world.close_epoch("gateway", middle + 1)
    kiosk, epoch = world.producer("kiosk"), middle + 1
    kiosk.report(epoch, world.values["kiosk"][epoch])
    world.accidents.at, world.accidents.keep = frozenset({world.accidents.count + 1}), True
    with suppress(CrashError):
        kiosk.close(epoch)
    world.kill("kiosk")
    world.settle()


def run_to_the_end(world: World) -> None:
    """All epochs from where the world stands."""
    for epoch in range(1, world.job.epochs.count + 1):
        for producer in PRODUCERS:
            if epoch in world.values[producer] and epoch > world.producer(producer).closed_epoch:
                world.close_epoch(producer, epoch)
        world.settle()
        if epoch == middle_of(world.job) and world.roster().find_name("visitor") is not None:
            world.producer("visitor").leave(epoch)
    world.settle()


def describe(record: Any) -> Any:
    """A record in JSON: arrays as type and lists, bytes in hexadecimal."""
    if isinstance(record, EstimateRecord):
        return record.to_json()
    if is_dataclass(record):
        told = {field.name: describe(getattr(record, field.name)) for field in fields(record)}
        return {"type": type(record).__name__, **told}
    if isinstance(record, np.ndarray):
        return {"dtype": record.dtype.str, "values": record.tolist()}
    if isinstance(record, bytes):
        return record.hex()
    if isinstance(record, Enum):
        return record.value
    return list(record) if isinstance(record, tuple | Row) else record


def read_record(role: Role, record: LogRecord) -> Any:
    """What a record of a topic says; None where it is no record of this software."""
    decoders = {
        Kind.BATCH: decode_batch,
        Kind.PUNCTUATION: decode_punctuation,
        Kind.MANIFEST: decode_manifest,
        Kind.CHUNK: decode_chunk,
        Kind.PARTIAL: decode_partial,
    }
    try:
        if role is Role.PRODUCERS:
            return decode_producer_record(record.value)
        if role is Role.ESTIMATES:
            return EstimateRecord.from_bytes(record.value)
        if role is Role.DEAD_LETTERS:
            return DeadLetter.from_record(record.value, record.headers)
        return decoders[kind_of(record.value)](record.value)
    except CodecError:
        return None


def records_of(log: MemoryLog, job: DeployedJob) -> dict[Role, list[list[LogRecord]]]:
    """The records of every partition that have not been deleted."""
    found: dict[Role, list[list[LogRecord]]] = {}
    for role, offsets in job.start_offsets.items():
        found[role] = []
        for partition in range(len(offsets)):
            end = log.end(role, partition)
            first = end - len(log.values(role, partition))
            found[role].append(list(log.read(role, partition, first, end).records))
    return found


def results_of(world: World) -> dict[str, Any]:
    """What was decided, counted and published of every epoch."""
    integers = world.integers()
    return {
        str(epoch): {
            "manifest": describe(manifest),
            "partial": integers[epoch].hex() if epoch in integers else None,
            "estimate": world.published()[epoch].to_json(),
        }
        for epoch, manifest in world.manifests().items()
    }


def heartbeats_of(world: World) -> list[str]:
    """The last word of a worker of each stage."""
    told: list[bytes] = []

    async def write(append: Append) -> None:
        told.append(append.value)
        raise CrashError

    for stage in STAGES:
        worker = world.worker(stage)
        process: Any = SimpleNamespace(
            stage=worker.stage,
            stage_name=stage,
            worker="w1",
            job=world.job,
            ends=dict(worker.positions),
            execution=SimpleNamespace(positions=dict(worker.positions), records=100),
            timings=SimpleNamespace(status=0.01),
            log=SimpleNamespace(write=write),
            clock=BrokerClock(),
            stopping=False,
        )
        process._say = partial(_Process._say, process)
        process._word = partial(_Process._word, process)
        with suppress(CrashError):
            asyncio.run(_Process._tell_status(process))
    return [value.decode() for value in told]


def write_job(job: DeployedJob, folder: Path) -> None:
    """All golden files of a job."""
    folder.mkdir(parents=True)
    (folder / "job.json").write_bytes(job.to_bytes())
    with tempfile.TemporaryDirectory() as scratch:
        world = world_of(job, Path(scratch) / "half")
        run_first_half(world)
        heartbeats = heartbeats_of(world)
        world.shut()
        for producer in PRODUCERS:
            store = (world.folder / producer / "producer.sqlite3").read_bytes()
            (folder / f"{producer}.sqlite3.gz").write_bytes(gzip.compress(store, mtime=0))
        whole = world_of(job, Path(scratch) / "whole")
        run_to_the_end(whole)
        whole.shut()
    held = records_of(world.log, job)
    log = {
        "committed": [[*key, offset] for key, offset in sorted(world.log.committed.items())],
        "partitions": [
            {
                "role": role,
                "partition": partition,
                "end": world.log.end(role, partition),
                "records": [_record_json(record) for record in records],
            }
            for role, partitions in held.items()
            for partition, records in enumerate(partitions)
        ],
    }
    expected = {
        "charge": Charge.of(job).to_bytes().decode(),
        "records": {
            role: [[describe(read_record(role, record)) for record in each] for each in partitions]
            for role, partitions in held.items()
        },
        "results": results_of(whole),
    }
    for name, content in (("log", log), ("heartbeats", heartbeats), ("expected", expected)):
        (folder / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


def _record_json(record: LogRecord) -> list[Any]:
    headers = [[name, _text(value)] for name, value in record.headers]
    key = None if record.key is None else _text(record.key)
    return [_text(record.value), record.timestamp, key, headers]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    for name, job in jobs().items():
        write_job(job, Path(sys.argv[1]) / name)
