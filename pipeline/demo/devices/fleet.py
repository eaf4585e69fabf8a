"""A part of the fleet: one process with many devices that report over HTTP.

``python -m dpstream.pipeline.demo.devices.fleet NUMBER COUNT URL...`` prints a JSON line per epoch,
with the true number of devices that have the value 1, and the number of reports by outcome. Without
arguments, the command prints the job file.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.parent_watch import follow
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.results.known_digits import known_count
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.envelopes import CONTENT_TYPE, ContentFormat, encode_body, encode_envelope

NAME: Final = "dark-mode"
EPOCH_SECONDS: Final = 15
EPOCHS: Final = 240
"""Number of epochs in the job; together, they last one hour."""
CHANGES: Final = 17
"""Maximum number of changes per fleet device over all epochs, as counted by a test."""
DEVICES: Final = 10_000
COLLECTORS: Final = 2


def job_text(now: datetime) -> str:
    """Return the job file, with a calendar that starts at the latest full quarter minute.

    >>> print(job_text(datetime(2026, 1, 1, 12, 0, 7, tzinfo=UTC)).splitlines()[3])
    epochs: {count: 240, start: "2026-01-01T12:00:00Z", length: PT15S}
    """
    second = now.second // EPOCH_SECONDS * EPOCH_SECONDS
    start = now.astimezone(UTC).replace(second=second, microsecond=0)
    return f"""\
