"""Test texts of the page's API: a job's own words, dates, changes, and trusted parties."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import CHANGES_USED, Estimate, Participation
from dpstream.aggregators.future_rand import FutureRandAggregator
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job, parse_job
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.jobs.sealing_keys import make_key_pair
from dpstream.pipeline.results.expected_errors import EXCEEDED, widening
from dpstream.pipeline.results.series import QUARTILE_SERIES, VALUE
from dpstream.pipeline.serve.reduction import Simultaneous
from dpstream.pipeline.serve.trust_view import parties_of, trust_body
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator
from tests.support import shown_jobs
from tests.support.live_page import deploy_text, live_page, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import COUNT, HOURS, WORDS, count, found, gap, numbers

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


FALSE_ALARM = 1e-9
USERS, EPOCHS, RUNS = 500, 16, 200


def job(text: str) -> Job:
    return parse_job(text)


def test_simultaneous_band_has_its_stated_coverage() -> None:
    law = calibrate(FutureRandParameters(1.0, 1), EPOCHS)
    band = Simultaneous.of(job(COUNT.replace("count: 12", f"count: {EPOCHS}")))
    assert band is not None
    left_wide = left_narrow = 0
    for run in range(RUNS):
        triples, ground_truth = estimates_of_run(law, run)
        ends = band.ends(VALUE, triples)
        assert ends is not None
        left_wide += bool(((ground_truth < ends[0]) | (ground_truth > ends[1])).any())
        left_narrow += bool(((ground_truth < triples[:, 1]) | (ground_truth > triples[:, 2])).any())
    assert stats.binom.sf(left_wide - 1, RUNS, EXCEEDED) > FALSE_ALARM
    # Enough runs to detect a band that is too narrow.
    assert stats.binom.sf(left_narrow - 1, RUNS, EXCEEDED) < FALSE_ALARM


def estimates_of_run(
    law: FutureRandLaw, run: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    devices, rng = FutureRand(law), seeded_generator(121, run)
    devices.enroll(USERS, rng)
    aggregator, participation = FutureRandAggregator(law), Participation.constant(EPOCHS, USERS)
    rows, ground_truth = [], []
    for epoch in range(1, EPOCHS + 1):
        values = np.full(USERS, epoch > 4, np.int8)
        aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
        estimate = aggregator.estimate(epoch, participation)
        assert estimate is not None
        rows.append([estimate.value, estimate.ci95_low, estimate.ci95_high])
        ground_truth.append(int(values.sum()))
    return np.array(rows, np.float64), np.array(ground_truth, np.float64)


def test_jobs_with_independent_epochs_and_quantiles_have_no_simultaneous_band() -> None:
    assert Simultaneous.of(job(WORDS)) is None
    assert Simultaneous.of(job(COUNT.replace("count: 12", "count: 1"))) is None
    band = Simultaneous.of(job(HOURS))
    assert band is not None
    assert band.ends(QUARTILE_SERIES[1], np.ones((1, 3))) is None


async def test_api_serves_the_band_with_gaps() -> None:
    cluster = MemoryCluster()
    counted = deploy_text(cluster, COUNT, b"c" * 16)
    publish(cluster, counted, 1, count(10.0))
    publish(cluster, counted, 2, gap(33.25))
    publish(cluster, counted, 3, count(-2.5))
    hours = deploy_text(cluster, HOURS, b"h" * 16)
    publish(cluster, hours, 1, numbers(*[10.0] * 8))
    words = deploy_text(cluster, WORDS, b"w" * 16)
    publish(cluster, words, 1, found(i7=90.0))

    async with live_page(cluster) as page:
        body = (await page.get("/api/jobs/count"))["simultaneous"]
        assert body["epochs"] == 12
        assert body["widening"] == widening(12)
        assert body["description"].startswith("The wide band holds for all 12 epochs of a horizon")
        (curve,) = (await page.get("/api/jobs/count/curve"))["series"]
        half = 9.8 * widening(12)
        for end, sign in (("low", -1), ("high", 1)):
            first, none, third = curve[f"simultaneous_{end}"]
            assert none is None
            assert [first, third] == pytest.approx([10 + sign * half, sign * half - 2.5], 1e-3)
        path = "/api/jobs/hours/curve?series=q0.5,r0:40"
        median, bucket = (await page.get(path))["series"]
        assert median["simultaneous_low"] is None
        assert bucket["simultaneous_low"][0] < bucket["ci95_low"][0]
        assert (await page.get("/api/jobs/words"))["simultaneous"] is None
        (item,) = (await page.get("/api/jobs/words/curve?series=7"))["series"]
        assert item["simultaneous_high"] is None
