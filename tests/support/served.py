"""Live page with its threads, in this process."""

from __future__ import annotations

import asyncio

from dpstream.pipeline.cli.inputs import load_ground_truth
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.serve.background import Background
from dpstream.pipeline.serve.connections import Limits
from dpstream.pipeline.serve.follower import JobFollower, KafkaSource, Reader
from dpstream.pipeline.serve.server import Site, SiteSettings


class Served:
    def __init__(self, connection: Connection, job: str) -> None:
        self.site = Site(
            SiteSettings(jobs=(job,)),
            lambda: Cluster(connection),
            load_ground_truth,
            print,
            Limits(),
        )
        self.follower = JobFollower(KafkaSource(connection), Reader([job]), self.site.tell)
        self.background = Background(
            lambda: Cluster(connection), self.site.shown, self.site, self.site.job_store.clock
        )

    async def __aenter__(self) -> str:
        address = await self.site.start()
        self.follower.start()
        self.background.start()
        return address

    async def __aexit__(self, *error: object) -> None:
        self.follower.end()
        self.background.end()
        await self.site.stop()
        await asyncio.to_thread(self.follower.join, 20)
        await asyncio.to_thread(self.background.join, 20)
