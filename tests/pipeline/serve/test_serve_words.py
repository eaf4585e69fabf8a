"""What the page's API says for readers: a job's own words, dates, changes, and who is trusted."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.sealed import SHARERS
from dpstream.pipeline.jobs.sealing_keys import make_key_pair
from dpstream.pipeline.serve.trust_view import parties_of, trust_body
from dpstream.topics.manifests import Fate
from tests.support import shown_jobs
from tests.support.live_page import deploy_text, live_page, publish, run
from tests.support.memory_cluster import MemoryCluster

BERLIN = ZoneInfo("Europe/Berlin")
DAYS = (
    "name: visits\nprotocol: value_stream\nparameters: {epsilon: 1, changes: 2}\n"
    "epochs: {count: 12, start: 2024-03-30, length: P1D, timezone: Europe/Berlin}\n"
    "title: Patients on the ward\nunit: patients\ndescription: In the morning.\n"
)
SHUFFLED = (
    "name: trusted\nprotocol: shuffled_counts\n"
    "parameters: {epsilon: 1, delta: 1e-6, changes: 4}\nepochs: {count: 12}\n"
    "shuffle: {minimum: 1000}\n"
)


def estimate(value: float, half: float = 200.0) -> Estimate:
    return Estimate.around(value, half / 1.96, half, 80, 20_000)


def test_days_begin_when_they_do_in_the_zone_of_the_job() -> None:
    async def test() -> None:
        cluster = MemoryCluster()
        job = deploy_text(cluster, DAYS)
        for epoch in (1, 2, 3):
            publish(cluster, job, epoch, estimate(5_000.0))
        async with live_page(cluster) as page:
            midnights = [datetime(2024, 3, day, tzinfo=BERLIN) for day in (30, 31)]
            midnights.append(datetime(2024, 4, 1, tzinfo=BERLIN))
            moments = [int(1000 * each.astimezone(UTC).timestamp()) for each in midnights]
            # The second day has 23 hours.
            assert [late - early for early, late in itertools.pairwise(moments)] == [
                24 * 3_600_000, 23 * 3_600_000,
            ]  # fmt: skip
            (curve,) = (await page.get("/api/jobs/visits/curve"))["series"]
            assert curve["begins"] == moments
            table = await page.get("/api/jobs/visits/table")
            assert [row["begins"] for row in table["rows"]] == moments[::-1]
            (recent,) = (await page.get("/api/recent?epochs=2"))["jobs"].values()
            assert recent["begins"] == moments[1:]
            async with page.view("job=visits") as socket:
                first = await socket.receive_json()
                assert first["jobs"][0]["calendar"]["zone"] == "Europe/Berlin"
                said = [await socket.receive_json() for _ in moments]
                assert [each["begins"] for each in said] == moments
            figure = await page.body("/figures.json?job=visits")
            assert b"day (Europe/Berlin)" in figure
            assert b"patients" in figure
            assert b"Europe/Berlin" not in await page.body("/figures.json?job=visits&axis=numbers")

    run(test)


def test_a_job_is_told_of_in_its_own_words() -> None:
    async def test() -> None:
        cluster = MemoryCluster()
        job = deploy_text(cluster, DAYS)
        publish(cluster, job, 1, estimate(5_000.0))
        publish(cluster, job, 2, estimate(9_000.0))
        publish(cluster, job, 3, None, Fate.TOO_SMALL)
        async with live_page(cluster) as page:
            body = await page.get("/api/jobs/visits")
            assert (body["title"], body["people"]) == ("Patients on the ward", "patients")
            assert body["description"] == "In the morning."
            # Of a hundred who were enrolled; the estimate knows of more, so there is no share.
            assert body["sentence"] == [
                "About ",
                "9,000",
                " patients on the ward on 31 March 2024, between 8,800 and 9,200. Nothing can be "
                "said about 1 April 2024: too few devices took part, so nothing was released.",
            ]
            assert body["told"] == {
                "epoch": 2, "name": "31 March 2024", "contributors": 90, "population": 100,
            }  # fmt: skip
            assert body["change"] is None
            assert body["series"] == [
                {"id": "value", "label": "patients on the ward", "unit": "users"}
            ]

    run(test)


def test_the_change_of_the_last_epoch_is_that_of_the_command() -> None:
    async def test() -> None:
        cluster = MemoryCluster()
        job = deploy_text(cluster, DAYS)
        publish(cluster, job, 1, estimate(5_000.0))
        publish(cluster, job, 2, estimate(9_000.0))
        async with live_page(cluster) as page:
            change = (await page.get("/api/jobs/visits"))["change"]
            assert change["words"] == "more than the day before"
            curve = (await page.get("/api/jobs/visits/curve?change=1"))["series"][0]
            half = (curve["high"][-1] - curve["low"][-1]) / 2
            said = float(change["number"].partition("± ")[2].replace(",", ""))
            assert change["number"].startswith("4,000 ± ")
            assert half <= said <= 1.1 * half + 1

    run(test)


def test_labels_stand_for_items_wherever_readers_see_them() -> None:
    async def test() -> None:
        cluster = MemoryCluster()
        job = deploy_text(cluster, shown_jobs.MODES + "labels: {walk: on foot}\n")
        publish(cluster, job, 1, shown_jobs.items(90.0, 10.0, 30.0))
        async with live_page(cluster) as page:
            body = await page.get("/api/jobs/modes")
            assert [each["label"] for each in body["series"]] == ["on foot", "bus, or tram", "car"]
            assert "on foot" in body["sentence"][1]
            top = await page.get("/api/jobs/modes/top")
            assert top["name"] == "1 January 2024"
            assert [(each["label"], each["places"]) for each in top["items"]] == [
                ("on foot", [1, 1]), ("car", [2, 3]), ("bus, or tram", [2, 3]),
            ]  # fmt: skip
            found: dict[str, Any] = await page.get("/api/jobs/modes/sparklines")
            assert found["series"][0]["label"] == "on foot"

    run(test)


@pytest.mark.parametrize(
    ("text", "trusted", "words"),
    [
        (
            shown_jobs.COUNT,
            ["devices, producers"],
            "A person has to trust their own device and its producer, and nobody else.",
        ),
        (
            shown_jobs.COUNT.replace("epochs: {", "epochs: {start: 2024-01-01, length: P1D, ")
            + "devices: {}\n",
            ["devices"],
            "A person has to trust their own device, and nobody else.",
        ),
        (
            SHUFFLED,
            ["devices, producers", "shuffle stage"],
            "Besides their own device, a person has to trust the shuffle stage. Of the "
            "users of each epoch, 1,000 have to be honest.",
        ),
        (
            SHUFFLED.replace("{count: 12}", "{count: 12, start: 2024-01-01, length: P1D}")
            + "devices: {}\n",
            ["devices", "collectors", "shuffle stage"],
            "Besides their own device, a person has to trust the collectors and the shuffle stage. "
            "Of the users of each day, 1,000 have to be honest.",
        ),
    ],
)
def test_the_boundary_of_trust_is_that_of_the_guarantee(
    text: str, trusted: list[str], words: str
) -> None:
    job = deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))
    assert [party.name for party in parties_of(job) if party.trusted] == trusted
    assert trust_body(job)["words"] == words
    assert (len(trusted) == 1) == job.guarantee().trust.startswith("nobody")
    assert parties_of(job)[-1].name == "readers"


def test_of_two_parties_one_has_to_be_trusted_whichever(tmp_path: Path) -> None:
    for party in SHARERS:
        make_key_pair(tmp_path / f"{party}.key", tmp_path / f"{party}.pub")
    shares = ", ".join(str(tmp_path / f"{party}.pub") for party in SHARERS)
    text = shown_jobs.FRUIT.replace(", PARAMETERS", "") + f"sealed: {{shares: [{shares}]}}\n"
    job = deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))
    parties = parties_of(job)
    assert [party.name for party in parties if party.either] == ["party a", "party b"]
    assert [party.name for party in parties if party.trusted] == ["devices, producers"]
    body = trust_body(job)
    assert [party["either"] for party in body["parties"]] == [False, False, True, True, False]
    assert "one of the two parties, whichever" in body["words"]
    assert body["words"].endswith("Of the users of each epoch, 2,000 have to be honest.")
    assert "1,999 honest others in each window" in job.guarantee().trust
