"""Independence of sizes and numbers of records and ciphertexts from their content.

The values of a producer's devices are extreme: no items, all the same, all different. If shuffled
messages hide devices, their number is secret, and a table of counts must not grow with its counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.audit.plans import job_of
from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, with_own_keys
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.sealed_batches import decode_sealed_batch, open_batch
from tests.attacks.promises import broken

_DEVICES: Final = 400
"""Number of devices that exceeds a one-byte count."""
_FEW: Final = 3
_NOBODY: Final = "11" * 32
_SEALED: Final[dict[str, Any]] = {
    "name": "audit",
    "protocol": "fragments",
    "parameters": {"epsilon": 2, "delta": 1e-3, "domain": ["a", "b", "c"], "reports": 4},
    "epochs": {"count": 1},
    "shuffle": {"minimum": 100, "instances": 2},
    "sealed": {"aggregate": [_NOBODY], "stages": [["22" * 32], ["33" * 32]]},
    "topics": {"partitions": 1},
}


def attack_sizes(case: Case) -> Iterator[str]:
    job = job_of(case, epochs=1, minimum=_DEVICES)
    return broken(
        {"number and length of records are independent of values": lambda: _lengths(job, case)},
    )


def attack_ciphertexts() -> Iterator[str]:
    return broken(
        {"number of ciphertexts for every shuffler is independent of values": _ciphertexts},
    )


def _lengths(job: DeployedJob, case: Case) -> str:
    seen = set()
    for values in _extremes(case, len(case.values)):
        try:
            sent = _sent(job, values)
        except ProducerError as error:
            return f"sending an epoch fails for some values: {error}"
        seen.add(tuple((role, partition, len(value)) for role, partition, value in sent))
    return "" if len(seen) == 1 else "number or length of records depends on values"


def _extremes(case: Case, size: int) -> Iterator[NDArray[Any]]:
    for indices in (
        np.zeros(_DEVICES, np.intp),
        np.full(_DEVICES, size - 1),
        np.arange(_DEVICES) % size,
    ):
        yield case.array_of(indices)


def _sent(job: DeployedJob, values: NDArray[Any]) -> list[tuple[str, int, bytes]]:
    log = MemoryLog()
    producer = Producer(job, None, name="attacked", transport=MemoryDriver(log))
    producer.enroll([str(user) for user in range(len(values))])
    producer.report_all(1, values)
    producer.close(1)
    producer.shut()
    return [
        (role.value, partition, value)
        for role in job.route.reports
        for partition in range(len(job.start_offsets[role]))
        for value in log.values(role, partition)
    ]


def _ciphertexts() -> str:
    job, keys = with_own_keys(deploy_job(make_job(_SEALED), deployed_at=0))
    seen = set()
    for held in ([1], [0], [1, 2, 3]):
        values = np.resize(np.array(held, np.int8), (_FEW, 1))
        seen.add(tuple(_opened(job, keys, _sent(job, values))))
    return "" if len(seen) == 1 else "number of ciphertexts reveals the number of messages"


def _opened(
    job: DeployedJob, keys: KeyRing, records: list[tuple[str, int, bytes]]
) -> Iterator[tuple[str, int]]:
    locks = {role.value: job.locks.of_batch(role, 1) for role in job.route.reports}
    for role, _, value in records:
        if kind_of(value) is RecordType.SEALED_BATCH:
            key = keys.find(locks[role].public_key)
            assert key is not None
            yield role, open_batch(decode_sealed_batch(value), key, locks[role].context).words.rows
