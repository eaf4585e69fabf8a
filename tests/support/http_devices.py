"""Devices that report over HTTP to several collectors and resend at random."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.envelopes import CONTENT_TYPE, encode_body, encode_envelope
from dpstream.topics.sealing import Lock, device_context, key_id, seal

_PAUSE = 0.3


@dataclass
class HttpDevices:
    """Devices whose draws are a function of a seed.

    Attributes:
        copies: Maximum number of times an acknowledged report is resent.
        token: Function from a device's number to its access token.
        statuses: Number of responses by status; 0 means no response.
        acknowledged: Acknowledged devices and epochs.
    """

    job: DeployedJob
    count: int
    seed: int = 1
    copies: int = 3
    token: Callable[[int], str] | None = None
    statuses: Counter[int] = field(default_factory=Counter)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._devices = []
        for number in range(self.count):
            device = self.job.randomizer()
            device.enroll(1, seeded_generator(self.seed, number))
            self._devices.append(device)
        self._bodies: dict[tuple[int, int], bytes] = {}
        self.words: dict[int, list[np.ndarray]] = {}

    def draw(self, epoch: int) -> None:
        job = self.job
        assert job.devices is not None
        key = job.devices.key_at(epoch)
        for number, device in enumerate(self._devices):
            value = np.array([(number + epoch // 3) % 3 == 0], np.int8)
            rng = seeded_generator(self.seed, number, epoch)
            words = written_out(device.report(job.epochs.local(epoch), value, None, rng))
            self.words.setdefault(epoch, []).append(words)
            report = rng.bytes(16)
            content = job.content_format.pack(words)
            if key is not None:
                context = device_context(job.deployment, job.fingerprint, epoch, report)
                content = seal(content, Lock(key, context))
            envelope = encode_envelope(number.to_bytes(16, "little"), report, True, content)
            self._bodies[epoch, number] = encode_body(
                job.deployment,
                job.fingerprint,
                epoch,
                None if key is None else key_id(key),
                [envelope],
            )

    def integers(self, epoch: int) -> bytes:
        """Return the aggregated state of the reports of all devices."""
        state = self.job.aggregator()
        state.add(self.job.epochs.local(epoch), np.concatenate(self.words[epoch]), None)
        return state.to_bytes()

    async def send(self, epochs: Iterable[int], urls: Sequence[str]) -> None:
        """Send every device's reports, in order of epochs, until they are acknowledged."""
        times = times_of(self.job)
        assert times is not None
        connector = aiohttp.TCPConnector(limit=60)
        timeout = aiohttp.ClientTimeout(total=5)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as sending,
        ):
            for epoch in epochs:
                while times.epoch_of(int(time.time() * 1000)) < epoch:
                    await asyncio.sleep(0.1)
                self.draw(epoch)
                for number in random.sample(range(self.count), self.count):
                    sending.create_task(self._deliver(session, urls, epoch, number))

    async def _deliver(
        self, session: aiohttp.ClientSession, urls: Sequence[str], epoch: int, number: int
    ) -> None:
        more = random.randrange(self.copies)
        await asyncio.sleep(random.random())
        while (epoch, number) not in self.acknowledged or more:
            status = await self._post(session, random.choice(urls), epoch, number)
            self.statuses[status] += 1
            if status == 202:
                more -= (epoch, number) in self.acknowledged
                self.acknowledged.add((epoch, number))
            elif (epoch, number) in self.acknowledged:
                # An acknowledged report was resent, so no response is needed.
                return
            elif status in (0, 429, 503):
                await asyncio.sleep(_PAUSE * random.random())
            else:
                raise AssertionError(f"got status {status} for a report of epoch {epoch}")

    async def _post(self, session: aiohttp.ClientSession, url: str, epoch: int, number: int) -> int:
        headers: Mapping[str, str] = {"Content-Type": CONTENT_TYPE}
        if self.token is not None:
            headers = {**headers, "Authorization": f"Bearer {self.token(number)}"}
        body = self._bodies[epoch, number]
        path = f"/v1/jobs/{self.job.name}/reports"
        try:
            async with session.post(url + path, data=body, headers=headers) as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError):
            return 0
