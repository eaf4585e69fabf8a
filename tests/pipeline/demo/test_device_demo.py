"""Test the demos: device requests are accepted, and the output fits a terminal."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.collector.intake import Intake, IntakeRules
from dpstream.pipeline.demo import (
    demo_change_log,
    demo_job_file,
    demo_shuffled_job_file,
    demo_stream_job_file,
)
from dpstream.pipeline.demo.devices.fleet import (
    EPOCH_SECONDS,
    NAME,
    Fleet,
    JobStatement,
    job_text,
)
from dpstream.pipeline.demo.devices.visitor_page import application
from dpstream.pipeline.demo.walkthrough import (
    PEOPLE,
    STUDENT,
    WalkthroughScreen,
    explain_estimates,
    explain_guarantee,
    explain_reports,
    explain_statistic,
    values_of,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.descriptions import described
from dpstream.pipeline.jobs.job_files import load_job, parse_job
from dpstream.pipeline.jobs.key_files import CollectorKey
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.loose_batches import decode_enrollments, decode_loose_batch
from dpstream.topics.manifests import WindowStatus

KEY = CollectorKey(bytes(32))
NOW = datetime(2026, 5, 1, 12, 0, 7, tzinfo=UTC)


def deployed() -> DeployedJob:
    job = deploy_job(parse_job(job_text(NOW)), deployed_at=int(NOW.timestamp() * 1000))
    job = job.model_copy(update={"collector_key": KEY.digest})
    return described(job, Ed25519PrivateKey.generate())


def test_reports_from_the_demo_fleet_are_accepted_and_enroll_once() -> None:
    job = deployed()
    assert job.signed_description is not None
    statement = JobStatement.read(job.signed_description.encoded())
    assert (statement.deployment, statement.law) == (job.deployment, job.law)
    assert statement.epoch_at(NOW.timestamp()) == 1
    assert statement.begins(2) - statement.begins(1) == EPOCH_SECONDS
    fleet, intake, devices = Fleet(statement, 50, seed=1), Intake(job, KEY), set()
    for epoch in (1, 2, 3):
        values = fleet.values(150.0 * epoch)
        bodies = dict(fleet.draw(epoch, values))
        assert len({len(body) for body in bodies.values()}) == 1
        rules = intake.rules(bodies[0])
        assert isinstance(rules, IntakeRules)
        assert rules.rejection(len(bodies[0]), int(1000 * statement.begins(epoch)) + 1) is None
        taken = intake.take(rules, list(bodies.values()), [None] * 50)
        assert taken.rejections == [None] * 50
        (batch,) = map(decode_loose_batch, taken.batches)
        assert len(set(batch.tags.tolist())) == 50
        enrolled = [tag for each in taken.enrollments for tag in decode_enrollments(each).tags]
        # The first ten are never acknowledged.
        assert len(enrolled) == (50 if epoch == 1 else 10)
        devices.update(enrolled)
        for number in range(10, 50):
            fleet.acknowledged(number)
    assert len(devices) == 50


def test_page_is_complete_and_shows_only_public_data(tmp_path: Path) -> None:
    ground_truth = tmp_path / "ground-truth.jsonl"
    ground_truth.write_text('{"epoch": 1, "true": 7, "taken": 9}\n')
    settings = {
        "job": NAME,
        "collectors": ["http://127.0.0.1:1"],
        "signer": "00",
        "operators": "http://127.0.0.1:2/",
        "devices": 10,
        "ground_truth": str(ground_truth),
    }
    epochs: list[dict[str, Any]] = [{"epoch": 1, "value": 3.0, "true": 7}]
    published: Any = SimpleNamespace(epochs=lambda file: epochs if file == ground_truth else [])

    async def work() -> None:
        async with TestClient(TestServer(application(settings, published))) as client:
            page = await client.get("/")
            text = await page.text()
            assert page.headers["Content-Type"].startswith("text/html")
            assert (
                "connect-src 'self' http://127.0.0.1:1;"
                in (page.headers["Content-Security-Policy"])
            )
            assert ground_truth.name not in await (await client.get("/config.json")).text()
            assert await (await client.get("/estimates.json")).json() == epochs
            assert (await client.get("/static/none.js")).status == 404
            assert (await client.get("/../page.py")).status == 404
            # Every loaded file exists, and so do its own imports.
            waiting = re.findall(r'(?:href|src)="(/static/[^"]+)"', text)
            loaded: Counter[str] = Counter()
            while waiting:
                path = waiting.pop()
                loaded[path] += 1
                answer = await client.get(path)
                assert answer.status == 200, path
                if loaded[path] == 1 and path.endswith(".js"):
                    source = await answer.text()
                    for other in re.findall(r"(?:from|import)\s*\(?'([^']+)'", source):
                        if other.startswith("."):
                            other = str((Path(path).parent / other).resolve())
                        if other.startswith("/"):
                            waiting.append(other)
            assert "/device/client/index.js" in loaded
            assert "/device/byte_generator.js" in loaded

    asyncio.run(work())


WEEKS = 170


@pytest.fixture(scope="module")
def jobs() -> list[DeployedJob]:
    files = demo_job_file(), demo_stream_job_file(), demo_shuffled_job_file()
    return [deploy_job(load_job(file), deployed_at=0, deployment=bytes(16)) for file in files]


def records(job: DeployedJob) -> list[EstimateRecord]:
    def estimate(epoch: int) -> Estimate:
        return Estimate.around(7_000.0 + 60 * min(epoch, 100), 100.0, 196.0, PEOPLE, PEOPLE)

    return [
        EstimateRecord(
            job.deployment,
            epoch,
            WindowStatus.RELEASED,
            1 << 41,
            PEOPLE,
            PEOPLE,
            estimate(epoch),
            {},
        )
        for epoch in range(1, WEEKS + 1)
    ]


@pytest.fixture(scope="module")
def walkthrough(jobs: list[DeployedJob]) -> list[WalkthroughScreen]:
    return [
        explain_statistic(jobs, PEOPLE),
        explain_reports(jobs[1], values_of(demo_change_log(), STUDENT, WEEKS)),
        explain_estimates([(job, records(job)) for job in jobs], "http://127.0.0.1:8765/"),
        explain_guarantee(jobs),
    ]
