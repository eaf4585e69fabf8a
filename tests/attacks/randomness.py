"""Privacy-relevant randomness: drawn once, by a cryptographic generator, and kept secret."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from randomgen import AESCounter

from dpstream.pipeline.actions import Append
from dpstream.pipeline.audit.plans import job_of
from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.conformance.running import DoesNotConformError, restored_devices_continue
from dpstream.pipeline.devices.producer import Producer, ProducerError, cryptographic_generators
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.randomizers.randomness import cryptographic_generator
from tests.attacks.changed_values import other_values
from tests.attacks.promises import broken

EPOCHS, DEVICES = 4, 12
# Enough devices that some draws differ.
_MANY = 200
# Minimum bytes of a secret state to search for: shorter states are found by chance.
_LONG_ENOUGH = 8


def attack_generators() -> Iterator[str]:
    """Check the generator of all protocols, even after a fork."""
    return broken(
        {
            "devices and stages draw from separately keyed cryptographic generators": (_generator),
            "a fork's children and parent draw differently": _forks,
        },
    )


def attack_randomness(case: Case) -> Iterator[str]:
    """Check that draws are secret, and happen once even if the producer is killed."""
    promises = {
        "an epoch drawn before a crash is sent unchanged": _crash,
        "restored devices continue with their draws": _restart,
        "enrollment draws are never repeated": _drawn_once,
        "topics and heartbeats contain no secrets": _secrets,
    }
    of_case = {what: partial(broken, case) for what, broken in promises.items()}
    return broken(of_case)


def _generator() -> str:
    made = [cryptographic_generators()("report", 1), cryptographic_generators()("report", 1)]
    made += [cryptographic_generator(), cryptographic_generator()]
    for generator in made:
        if not isinstance(generator.bit_generator, AESCounter):
            kind = type(generator.bit_generator).__name__
            return f"draws come from {kind}, which is not a cryptographic generator"
    if len({generator.bytes(32) for generator in made}) < len(made):
        return "two generators draw the same numbers"
    return ""


def _forks() -> str:
    generator, of_producer = cryptographic_generator(), cryptographic_generators()("report", 1)
    drawn = [_in_a_child(lambda: generator.bytes(32) + of_producer.bytes(32)) for _ in range(2)]
    drawn.append(generator.bytes(32) + of_producer.bytes(32))
    parts = [each[:32] for each in drawn] + [each[32:] for each in drawn]
    if len(set(parts)) < len(parts):
        return "two processes draw the same numbers after a fork"
    return ""


def _in_a_child(draw: Callable[[], bytes]) -> bytes:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # The child must not run the parent's cleanup or flush its buffers.
        try:
            os.write(writer, draw())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    return drawn


class _Crash(Exception):  # noqa: N818 - it is what happens
    pass


class _CrashingDriver(MemoryDriver):
    """Driver that raises `_Crash` at the first record of reports, once requested."""

    crashes = False

    def carry_out(self, action: Any) -> object:
        if self.crashes and isinstance(action, Append):
            raise _Crash
        return super().carry_out(action)


def _crash(case: Case) -> str:
    job = job_of(case, epochs=EPOCHS, minimum=DEVICES)
    values, _ = other_values(case, EPOCHS, DEVICES, np.array([0]))
    log = MemoryLog()
    with tempfile.TemporaryDirectory() as folder:
        driver = _CrashingDriver(log)
        producer = _producer(job, driver, Path(folder))
        producer.enroll([str(user) for user in range(DEVICES)])
        driver.crashes = True
        producer.report_all(1, values[0])
        try:
            producer.close(1)
        except _Crash:
            pass
        else:
            return "sends an epoch without a record"
        drawn = [(role, partition, value) for _, role, partition, value in producer.store.outbox()]
        producer.shut()
        again = _producer(job, MemoryDriver(log), Path(folder))
        try:
            again.report_all(1, values[0])
            again.close(1)
        except ProducerError:
            pass
        else:
            return "randomizes an epoch again that was stored before a crash"
        finally:
            again.shut()
    sent = [
        value
        for role in job.route.reports
        for partition in range(len(job.start_offsets[role]))
        for value in log.values(role, partition)
    ]
    if not drawn or sorted(sent) != sorted(value for _, _, value in drawn):
        return "sends bytes after a crash other than those drawn before it"
    return ""


def _producer(job: DeployedJob, transport: MemoryDriver, folder: Path) -> Producer:
    return Producer(job, folder / "producer", name="attacked", transport=transport)


def _restart(case: Case) -> str:
    try:
        restored_devices_continue(case)
    except DoesNotConformError as error:
        return str(error)
    return ""


def _drawn_once(case: Case) -> str:
    """Return which random state drawn at enrollment changes later, or an empty text."""
    devices, others = (case.protocol.randomizer(case.law) for _ in range(2))
    for each in (devices, others):
        each.enroll(_MANY, cryptographic_generator())
    before = {
        name: array.copy()
        for name, array in devices.state_arrays().items()
        if not np.array_equal(array, others.state_arrays()[name])
    }
    for epoch, values in enumerate(case.mixed_values(_MANY), 1):
        devices.report(epoch, values, None, cryptographic_generator())
        for name, array in before.items():
            if not np.array_equal(devices.state_arrays()[name], array):
                return f"changes {name}, which was drawn at enrollment, at epoch {epoch}"
    return ""


class _Listening(MemoryLog):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def append(self, action: Append) -> None:
        self.written += [action.value, action.key or b"", repr(action.headers).encode()]
        super().append(action)


def _secrets(case: Case) -> str:
    job = job_of(case, epochs=EPOCHS, minimum=DEVICES)
    values, _ = other_values(case, EPOCHS, DEVICES, np.array([0]))
    log = _Listening()
    randomness = cryptographic_generator()

    def generators(purpose: str, number: int) -> np.random.Generator:
        return randomness

    cluster = SimulatedCluster(job, generators, log=log)
    producer = Producer(cluster.job, None, name="attacked", transport=MemoryDriver(log))
    producer.enroll([str(user) for user in range(DEVICES)])
    secrets = _bytes_of(producer)
    for epoch in range(1, EPOCHS + 1):
        producer.report_all(epoch, values[epoch - 1])
        producer.close(epoch)
        cluster.settle()
        secrets |= _bytes_of(producer)
    producer.shut()
    published = [
        *log.written,
        *(repr(worker.stage.heartbeat()).encode() for worker in cluster.workers.values()),
    ]
    for secret, name in secrets.items():
        if any(secret in each or secret.hex().encode() in each for each in published):
            return f"a topic or heartbeat contains {name} of a device"
    return ""


def _bytes_of(producer: Producer) -> dict[bytes, str]:
    """Return the secret states of devices that are too long to occur by chance."""
    found: dict[bytes, str] = {}
    for name, array in producer.store.arrays().items():
        for row in array:
            secret = row.tobytes()
            if len(secret) >= _LONG_ENOUGH and len({*secret}) >= _LONG_ENOUGH // 2:
                found[secret] = name
    return found
