"""Test texts of the page's API: a job's own words, dates, changes, and trusted parties."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from dpstream.aggregators.estimate import CHANGES_USED, Estimate
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.jobs.sealing_keys import make_key_pair
from dpstream.pipeline.serve.trust_view import parties_of, trust_body
from tests.support import shown_jobs
from tests.support.live_page import deploy_text, live_page, publish
from tests.support.memory_cluster import MemoryCluster

BERLIN = ZoneInfo("Europe/Berlin")
DAYS = (
    "name: visits\nprotocol: value_stream\nparameters: {epsilon: 1, max_changes: 2}\n"
    "epochs: {count: 12, start: 2024-03-30, length: P1D, timezone: Europe/Berlin}\n"
    "title: Patients on the ward\nunit: patients\ndescription: In the morning.\n"
)
GUIDE = (
    "name: first-report\nprotocol: value_stream\nparameters: {epsilon: 4, max_changes: 2}\n"
    "epochs: {count: 60, start: 2023-01-01, length: PT1M, renew: true}\n"
    "shuffle: {minimum: 1, grace: 20 s}\ndevices: {}\n"
)
SHUFFLED = (
    "name: trusted\nprotocol: shuffled_counts\n"
    "parameters: {epsilon: 1, delta: 1e-6, max_changes: 4}\nepochs: {count: 12}\n"
    "shuffle: {minimum: 1000}\n"
)


def estimate(value: float, half: float = 200.0) -> Estimate:
    return Estimate.around(value, half / 1.96, half, 80, 20_000)


async def test_assumption_is_served_with_the_intervals() -> None:
    cluster = MemoryCluster()
    job, free = deploy_text(cluster, DAYS), "protocol: split_budget\nparameters: {epsilon: 1}"
    publish(cluster, job, 1, estimate(5_000.0))
    changes = "protocol: value_stream\nparameters: {epsilon: 1, max_changes: 2}"
    other = deploy_text(cluster, DAYS.replace(changes, free).replace("visits", "free"))
    publish(cluster, other, 1, estimate(5_000.0))
    async with live_page(cluster) as page:
        body = await page.get("/api/jobs/visits")
        later = "later changes appear with a delay"
        assumption = f"The 95 % interval assumes at most 2 changes per user; {later}."
        assert (body["assumption"], body["warning"]) == (assumption, None)
        assert (await page.get("/api/jobs/free"))["assumption"] is None
    publish(cluster, job, 2, replace(estimate(5_000.0), flags=(CHANGES_USED,)))
    async with live_page(cluster) as page:
        body = await page.get("/api/jobs/visits")
        assert body["assumption"] == assumption
        assert "95 % interval: users' values have changed at least once" in body["warning"]


async def test_days_start_in_the_time_zone_of_the_job() -> None:
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
            received = [await socket.receive_json() for _ in moments]
            assert [each["begins"] for each in received] == moments
        chart = await page.body("/charts.json?job=visits")
        assert b"day (Europe/Berlin)" in chart
        assert b"patients" in chart
        assert b"Europe/Berlin" not in await page.body("/charts.json?job=visits&axis=numbers")


async def test_epochs_of_device_jobs_count_from_deployment() -> None:
    """The client guide's job, deployed ten months after its start: four horizons later."""
    cluster = MemoryCluster()
    job = deploy_text(cluster, GUIDE)
    first = job.first_epoch
    assert first > 450_000
    last = (job.epochs.horizon_of(first) + 4) * 60
    for epoch in range(first, last + 1):
        publish(cluster, job, epoch, estimate(5_000.0))
    async with live_page(cluster) as page:
        body = await page.get("/api/jobs/first-report")
        assert (body["counted_from"], body["last_epoch"]) == (first, last)
        assert body["position"] == f"epoch {last:,} (horizon 4, 2023-11-15 01:59)"
        assert body["guarantee"]["horizons"] == 4
        assert body["guarantee"]["epsilon"] == pytest.approx(16, rel=1e-3)
        words = " ".join(body["guarantee_description"])
        assert "about their whole stream of 4 horizons by at most a factor of" in words
        assert "protects nothing" not in words


@pytest.mark.parametrize(
    ("text", "trusted", "words"),
    [
        (
            shown_jobs.COUNT,
            ["devices, producers"],
            "Trusted party besides the user's own device and its producer: none.",
        ),
        (
            shown_jobs.COUNT.replace("epochs: {", "epochs: {start: 2024-01-01, length: P1D, ")
            + "devices: {}\n",
            ["devices"],
            "Trusted party besides the user's own device: none.",
        ),
        (
            SHUFFLED,
            ["devices, producers", "shuffler"],
            "Trusted parties besides the user's own device and its producer: the shuffler and the "
            "operator of Kafka. The guarantee assumes at least 1,000 honest users per epoch.",
        ),
        (
            SHUFFLED.replace("{count: 12}", "{count: 12, start: 2024-01-01, length: P1D}")
            + "devices: {}\n",
            ["devices", "collectors", "shuffler"],
            "Trusted parties besides the user's own device: the collectors, the shuffler and the "
            "operator of Kafka. The guarantee assumes at least 1,000 honest users per day.",
        ),
    ],
)
def test_trust_boundary_matches_the_guarantee(text: str, trusted: list[str], words: str) -> None:
    job = deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))
    assert [party.name for party in parties_of(job) if party.trusted] == trusted
    assert trust_body(job)["description"] == words
    assert (len(trusted) == 1) == job.guarantee.trust.startswith("none")
    assert parties_of(job)[-1].name == "readers"


def test_trust_in_one_of_the_two_aggregators_suffices(tmp_path: Path) -> None:
    for party in SHARERS:
        make_key_pair(tmp_path / f"{party}.key", tmp_path / f"{party}.pub")
    shares = ", ".join(str(tmp_path / f"{party}.pub") for party in SHARERS)
    text = shown_jobs.FRUIT.replace(", PARAMETERS", "") + f"sealed: {{shares: [{shares}]}}\n"
    job = deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))
    parties = parties_of(job)
    assert [party.name for party in parties if party.either] == ["aggregator a", "aggregator b"]
    assert [party.name for party in parties if party.trusted] == ["devices, producers"]
    body = trust_body(job)
    assert [party.either for party in body["parties"]] == [False, False, True, True, False]
    assert ": either aggregator; if both collude" in body["description"]
    assert body["description"].endswith(
        "The guarantee assumes at least 2,000 honest users per epoch."
    )
    assert job.guarantee.trust.startswith("the two aggregators, not to collude with each other; ")