name: {NAME}
protocol: value_stream
parameters: {{epsilon: 4, max_changes: {CHANGES}}}
epochs: {{count: {EPOCHS}, start: "{start:%Y-%m-%dT%H:%M:%SZ}", length: PT{EPOCH_SECONDS}S}}
shuffle: {{minimum: 100, grace: PT8S}}
devices: {{late: PT4S}}
"""


def have_it_on(record: EstimateRecord) -> str | None:
    """Format the estimated number of devices with dark mode, rounded to its accuracy, or None."""
    estimate = record.headline
    if estimate is None or estimate.value is None:
        return None
    assert estimate.ci95_low is not None
    assert estimate.ci95_high is not None
    known = known_count(estimate.value, estimate.ci95_low, estimate.ci95_high, record.population)
    interval = "" if known.may_be_none else f" (95 % CI {known.low:,} to {known.high:,})"
    about, number = known.words
    return f"{about.lower()} {number} of {record.population:,} devices have dark mode on{interval}"


if __name__ == "__main__":
    print(job_text(datetime.now(UTC)), end="")


CONNECTIONS: Final = 16
"""Number of open connections for each fleet process."""
_TRIES: Final = 8
_PAUSE: Final = 0.5
_LATEST: Final = 0.6
"""Fraction of an epoch, from its start, in which devices report at random times."""
_DAY: Final = 480.0
"""Period of usage in seconds: users turn on dark mode in their evening."""


@dataclass(frozen=True, slots=True)
class JobStatement:
    deployment: bytes
    fingerprint: bytes
    protocol: str
    law: Any
    content_format: ContentFormat
    start: int
    length: int
    first: int
    count: int

    @classmethod
    def read(cls, description: dict[str, str]) -> JobStatement:
        """Parse a description's statement; only the visitor's device verifies the signature."""
        body = json.loads(base64.b64decode(description["statement"]))
        epochs = body["epochs"]
        parameters = PROTOCOLS[body["protocol"]].parameters
        return cls(
            bytes.fromhex(body["deployment"]),
            bytes.fromhex(body["fingerprint"]),
            body["protocol"],
            PROTOCOLS[body["protocol"]].law(parameters).from_json(body["law"]),
            ContentFormat(**body["content"]),
            epochs["start"],
            epochs["milliseconds"],
            epochs["first"],
            epochs["count"],
        )

    def epoch_at(self, now: float) -> int:
        return int(1000 * now - self.start) // self.length + 1

    def begins(self, epoch: int) -> float:
        return (self.start + (epoch - 1) * self.length) / 1000


class Fleet:
    """Devices whose users occasionally turn dark mode on and off.

    `seed` determines the users' behavior, which is not secret here. Devices' randomness is
    cryptographic.
    """

    def __init__(self, statement: JobStatement, count: int, seed: int) -> None:
        self._statement = statement
        self._rng = cryptographic_generator()
        self._devices = PROTOCOLS[statement.protocol].randomizer(statement.law)
        self._devices.enroll(count, self._rng)
        self._ids = [secrets.token_bytes(16) for _ in range(count)]
        self._enrolled = [False] * count
        people = np.random.default_rng(seed)
        self._turns_on = people.beta(5, 3, count) * _DAY
        self._stays_on = people.uniform(0.15, 0.75, count) * _DAY
        self._never = people.random(count) < 0.2

    def values(self, moment: float) -> NDArray[np.int8]:
        since = (moment - self._turns_on) % _DAY
        on = (since < self._stays_on) & (moment > self._turns_on * 0.3) & ~self._never
        return on.astype(np.int8)

    def draw(self, epoch: int, values: NDArray[np.int8]) -> list[tuple[int, bytes]]:
        statement = self._statement
        words = written_out(self._devices.report(epoch, values, None, self._rng))
        assert len(words) == len(self._ids)
        return [
            (
                number,
                encode_body(
                    statement.deployment,
                    statement.fingerprint,
                    epoch,
                    None,
                    [
                        encode_envelope(
                            device,
                            secrets.token_bytes(16),
                            not self._enrolled[number],
                            statement.content_format.pack(words[number : number + 1]),
                        )
                    ],
                ),
            )
            for number, device in enumerate(self._ids)
        ]

    def acknowledged(self, number: int) -> None:
        self._enrolled[number] = True


async def run(number: int, count: int, urls: Sequence[str]) -> None:
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        statement = await _fetch_statement(session, urls)
        fleet = Fleet(statement, count, number)
        epoch = max(statement.first, statement.epoch_at(time.time()) + 1)
        while epoch <= statement.count:
            await asyncio.sleep(max(0.0, statement.begins(epoch) - time.time()))
            values = fleet.values(statement.begins(epoch) - statement.begins(statement.first))
            outcomes = await _send(
                session, urls, statement, fleet, epoch, fleet.draw(epoch, values)
            )
            line = {"epoch": epoch, "devices": count, "true": int(values.sum()), **outcomes}
            print(json.dumps(line), flush=True)
            epoch = max(epoch + 1, statement.epoch_at(time.time()))


async def _fetch_statement(session: aiohttp.ClientSession, urls: Sequence[str]) -> JobStatement:
    while True:
        try:
            async with session.get(f"{urls[0]}/v1/jobs/{NAME}") as answer:
                if answer.status == 200:
                    return JobStatement.read(await answer.json(content_type=None))
        except (aiohttp.ClientError, TimeoutError):
            pass
        await asyncio.sleep(_PAUSE)


async def _send(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    statement: JobStatement,
    fleet: Fleet,
    epoch: int,
    bodies: Sequence[tuple[int, bytes]],
) -> dict[str, int]:
    """Send every device's report at a random time; return the number of reports per outcome."""
    begins, length = statement.begins(epoch), statement.length / 1000
    moments = sorted(random.uniform(0, _LATEST) * length for _ in bodies)
    order = iter(list(zip(moments, random.sample(bodies, len(bodies)), strict=True)))
    outcomes: Counter[str] = Counter()

    async def send_some() -> None:
        for moment, (number, body) in order:
            await asyncio.sleep(max(0.0, begins + moment - time.time()))
            outcome = await _deliver(session, urls, body)
            outcomes[outcome] += 1
            if outcome == "taken":
                fleet.acknowledged(number)

    await asyncio.gather(*(send_some() for _ in range(CONNECTIONS)))
    return dict(outcomes)


async def _deliver(session: aiohttp.ClientSession, urls: Sequence[str], body: bytes) -> str:
    for attempt in range(_TRIES):
        url = f"{random.choice(urls)}/v1/jobs/{NAME}/reports"
        try:
            async with session.post(
                url, data=body, headers={"Content-Type": CONTENT_TYPE}
            ) as answer:
                if answer.status == 202:
                    return "taken"
                if answer.status in (400, 409, 410, 413):
                    return f"rejected with status {answer.status}"
        except (aiohttp.ClientError, TimeoutError):
            pass
        await asyncio.sleep(_PAUSE * (attempt + 1) * random.random())
    return "given up"


if __name__ == "__main__":
    follow()
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
