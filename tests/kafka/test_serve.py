"""Test the live page on a real broker: latency of estimates, and an outage."""

from __future__ import annotations

import asyncio
import secrets
import time
from queue import Queue

import aiohttp

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.serve.follower import JobFollower, KafkaSource, News, Reader
from dpstream.pipeline.serve.job_store import Jobs
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import JOBS_TOPIC, Role, jobs_topic
from tests.support.live_page import messages
from tests.support.served import Served
from tests.support.small_run import job_text

EPOCHS = 30

"""Wait until a message with these values was sent."""


def publish(cluster: Cluster, job: DeployedJob, epoch: int) -> None:
    estimate = Estimate(float(epoch), 1.0, epoch - 2.0, epoch + 2.0, 100, 100)
    record = EstimateRecord(
        job.deployment,
        epoch,
        WindowStatus.RELEASED,
        time.time_ns() // 1_000_000,
        100,
        100,
        estimate,
        {},
    )
    cluster.append(job.topic(Role.ESTIMATES), record.to_bytes())


def test_page_finds_the_last_job_in_a_long_jobs_topic(
    bootstrap_servers: str, job_name: str
) -> None:
    """``dpstream.jobs`` exceeds one poll, but the first message must contain all jobs."""
    connection = Connection((bootstrap_servers,))
    with Cluster(connection) as cluster:
        cluster.create_topics([jobs_topic(1)])
        sent = [
            cluster.producer.send(JOBS_TOPIC, b"{}", key=b"charge/%s-%d" % (job_name.encode(), at))
            for at in range(1_200)
        ]
        for each in sent:
            each.get(20)
        deploy(cluster, parse_job(job_text(job_name)), deployment=secrets.token_bytes(16), now=0)
    received: Queue[News] = Queue()
    follower = JobFollower(KafkaSource(connection), Reader([job_name]), received.put)
    follower.start()
    try:
        while not isinstance(first := received.get(timeout=30), Jobs):
            pass
        assert list(first.jobs) == [job_name]
    finally:
        follower.end()
        follower.join(20)


def test_page_sends_estimates_within_a_second(bootstrap_servers: str, job_name: str) -> None:
    connection = Connection((bootstrap_servers,))

    async def test(cluster: Cluster, job: DeployedJob) -> list[float]:
        served = Served(connection, job.name)
        async with served as address, aiohttp.ClientSession() as client:
            while job.name not in served.site.job_store.jobs:
                await asyncio.sleep(0.01)
            delays = []
            async with client.ws_connect(f"{address}ws?job={job.name}") as viewer:
                for epoch in range(1, EPOCHS + 1):
                    sent = time.monotonic()
                    await asyncio.to_thread(publish, cluster, job, epoch)
                    assert (await messages(viewer, "epoch"))["epoch"] == epoch
                    delays.append(time.monotonic() - sent)
                    served.site.look_who_watches()
            # Use another viewer: the first one might have received the constants, which are
            # sent once.
            async with client.ws_connect(f"{address}ws?job={job.name}") as viewer:
                served.site.look_who_watches()
                pipeline = await messages(viewer, "pipeline")
                assert [stage["stage"] for stage in pipeline["stages"]] == [
                    *("shuffle", "aggregate", "publish")
                ]
            return sorted(delays)

    with Cluster(connection) as cluster:
        job = deploy(
            cluster, parse_job(job_text(job_name, epochs=EPOCHS)), deployment=bytes(16), now=0
        )
        delays = asyncio.run(test(cluster, job))
    print(
        "from sent by a publisher to received by a viewer: "
        f"median {1000 * delays[EPOCHS // 2]:.0f} ms, at most {1000 * delays[-1]:.0f} ms"
    )
    # The limit is generous: on an idle machine, the delay is tens of milliseconds.
    assert delays[EPOCHS // 2] < 1
