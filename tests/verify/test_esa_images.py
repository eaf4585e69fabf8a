"""Images of "Encode, Shuffle, Analyze Privacy Revisited", compared with independent simulations.

The bars are root mean squared errors of estimates clipped to [0, 255], simulated with independent
software that draws a binomial per cell. Neighbors are by removal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.estimate import Participation
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.item_domains import Points
from dpstream.randomizers.randomness import seeded_generator
from experiments.evaluation.data import ChangeLogFile
from experiments.evaluation.images import pixels
from experiments.evaluation.trial import run_trial
from experiments.preparation import read_plain
from experiments.protocols.count_mean_sketch import (
    BUCKETS,
    CountMeanSketch,
    CountMeanSketchParameters,
)
from experiments.protocols.count_mean_sketch.aggregator import CountMeanSketchAggregator
from experiments.protocols.count_mean_sketch.calibration import calibrate as sketch
from experiments.protocols.fragments import FragmentsLaw, FragmentsParameters
from experiments.protocols.fragments.calibration import calibrate as fragments
from experiments.protocols.fragments.calibration import loss_of_report
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

# Data outside the repository, needed only by this test.
IMAGES = Path(__file__).parents[2].parent / "shared/data/images"
WITHIN = 0.03


@dataclass(frozen=True)
class Bars:
    """Expected errors at one epsilon: published calibration by tau, curator, exact calibration."""

    epsilon: float
    published: dict[int, float]
    unclipped: float
    curator: float
    exact: float


@dataclass(frozen=True)
class Image:
    """Image file, job file keys, and expected results."""

    file: str
    grid: tuple[int, int]
    users: int
    delta: float
    zeros: float
    bars: tuple[Bars, ...]


HORSE = Image(
    "horse-contour-320x274.pgm.gz",
    (274, 320),
    459_254,
    5e-8,
    29.30,
    (
        Bars(0.05, {1: 139.5, 4: 161.4, 16: 168.9, 256: 177.0}, 321.1, 57.1, 79.7),
        Bars(0.25, {1: 50.0, 4: 71.8, 16: 75.9, 256: 126.7}, 70.0, 11.7, 18.4),
        Bars(0.5, {1: 26.1, 4: 37.1, 16: 37.7, 256: 53.1}, 36.3, 5.9, 9.8),
        Bars(0.75, {1: 17.9, 4: 25.4, 16: 25.6, 256: 30.6}, 24.9, 4.0, 6.9),
        Bars(1, {1: 13.9, 4: 19.6, 16: 19.7, 256: 21.8}, 19.4, 3.0, 5.4),
    ),
)
NIGHT_LIGHTS = Image(
    "earth-night-lights-1024x512.pgm.gz",
    (512, 1024),
    923_265,
    5e-8,
    11.26,
    (
        Bars(0.05, {1: 140.6}, 329.3, 57.0, 80.0),
        Bars(0.25, {1: 49.9, 4: 70.7}, 70.3, 11.6, 18.3),
        Bars(1, {1: 13.9, 4: 19.6, 16: 19.6}, 19.3, 3.0, 5.5),
    ),
)
CAMERA = Image(
    "camera-512x512.pgm.gz",
    (512, 512),
    33_832_495,
    5e-9,
    148.59,
    (
        Bars(0.05, {1: 125.5, 4: 132.1}, 363.8, 68.5, 89.3),
        Bars(0.25, {1: 61.6, 4: 79.1}, 74.8, 16.8, 26.4),
        Bars(1, {1: 19.8, 4: 27.3}, 20.4, 4.4, 8.0),
    ),
)
# Printed curator errors have only two digits where they are small.
ROUNDED = 0.05


if IMAGES.exists():

    @pytest.mark.parametrize(
        ("image", "bars"),
        [(image, bars) for image in (HORSE, NIGHT_LIGHTS, CAMERA) for bars in image.bars],
        ids=lambda each: each.file.partition("-")[0] if isinstance(each, Image) else each.epsilon,
    )
    def test_errors_match_independent_simulations(image: Image, bars: Bars) -> None:
        rows = []
        source = ChangeLogFile(str(IMAGES / image.file), top_items=255)
        requested = [("published", tau, bar) for tau, bar in bars.published.items()]
        for calibration, tau, bar in [*requested, ("exact", 1, bars.exact)]:
            trial = run_trial(_job(image, bars.epsilon, calibration, tau).to_bytes(), source, 1)
            found = {name: each.rmse for name, each in trial.accuracies.items()}
            rows.append([calibration, f"{tau}", f"{bar}", f"{found['all, clipped']:.2f}"])
            assert found["all, clipped"] == pytest.approx(bar, rel=WITHIN), (calibration, tau)
            assert found["all zeros"] == pytest.approx(image.zeros, abs=0.01)
            if calibration == "published":
                assert found["curator as published, clipped"] == pytest.approx(
                    bars.curator, rel=WITHIN, abs=ROUNDED
                )
            if (calibration, tau) == ("published", 1):
                assert found["all items"] == pytest.approx(bars.unclipped, rel=WITHIN)
        title = f"{image.file}, epsilon {bars.epsilon:g}"
        print_table(title, ["calibration", "reports", "bar", "measured"], rows)

    @pytest.mark.parametrize(
        ("image", "epsilon", "bar"),
        [(HORSE, 0.05, 107.4), (HORSE, 0.25, 25.8), (HORSE, 1, 7.7), (CAMERA, 1, 11.3)],
        ids=lambda each: each.file.partition("-")[0] if isinstance(each, Image) else None,
    )
    def test_error_of_fragments_with_four_reports_matches_simulations(
        image: Image, epsilon: float, bar: float
    ) -> None:
        """Bars use only the first of two bounds; the smaller bound has up to 9 % less error."""
        one, four = (_job(image, epsilon, "exact", reports).law for reports in (1, 4))
        assert isinstance(one, FragmentsLaw)
        assert isinstance(four, FragmentsLaw)
        assert four.backstop is not None
        of_bar = replace(
            four,
            backstop=one.odds,
            odds=optimal(1, loss_of_report(one.odds.loss, 4)),
        )
        found = [_clipped_error(image, law) for law in (four, of_bar)]
        print(f"{image.file}, {epsilon:g}: {found[0]:.2f}; bar {bar}, as there {found[1]:.2f}")
        assert found[1] == pytest.approx(bar, rel=0.015, abs=ROUNDED)
        assert 0.9 * found[1] < found[0] < 1.01 * found[1]

    def _clipped_error(image: Image, law: FragmentsLaw) -> float:
        """Return the error over all cells, drawn from the devices' distribution without devices."""
        ground_truth = pixels(read_plain(IMAGES / image.file)).reshape(-1).astype(np.int64)
        rng, users, backstop = seeded_generator(1), image.users, law.backstop_flips
        assert backstop is not None
        behind = backstop.ones(ground_truth, users, rng)
        sent = law.flips.ones(law.reports * behind, law.reports * users, rng)
        counts = sent / law.reports
        for flips in (law.flips, backstop):
            reversed_ = float(flips.probability)
            counts = (counts - users * reversed_) / (1 - 2 * reversed_)
        return float(np.sqrt(np.square(np.clip(counts, 0, 255) - ground_truth).mean()))

    @pytest.mark.parametrize(("epsilon", "bar"), [(0.25, 50.3), (1, 14.1)])
    def test_error_of_a_sketch_with_published_odds_matches_simulations(
        epsilon: float, bar: float
    ) -> None:
        """Published odds assume that messages of all rows hide each other, which is wrong."""
        users, delta = HORSE.users, HORSE.delta
        requested = CountMeanSketchParameters(
            epsilon, delta, Points(HORSE.grid), neighbors="removal"
        )
        bits = FragmentsParameters(
            epsilon, delta, Points((BUCKETS,)), neighbors="removal", calibration="published"
        )
        law = replace(
            sketch(requested, 1, users), bits=fragments(bits, last_epoch=1, minimum=users)
        )
        ground_truth = pixels(read_plain(IMAGES / HORSE.file)).reshape(-1).astype(np.int64)
        items = np.repeat(np.arange(1, len(ground_truth) + 1), ground_truth)
        devices, rng = CountMeanSketch(law), seeded_generator(1)
        devices.enroll(users, rng)
        reports = devices.report(1, items[:, None], None, rng)
        aggregator = CountMeanSketchAggregator(law)
        if isinstance(reports, CountedMessages):
            aggregator.add(1, reports.values, reports.counts)
        else:
            aggregator.add(1, reports, None)
        found = aggregator.window([1], Participation.constant(1, users))
        assert found is not None
        error = float(np.sqrt(np.square(np.clip(found.values, 0, 255) - ground_truth).mean()))
        print(f"sketch, epsilon {epsilon:g}: {error:.2f}, bar {bar}")
        assert error == pytest.approx(bar, rel=WITHIN)

    def _job(image: Image, epsilon: float, calibration: str, reports: int) -> DeployedJob:
        values = {
            "name": "image",
            "protocol": "fragments",
            "parameters": {
                "epsilon": epsilon,
                "delta": image.delta,
                "domain": {"grid": list(image.grid)},
                "neighbors": "removal",
                "calibration": calibration,
                "reports": reports,
            },
            "epochs": {"count": 1},
            "shuffle": {"minimum": image.users},
        }
        return deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))
