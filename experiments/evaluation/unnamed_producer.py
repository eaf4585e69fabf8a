"""Producers in a simulation whose users have no names.

Devices draw and send as in a `Producer`. Only the list of users is omitted, because it would take
minutes and gigabytes for many millions of users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.topics.fixed_sizes import Slots, fixed_size
from dpstream.topics.frames import U4_MAX, CodecError

MOST_TOPIC_BYTES: Final = 1 << 30
"""Maximum size of an epoch's reports (bytes) that a simulation buffers in memory."""


class _Unnamed(dict[str, int]):
    """Empty user index with the length of a full one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __len__(self) -> int:
        return self._count


class UnnamedProducer(Producer):
    """An in-memory producer of unnamed devices, all present at every epoch."""

    def enroll_unnamed(self, count: int) -> None:
        self._randomizer.enroll(count, self._generators("enroll", 0))
        self._positions = _Unnamed(count)
        self._grow()


def producers_needed(job: DeployedJob, users: int) -> int:
    """Return the number of producers to use, each of which sends up to 2^32 - 1 messages."""
    shuffling, law = job.protocol_entry.shuffling, job.law
    if shuffling is None:
        return 1
    producers = max(1, shuffling.capacity(law, 1, users) // U4_MAX)
    while producers < users and shuffling.capacity(law, 1, -(-users // producers)) > U4_MAX:
        producers += 1
    return producers


def topic_bytes(job: DeployedJob, users: int) -> int | None:
    """Return the size of an epoch's reports in bytes, or None if their number is not fixed."""
    shuffling, law = job.protocol_entry.shuffling, job.law
    if shuffling is None:
        return None
    producers = producers_needed(job, users)
    try:
        size = fixed_size(job.message_format, shuffling.capacity(law, 1, -(-users // producers)))
    except CodecError:
        return None
    each = (
        size.rows * job.message_format.report_bytes
        if isinstance(size, Slots)
        else size.cells * size.count_bytes
    )
    return producers * each


def generators_of(
    generators: Callable[[str, int], np.random.Generator], producer: int
) -> Callable[[str, int], np.random.Generator]:
    """Return one producer's generators, by purpose and number, derived from those of the run."""
    return lambda purpose, number: generators(purpose, number + (producer << 32))
