"""Test the API of the live page: responses for jobs of every kind, and rejections."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import aiohttp
import numpy as np
import pytest
from pyarrow import parquet

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.serve import views
from dpstream.pipeline.serve.connections import Limits
from dpstream.pipeline.serve.follower import BrokerAvailability
from dpstream.pipeline.serve.job_store import milliseconds
from dpstream.pipeline.serve.query_strings import LARGEST
from dpstream.pipeline.serve.views import MOST_SERIES, NOT_PRIVATE
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import JOBS_TOPIC, Role
from tests.pipeline.results.test_cohorts import JOB_FILE as SEARCH
from tests.pipeline.results.test_cohorts import values as cells_of
from tests.support.live_page import LivePage, deploy_text, live_page, publish, run
from tests.support.memory_cluster import MemoryCluster, use_memory_cluster
from tests.support.shown_jobs import COUNT, HOURS, MODES, WORDS, count, found, gap, items, numbers


@pytest.fixture
def cluster(written: MemoryCluster) -> MemoryCluster:
    """Publish a few epochs of a job of every kind; two epochs of the count cannot be drawn."""
    return deepcopy(written)


@pytest.fixture(scope="module")
def written() -> MemoryCluster:
    """Shared, because calibrating the jobs takes seconds."""
    cluster = MemoryCluster()
    counted = deploy_text(cluster, COUNT, b"c" * 16)
    publish(cluster, counted, 1, count(10.0))
    publish(cluster, counted, 2, None, WindowStatus.SUPPRESSED)
    publish(cluster, counted, 3, gap(33.25))
    publish(cluster, counted, 4, count(-2.5))
    modes = deploy_text(cluster, MODES, b"m" * 16)
    for epoch in (1, 2, 3):
        publish(cluster, modes, epoch, items(10.0, 50.0 + epoch, 30.0))
    hours = deploy_text(cluster, HOURS, b"h" * 16)
    for epoch in (1, 2, 3):
        publish(cluster, hours, epoch, numbers(*[10.0] * 4, *[15.0 * epoch] * 4))
    words = deploy_text(cluster, WORDS, b"w" * 16)
    publish(cluster, words, 1, found(i7=90.0, i9=40.0))
    publish(cluster, words, 2, found(i9=80.0))
    return cluster


async def test_job_list_summarizes_every_job(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        body = await page.get("/api/jobs")
        assert body["run"] == page.site.job_store.run
        assert body["kafka"]["answers"] is True
        jobs = {job["job"]: job for job in body["jobs"]}
        assert list(jobs) == ["count", "hours", "modes", "words"]
        assert [job["domain"]["kind"] for job in jobs.values()] == [
            *("value", "numbers", "items", "found")
        ]
        counted = jobs["count"]
        assert counted["position"] == "epoch 4 of 12"
        assert counted["estimate"] == pytest.approx(
            {"value": -2.5, "ci95_low": -12.3, "ci95_high": 7.3}
        )
        assert counted["phase"] == "running"
        assert counted["replay_of"] is None
        assert jobs["modes"]["headline"].startswith("bus, or tram: 53 (95 % CI 43 to 63)")
        assert jobs["modes"]["budget"] == "epsilon 8 of 20 charged in total"
        assert jobs["words"]["headline"].startswith("8: 80")
        # The median of 40 values below 40 and 180 above.
        assert jobs["hours"]["headline"].startswith("median ")


@pytest.mark.parametrize("answers", [True, False])
async def test_requests_wait_for_the_first_poll(cluster: MemoryCluster, answers: bool) -> None:
    async with live_page(cluster, unread=True) as page:
        waiting, first_look = asyncio.Event(), page.site.job_store.first_look

        async def look() -> None:
            waiting.set()
            await first_look()

        page.site.job_store.first_look = look  # type: ignore[method-assign]
        requested = asyncio.create_task(page.get("/api/jobs/count", 200 if answers else 404))
        await asyncio.wait_for(waiting.wait(), 60)
        page.site.take(BrokerAvailability(answers))
        if answers:
            page.read()
        assert ("error" in await requested) != answers


async def test_only_gaps_of_a_curve_are_null(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        body = await page.get("/api/jobs/count/curve")
        (curve,) = body["series"]
        assert curve["epochs"] == [1, 2, 3, 4]
        assert curve["value"] == [10.0, None, None, -2.5]
        assert curve["ci95_low"] == [0.2, None, None, -12.3]
        assert curve["ci95_high"] == [19.8, None, None, 7.3]
        assert curve["ground_truth"] is None
        assert body["reduced"] is False
        part = await page.get("/api/jobs/count/curve?from=3&to=3")
        assert part["series"][0]["epochs"] == [3]
        none = await page.get("/api/jobs/count/curve?from=9&to=3")
        assert none["series"][0]["epochs"] == []
        assert none["from"] is None
        # Published estimates of the gap are included, with a flag.
        rows = (await page.get("/api/jobs/count/estimates"))["estimates"]
        assert rows[2]["flags"] == ["gap"]
        assert rows[2]["estimate"]["value"] == 33.25
        assert rows[1]["window_status"] == "suppressed"
        assert rows[1]["estimate"] is None


@pytest.mark.parametrize("job", ["count", "modes", "hours", "words"])
def test_downloaded_csv_equals_the_output_of_the_estimates_command(
    job: str,
    cluster: MemoryCluster,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    from dpstream.pipeline.cli import main

    async def test() -> tuple[bytes, bytes]:
        async with live_page(cluster) as page:
            return (
                await page.body(f"/api/jobs/{job}/estimates?format=csv"),
                await page.body(f"/api/jobs/{job}/estimates?format=csv&from=2&to=2"),
            )

    whole, part = run(test)
    used = use_memory_cluster(monkeypatch)
    used.records, used.partitions = cluster.records, cluster.partitions
    capfdbinary.readouterr()
    assert main(["estimates", job, "--format", "csv"]) == 0
    printed, _ = capfdbinary.readouterr()
    assert whole == printed
    header, *lines = printed.splitlines(keepends=True)
    assert part == header + b"".join(line for line in lines if line.startswith(b"2,"))


async def test_ground_truth_is_always_labeled_not_private(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    changes = tmp_path / "modes.csv"
    changes.write_text("user,epoch,value\na,1,walk\nb,1,car\nb,2,walk\n")

    async with live_page(cluster, ground_truths=[("modes", changes)]) as page:
        await page.ground_truths_loaded()
        assert page.log == []
        curve = await page.get("/api/jobs/modes/curve?series=1")
        assert curve["ground_truth_note"] == NOT_PRIVATE
        assert curve["series"][0]["ground_truth"] == [1, 2, 2]
        details = await page.get("/api/jobs/modes")
        assert (details["ground_truth"], details["ground_truth_note"]) == (True, NOT_PRIVATE)
        body = await page.get("/api/jobs/modes/estimates")
        assert body["ground_truth_note"] == NOT_PRIVATE
        assert body["estimates"][2]["ground_truth"] == [2, 0, 0]
        top = await page.get("/api/jobs/modes/top?epoch=1")
        assert {item["label"]: item["ground_truth"] for item in top["items"]}["car"] == 1
        table = await page.body("/api/jobs/modes/estimates?format=parquet")
        ground_truth = parquet.read_table(io.BytesIO(table))["ground_truth_not_private"]
        assert ground_truth.to_pylist()[:3] == [1.0, 0.0, 1.0]
        text = await page.body("/api/jobs/modes/estimates?format=csv")
        assert b"ground_truth" not in text
        assert (await page.get("/api/jobs/hours/curve"))["ground_truth_note"] is None


async def test_pipeline_is_reported_after_the_first_poll(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        assert await page.get("/api/jobs/count/pipeline") == {"at": None}
        await page.look()
        body = await page.get("/api/jobs/count/pipeline")
        assert [(stage["stage"], stage["reads"]) for stage in body["stages"]] == [
            *(("shuffle", "reports"), ("aggregate", "shuffled"), ("publish", "partials"))
        ]
        assert any("No worker of stage shuffle is up" in each for each in body["issues"])
        summary = await page.get("/api/jobs/count")
        assert summary["issues"] == body["issues"]
        assert summary["lag_seconds"] == 0


async def test_pipeline_omits_secret_message_counts(
    cluster: MemoryCluster,
) -> None:
    job = DeployedJob.from_bytes(
        next(each.value for each in cluster.read(JOBS_TOPIC) if each.key == b"words")
    )
    window = {"epoch": 3, "reports": 424_242, "waits_for": ["gateway-1"]}
    beat: dict[str, Any] = {
        "deployment": job.deployment.hex(),
        "time": milliseconds(),
        "stage": "shuffle",
        "worker": "w1",
        "partitions": [0],
        "records_per_second": 4242.42,
        "counts": {"reports": 424_242, "records": 424_242},
        "windows": [window],
        "open_windows": 1,
    }
    for _ in range(2):
        beat["time"] += 1_000
        beat["counts"]["reports"] += 424_200
        cluster.append(job.topic(Role.STATUS), json.dumps(beat).encode(), b"shuffle/w1")
    cluster.append(job.topic(Role.REPORTS), b"a record")

    async with live_page(cluster) as page:
        await page.get("/api/jobs/words")
        await page.look()
        body = await page.get("/api/jobs/words/pipeline")
        shuffle = body["stages"][0]
        assert [worker["name"] for worker in shuffle["workers"]] == ["w1"]
        assert shuffle["lag"] is None
        assert [each["epoch"] for each in body["windows"]] == [3]
        assert "4242" not in json.dumps(body).replace(str(body["at"]), "")


async def rejected(page: LivePage, path: str, status: int = 400) -> str:
    body = await page.get(path, status)
    assert list(body) == ["error"]
    assert len(body["error"]) < 400
    return str(body["error"])


HOSTILE = [
    "/api/jobs/count/curve?from=-1",
    "/api/jobs/count/curve?from=%00",
    "/api/jobs/count/curve?columns=0",
    f"/api/jobs/count/curve?to={LARGEST + 1}",
    "/api/jobs/count/curve?from=%D9%A3",
    "/api/jobs/count/curve?series=../../etc/passwd",
    "/api/jobs/count/curve?series=" + "a" * 900,
    "/api/jobs/modes/curve?series=0",
    "/api/jobs/modes/curve?series=" + ",".join(map(str, range(MOST_SERIES + 1))),
    "/api/jobs/hours/curve?series=rnan:inf",
    "/api/jobs/hours/curve?series=r0:",
    "/api/jobs/modes/top?count=1000000",
    "/api/jobs/modes/table?limit=1000000",
    "/api/jobs/count/estimates?format=exe",
    "/api/jobs/count/estimates?from=5&to=1",
    "/charts.json",
    "/ws?job=count&after=x",
]


async def test_malicious_queries_get_an_error_sentence(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        for path in HOSTILE:
            if path.endswith("series=r0:"):
                continue  # an open end is a range
            assert await rejected(page, path), path
        await page.get("/api/jobs/hours/curve?series=r0:")
        for path in (
            "/api/jobs/unknown",
            "/charts.json?job=unknown",
            "/ws?job=unknown",
            "/x",
            "/static/../x",
        ):
            await rejected(page, path, 404)
        message = await rejected(page, "/api/jobs/modes/top?epoch=99", 404)
        assert message == "epoch 99 of job modes is not available"
        message = await rejected(page, "/api/jobs/count/curve?columns=-1")
        assert message.startswith("columns: got '-1'; expected an integer from 1 to ")
        assert (
            await rejected(page, "/charts.json") == "parameter 'job' is missing; expected ?job=NAME"
        )
        message = await rejected(page, "/api/jobs/" + "n" * 300, 404)
        assert message.endswith("jobs on this server: count, hours, modes, words")


async def test_unexpected_error_is_one_sentence_and_one_log_line(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("one\ntwo")

    def half_a_file(*arguments: object) -> Iterator[bytes]:
        yield b"epoch"
        broken()

    async with live_page(cluster) as page:
        with monkeypatch.context() as patched:
            patched.setattr("dpstream.pipeline.serve.downloads.Download.chunks", half_a_file)
            with pytest.raises(aiohttp.ClientPayloadError):
                await page.body("/api/jobs/count/estimates?format=csv")
        monkeypatch.setattr(views, "details", broken)
        assert "see the server log" in await rejected(page, "/api/jobs/count", 500)
        monkeypatch.setattr(page.site, "take", broken)
        page.site.tell(BrokerAvailability(True))
        await asyncio.sleep(0)
        await page.get("/api/jobs")
        assert page.log == ["ignored an error: RuntimeError: one two"]
    assert [line for line in caplog.messages if line.startswith("GET")] == [
        "GET '/api/jobs/count/estimates' failed: RuntimeError: one two",
        "GET '/api/jobs/count' failed: RuntimeError: one two",
    ]


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_corrupt_estimate_does_not_truncate_a_download(cluster: MemoryCluster, form: str) -> None:
    job = find_deployed(cast(Cluster, cluster), "modes")
    body = publish(cluster, job, 4, items(1.0, 2.0, 3.0)).to_json()
    for epoch, wrong in ((5, [1.0, 2.0]), (6, [1.0, 2.0, float("nan")])):
        body["epoch"], body["estimate"]["items"] = epoch, wrong
        cluster.append(job.topic(Role.ESTIMATES), json.dumps(body).encode())
    publish(cluster, job, 7, items(1.0, 2.0, 3.0))

    async def test() -> bytes:
        async with live_page(cluster) as page:
            return await page.body(f"/api/jobs/modes/estimates?format={form}")

    data = run(test)
    if form == "json":
        found = [each["epoch"] for each in json.loads(data)["estimates"]]
    else:
        found = sorted(set(parquet.read_table(io.BytesIO(data))["epoch"].to_pylist()))
    assert found == [1, 2, 3, 4, 7]


async def test_downloads_beyond_the_limit_are_rejected(
    cluster: MemoryCluster,
) -> None:
    async with live_page(cluster, limits=Limits(downloads=1)) as page:
        reading, resume = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def read(*arguments: object, **options: object) -> Iterator[LogRecord]:
            loop.call_soon_threadsafe(reading.set)
            assert resume.wait(20)
            yield from ()

        cluster.read = read  # type: ignore[method-assign]
        first = asyncio.create_task(page.body("/api/jobs/count/estimates"))
        await reading.wait()
        message = await rejected(page, "/api/jobs/count/estimates", 503)
        assert "too many concurrent downloads" in message
        resume.set()
        assert json.loads(await first)["estimates"] == []


SAMPLED = (
    "name: sampled\nprotocol: sampled_response\nparameters: {epsilon: 4, reports: 1}\n"
    "epochs: {count: 12}\nshuffle: {minimum: 10}\nroll_up: [2, 6]\n"
)


async def test_curve_of_means_over_windows_has_their_own_intervals(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    job = deploy_text(cluster, SAMPLED, b"s" * 16)
    for epoch, value in enumerate((10.0, 30.0, 20.0, None, 40.0, 60.0, 50.0), 1):
        publish(cluster, job, epoch, None if value is None else count(value))
    truth = tmp_path / "sampled.csv"
    truth.write_text("user,epoch,value\na,1,0\na,2,1\nb,2,1\n")
    async with live_page(cluster, ground_truths=[("sampled", truth)]) as page:
        await page.ground_truths_loaded()
        assert (await page.get("/api/jobs/sampled"))["roll_up"] == [2, 6]
        rows = (await page.get("/api/jobs/sampled/table?interval=2"))["rows"]
        assert [(row["first_epoch"], row["epoch"]) for row in rows] == [(5, 6), (3, 4), (1, 2)]
        (row, *_) = (await page.get("/api/jobs/sampled/table"))["rows"]
        assert "first_epoch" not in row
        body = await page.get("/api/jobs/sampled/curve?interval=2")
        (curve,) = body["series"]
        assert curve["epochs"] == [2, 4, 6]
        assert curve["value"] == [20.0, 20.0, 50.0]
        # The standard error of a count here is 5, and its interval normal.
        half = 1.959964 * 5 / 2**0.5
        assert curve["ci95_high"] == pytest.approx(
            [20 + half, 20 + 1.959964 * 5, 50 + half], abs=2e-3
        )
        assert curve["ground_truth"][0] == 1
        body = await page.get("/api/jobs/sampled/table?interval=2&change=1")
        assert [(row["epoch"], row["series"]["value"][0]) for row in body["rows"]] == [
            *((6, 30.0), (4, 0.0))
        ]
        assert body["rows"][1]["flags"] == ["incomplete"]
        for path, why in (
            ("sampled/curve?interval=13", "the job has 12 epochs"),
            ("count/curve?interval=2", "do not show"),
        ):
            assert why in (await page.get(f"/api/jobs/{path}", 404))["error"]
        await page.get("/api/jobs/sampled/curve?interval=1", 400)


async def test_ratios_and_differences_have_a_reason_in_place_of_numbers(
    cluster: MemoryCluster,
) -> None:
    text = SAMPLED.replace("reports: 1", "reports: 1, domain: [walk, bus, car]")
    job = deploy_text(cluster, text, b"s" * 16)
    for epoch in range(1, 5):
        values = np.array([210.0, 169.0, 4.0 * epoch])
        publish(cluster, job, epoch, ItemEstimates(values, 10.0, 19.6, 1_000, 1_000))
    async with live_page(cluster) as page:
        path = "/api/jobs/sampled/ratio?numerator=1&denominator="
        body = await page.get(f"{path}3")
        assert (body["statistic"], body["name"]) == ("ratio", "walk / car")
        refused = "the denominator is not distinguishable from 0"
        assert body["rows"] == [
            {"epoch": epoch, "begins": None, "refused": refused} for epoch in range(1, 5)
        ]
        assert body["sentence"] == f"No ratio: {refused}."
        (row,) = (await page.get(f"{path}2,3&limit=1"))["rows"]
        assert (row["epoch"], row["estimate"]) == (4, pytest.approx(210 / 185))
        rows = (await page.get(f"{path}2&interval=2&to=2"))["rows"]
        assert [each["epoch"] for each in rows] == [2]
        last = (await page.get(f"{path}2&interval=2&aggregate=last"))["rows"]
        assert rows[0]["ci95_low"] > last[0]["ci95_low"]
        body = await page.get("/api/jobs/sampled/difference?first=1&second=2")
        assert body["rows"][-1]["estimate"] == pytest.approx(0.041)
        assert body["sentence"].startswith("4.1 points more of walk than of bus (21.0 and 16.9 %)")
        for wrong, status, why in (
            ("ratio?numerator=1", 400, "denominator: expected IDs of items"),
            ("ratio?numerator=1&denominator=9", 400, "expected an item number from 1 to 3"),
            ("ratio?numerator=1&denominator=2&change=1", 400, "a ratio has no changes"),
            ("curve?interval=2&aggregate=sum", 404, "would count the same ones again"),
        ):
            problem = await page.get(f"/api/jobs/sampled/{wrong}", status)
            assert why in problem["error"]
        problem = await page.get("/api/jobs/count/ratio?numerator=value&denominator=value", 404)
        assert "requires a job over a fixed list of items" in problem["error"]


async def test_cohorts_and_differences_of_private_groups_are_shares(cluster: MemoryCluster) -> None:
    job = deploy_text(cluster, SEARCH, b"c" * 16)
    cells = cells_of(
        job, {"2026-01": (1_000.0, 0.3), "2026-02": (150.0, 0.6), "2026-03": (5.0, 1.0)}
    )
    publish(cluster, job, 3, ItemEstimates(cells, 20.0, 39.2, 2_000, 2_000))
    async with live_page(cluster) as page:
        body = await page.get("/api/jobs/search/cohorts?attribute=cohort")
        assert body["measure"] == "used"
        rows = {(row["cohort"], row["since"]): row for row in body["rows"]}
        assert rows["2026-01", 2]["estimate"] == pytest.approx(0.3)
        assert rows["2026-02", 1]["wide"]
        assert rows["2026-03", 0]["refused"] == "the denominator is not distinguishable from 0"
        wrong = await page.get("/api/jobs/search/cohorts?attribute=plan", 404)
        assert "has no measure by plan whose values are dates" in wrong["error"]
        assert "is missing" in (await page.get("/api/jobs/search/cohorts", 400))["error"]
        series = (await page.get("/api/jobs/search"))["series"]
        ids = {row["label"]: row["id"] for row in series}
        first, second = (ids[f"used: cohort=2026-0{month}"] for month in (2, 1))
        path = f"/api/jobs/search/difference?first={first}&second={second}"
        assert (await page.get(path))["rows"][-1]["estimate"] == pytest.approx(0.3)


async def test_page_of_a_sampled_numeric_job_shows_medians_and_ranges(
    cluster: MemoryCluster,
) -> None:
    text = SAMPLED.replace("reports: 1", "low: 0, high: 64, buckets: 16")
    job = deploy_text(cluster, text, b"n" * 16)
    devices, aggregator, rng = job.randomizer(), job.aggregator(), seeded_generator(1)
    devices.enroll(12_000, rng)
    values = 1 + np.random.default_rng(2).integers(0, 16, 12_000)
    participation = Participation.constant(12, 12_000)
    for epoch in range(1, 7):
        aggregator.add(epoch, written_out(devices.report(epoch, values, None, rng)), None)
        publish(cluster, job, epoch, aggregator.estimate(epoch, participation))
    async with live_page(cluster) as page:
        jobs = {each["job"]: each for each in (await page.get("/api/jobs"))["jobs"]}
        assert jobs["sampled"]["headline"].startswith("median ")
        assert (await page.get("/api/jobs/sampled"))["changes"] is False
        widths = {}
        for window in ("", "&interval=6"):
            for series, truth in (("q0.5", 32.0), ("r0:32", 6_000.0)):
                path = f"/api/jobs/sampled/curve?series={series}{window}"
                (curve,) = (await page.get(path))["series"]
                low, high = curve["ci95_low"][-1], curve["ci95_high"][-1]
                assert low <= truth <= high
                widths[series, window] = high - low
        assert widths["r0:32", "&interval=6"] < 0.5 * widths["r0:32", ""]
        assert widths["q0.5", "&interval=6"] <= widths["q0.5", ""]
