"""The images of "Encode, Shuffle, Analyze Privacy Revisited", against independent simulations.

The bars are root mean squared errors, clipped to [0, 255], of binomials drawn cell by cell by other
software than this. Neighbours are by removal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.simulation.evaluation.data import ChangeLogFile
from pipeline.simulation.evaluation.trial import run_trial
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

# Data for experiments, beside the repository: nothing but this test needs them.
IMAGES = Path(__file__).parents[2].parent / "shared/data/images"
WITHIN = 0.03


@dataclass(frozen=True)
class Bars:
    """Of one epsilon: published calibration by tau, its curator, and exact calibration."""

    epsilon: float
    published: dict[int, float]
    unclipped: float
    curator: float
    exact: float


@dataclass(frozen=True)
class Image:
    """A file, what a job over it says, and what is to come out."""

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
# What is printed of curators has two digits only where they are small.
ROUNDED = 0.05


if IMAGES.exists():

    @pytest.mark.parametrize(
        ("image", "bars"),
        [(image, bars) for image in (HORSE, NIGHT_LIGHTS, CAMERA) for bars in image.bars],
        ids=lambda each: each.file.partition("-")[0] if isinstance(each, Image) else each.epsilon,
    )
    def test_errors_are_those_of_independent_simulations(image: Image, bars: Bars) -> None:
        rows = []
        source = ChangeLogFile(str(IMAGES / image.file), most_held=255)
        asked = [("published", tau, bar) for tau, bar in bars.published.items()]
        for calibration, tau, bar in [*asked, ("exact", 1, bars.exact)]:
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

    def _job(image: Image, epsilon: float, calibration: str, reports: int) -> DeployedJob:
        values = {
            "name": "image",
            "protocol": "fragments",
            "parameters": {
                "epsilon": epsilon,
                "delta": image.delta,
                "domain": {"grid": list(image.grid)},
                "neighbours": "removal",
                "calibration": calibration,
                "reports": reports,
            },
            "epochs": {"count": 1},
            "shuffle": {"minimum": image.users},
        }
        return deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))
