"""Errors of items from sampled responses on real lives: as predicted, and as the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.sampled_items import SmoothedItemsAggregator
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import (
    SampledResponse,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.calibration import calibrate, unit_variance
from experiments.prepare_traminer import read_states, resample
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

# Data outside the repository, needed only by this test.
FOLDER = Path(__file__).parents[2].parent / "shared/data/traminer"
USERS, SEEDS = 100_000, 8


@dataclass(frozen=True)
class Setting:
    """Reference for a table and an epsilon: predicted RMSE, by item if all users have one.

    `measured` is the measured RMSE if all have one, and its standard error; `shrunk` those of
    shrunk estimates, from earlier epochs only and from all.
    """

    table: str
    epsilon: float
    complete: int
    with_none: int
    measured: tuple[int, int]
    by_item: tuple[int, ...]
    largest: int
    shrunk: tuple[int, int]


SETTINGS = [
    Setting(
        "mvad",
        1,
        4_316,
        4_423,
        (4_315, 22),
        (4324, 4284, 4507, 4257, 4248, 4272),
        13_815,
        (2_862, 2_254),
    ),
    Setting(
        "mvad",
        2,
        1_881,
        1_976,
        (1_886, 11),
        (1898, 1791, 2351, 1715, 1695, 1757),
        6_587,
        (1_526, 1_316),
    ),
    Setting(
        "mvad", 4, 1_008, 1_020, (1_009, 7), (1046, 940, 1375, 860, 820, 904), 3_836, (905, 832)
    ),
    Setting(
        "biofam",
        1,
        2_109,
        2_169,
        (2_105, 27),
        (2028, 2035, 2162, 2032, 2104, 2134, 2064, 2298),
        6_103,
        (1_752, 1_382),
    ),
    Setting(
        "biofam",
        2,
        902,
        940,
        (892, 9),
        (726, 745, 1007, 735, 896, 953, 810, 1223),
        2_768,
        (811, 712),
    ),
    Setting(
        "biofam", 4, 395, 401, (388, 5), (186, 224, 529, 206, 422, 467, 324, 583), 1_407, (380, 358)
    ),
    Setting("actcal", 1, 1_567, 1_743, (1_552, 32), (1664, 1516, 1613, 1467), 3_851, (1_081, 733)),
    Setting("actcal", 2, 748, 797, (732, 16), (837, 699, 796, 641), 1_828, (519, 372)),
    Setting("actcal", 4, 404, 452, (412, 9), (463, 372, 438, 329), 1_000, (306, 229)),
]


def law_of(setting: Setting, items: int, last_epoch: int, *, complete: bool) -> SampledResponseLaw:
    domain = tuple(map(str, range(items)))
    parameters = SampledResponseParameters(setting.epsilon, domain=domain, complete=complete)
    return calibrate(parameters, last_epoch)


def predicted(law: SampledResponseLaw, held: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the RMSE of each item over all epochs, given its users by epoch and item."""
    variances = [
        [USERS * unit_variance(law, share, USERS) for share in epoch] for epoch in held / USERS
    ]
    return np.asarray(np.sqrt(np.mean(variances, axis=0)), np.float64)


def errors_of(
    law: SampledResponseLaw, values: NDArray[np.int64], held: NDArray[np.float64], seed: int
) -> tuple[NDArray[np.float64], float, list[float]]:
    """Return the errors by epoch and item of one run, and the share of covered counts.

    The last result has the mean squared errors of shrunk estimates: from earlier epochs, from all.
    """
    rng = seeded_generator(seed, 9)
    devices, aggregator = SampledResponse(law), SmoothedItemsAggregator(law)
    devices.enroll(USERS, rng)
    errors, covered = [], []
    for epoch, (now, truth) in enumerate(zip(values, held, strict=True), 1):
        aggregator.add(epoch, devices.report(epoch, now, None, rng), None)
        found = aggregator.estimate(epoch, Participation.constant(len(values), USERS))
        assert isinstance(found, ItemEstimates)
        errors.append(found.values - truth)
        covered.append(np.abs(errors[-1]) <= found.half_width)
    smoothed = aggregator.smoothed(len(values), Participation.constant(len(values), USERS))
    assert smoothed.online_shrunk is not None
    assert smoothed.shrunk is not None
    shrunk = [
        float(np.mean((each - held) ** 2)) for each in (smoothed.online_shrunk, smoothed.shrunk)
    ]
    return np.array(errors), float(np.mean(covered)), shrunk


if FOLDER.exists():

    @pytest.mark.parametrize(
        "setting", SETTINGS, ids=lambda each: f"{each.table}-epsilon-{each.epsilon:g}"
    )
    def test_errors_on_real_life_courses_match_the_reference(setting: Setting) -> None:
        lives = np.array(resample(read_states(FOLDER / f"{setting.table}.csv.gz"), USERS, 1))
        labels, numbers = np.unique(lives, return_inverse=True)
        values = 1 + numbers.reshape(lives.shape).T.astype(np.int64)
        items, last_epoch = len(labels), len(values)
        held = np.array([np.bincount(now, minlength=1 + items)[1:] for now in values], float)
        law = law_of(setting, items, last_epoch, complete=True)
        with_none = law_of(setting, items, last_epoch, complete=False)
        assert law.reports == with_none.reports == (2 if (items, setting.epsilon) == (4, 4) else 1)
        by_item, others = predicted(law, held), predicted(with_none, held)
        planned, planned_with_none = (
            math.sqrt(float(np.mean(each**2))) for each in (by_item, others)
        )
        assert planned == pytest.approx(setting.complete, rel=1e-3, abs=0.6)
        assert planned_with_none == pytest.approx(setting.with_none, rel=1e-3, abs=0.6)
        assert by_item.tolist() == pytest.approx(setting.by_item, rel=1e-3, abs=0.6)

        runs, covered, shrunk = zip(
            *(errors_of(law, values, held, seed) for seed in range(SEEDS)), strict=True
        )
        squares = np.array([np.mean(errors**2) for errors in runs])
        rmse = math.sqrt(float(squares.mean()))
        error = float(squares.std(ddof=1)) / math.sqrt(SEEDS) / (2 * rmse)
        largest = float(np.mean([np.abs(errors).max() for errors in runs]))
        reference, reference_error = setting.measured
        assert abs(rmse - planned) < 4 * error + 0.01 * planned
        assert abs(rmse - reference) < 4 * math.hypot(error, reference_error)
        assert largest == pytest.approx(setting.largest, rel=0.25)
        assert float(np.mean(covered)) > 0.94
        filtered, smoothed = np.sqrt(np.mean(shrunk, axis=0)).tolist()
        # Runs whose unbiased errors are small by chance have small shrunk errors, too.
        tolerance = 0.03 + 3 * error / rmse
        assert (filtered, smoothed) == pytest.approx(setting.shrunk, rel=tolerance)
        print_table(
            f"{setting.table}, epsilon {setting.epsilon:g}, {SEEDS} seeds",
            [
                "sets",
                "answers",
                "predicted",
                "RMSE",
                "its error",
                "reference",
                "largest",
                "covered",
                "filtered",
                "smoothed",
            ],
            [
                [
                    str(law.sets),
                    f"{law.reports}",
                    *(f"{each:,.0f}" for each in (planned, rmse, error, reference, largest)),
                    f"{float(np.mean(covered)):.3f}",
                    *(f"{each:,.0f}" for each in (filtered, smoothed)),
                ]
            ],
        )
