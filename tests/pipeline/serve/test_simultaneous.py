"""Test the share of runs that leave the confidence band for all epochs of a horizon."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.future_rand import FutureRandAggregator
from dpstream.pipeline.jobs.job_files import Job, parse_job
from dpstream.pipeline.results.expected_errors import EXCEEDED, widening
from dpstream.pipeline.results.series import QUARTILE_SERIES, VALUE
from dpstream.pipeline.serve.reduction import Simultaneous
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator
from tests.support.live_page import deploy_text, live_page, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import COUNT, HOURS, WORDS, count, found, gap, numbers

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


def test_independent_epochs_and_quantiles_have_no_band() -> None:
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
