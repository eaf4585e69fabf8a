"""Independence of enrollment and presence, which are public, from values.

Two runs have the same randomness, but different values of users who enroll, are absent and leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Final

from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_punctuation
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role
from tests.attacks.promises import broken
from tests.support.new_jobs import new_job

_USERS: Final = tuple(f"user {number}" for number in range(24))
_SOME: Final = _USERS[:5]
_LEAVING: Final = _USERS[10:]


def attack_presence() -> Iterator[str]:
    return broken(
        {
            "only named users are present": _silent,
            "unenrolled users are rejected independently of values": _unknown_users,
            "presence of leaving users is independent of values": _leaving,
        },
    )


@cache
def _job() -> DeployedJob:
    made = new_job("audit", "future_rand", {"epsilon": 1, "max_changes": 2}, count=8)
    return deploy_job(made, deployed_at=0, deployment=bytes(16))


class _Watched:
    def __init__(self) -> None:
        self._job = _job()
        self._log = MemoryLog()
        self.producer = Producer(
            self._job,
            None,
            name="watched",
            transport=MemoryDriver(self._log),
            generators=lambda purpose, number: seeded_generator(len(purpose), number),
        )

    def close(self, epoch: int, values: Mapping[str, int]) -> None:
        self.producer.report(epoch, values)
        self.producer.close(epoch)

    @property
    def published(self) -> list[tuple[int, int]]:
        """Numbers of present and of enrolled devices, by epoch."""
        values = [
            value
            for partition in range(len(self._job.start_offsets[Role.REPORTS]))
            for value in self._log.values(Role.REPORTS, partition)
            if kind_of(value) is RecordType.PUNCTUATION
        ]
        found = sorted(map(decode_punctuation, values), key=lambda each: each.epoch)
        return [(each.contributors, each.population) for each in found]


def _silent() -> str:
    for value in (0, 1):
        watched = _Watched()
        watched.producer.enroll(_USERS)
        named = (_USERS, _SOME, (), _USERS[3:9])
        for epoch, users in enumerate(named, 1):
            watched.close(epoch, dict.fromkeys(users, value))
            # Rows that arrive after their epoch is closed must not count for another epoch.
            with suppress(ProducerError):
                watched.producer.report(epoch, dict.fromkeys(_USERS, value))
        if watched.published != [(len(users), len(_USERS)) for users in named]:
            return "a user present at one epoch reports at another while absent"
    return ""


def _unknown_users() -> str:
    seen: list[tuple[list[str], list[tuple[int, int]]]] = []
    for value in (0, 1):
        watched = _Watched()
        watched.producer.enroll(_USERS)
        outcomes: list[str] = []
        for epoch in (1, 2):
            try:
                watched.producer.report(epoch, {"unknown user": value})
                outcomes.append("accepted")
            except ProducerError as error:
                outcomes.append(str(error))
            watched.close(epoch, dict.fromkeys(_USERS, value))
        seen.append((outcomes, watched.published))
    if seen[0] != seen[1]:
        return "enrollment or rejection depends on the value"
    if any(population > len(_USERS) for _, published in seen for _, population in published):
        return "a report enrolls its user, at a time that can depend on the value"
    return ""


def _leaving() -> str:
    seen = set()
    for value in (0, 1):
        watched = _Watched()
        watched.producer.enroll(_USERS)
        watched.close(1, dict.fromkeys(_USERS, value))
        watched.producer.withdraw(_LEAVING)
        for epoch in (2, 3):
            watched.close(epoch, dict.fromkeys(_SOME, 1))
        seen.add(tuple(watched.published))
    return "presence of a leaving user depends on the last value" if len(seen) > 1 else ""
