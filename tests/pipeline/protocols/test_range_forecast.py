"""What is said of a job over numbers before there are data."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dpstream.pipeline.protocols.hadamard_values import HadamardValuesForecast
from dpstream.pipeline.protocols.range_values import RangeValuesForecast
from dpstream.randomizers.range_values import RangeValuesParameters
from dpstream.randomizers.range_values.calibration import calibrate


def forecast(**more: object) -> RangeValuesForecast:
    given = {"epsilon": 2.0, "changes": 4, "low": 0, "high": 80, "buckets": 32, **more}
    parameters = RangeValuesParameters(**given)  # type: ignore[arg-type]
    return RangeValuesForecast(calibrate(parameters, 12), parameters, 12)


def test_deviations_grow_with_the_root_of_the_users() -> None:
    made = forecast()
    for of in (made.standard_deviations, made.smoothed_standard_deviations):
        assert of(400).shape == (12,)
        assert of(400) == pytest.approx(2 * of(100))
    assert made.range_deviations(100, 3, 4) == pytest.approx(made.standard_deviations(100))
    assert (made.smoothed_standard_deviations(100) <= made.standard_deviations(100)).all()


def test_no_range_is_further_off_than_the_plan_says() -> None:
    made = forecast()
    (said,) = [caveat for caveat in made.caveats if "wide range" in caveat]
    bound = float(said.partition("at most ")[2].partition(" times")[0])
    single = made.standard_deviations(1)[-1]
    largest = max(made.range_deviations(1, *ends)[-1] for ends in combinations(range(33), 2))
    assert 0.7 * bound < largest / single <= bound + 0.05


def test_of_two_buckets_it_is_a_job_over_two_items_whose_sum_is_known() -> None:
    """The halves' difference is known from both: half of the variance is left."""
    parameters = RangeValuesParameters(2.0, 4, 0, 80, 2)
    law = calibrate(parameters, 12)
    made = RangeValuesForecast(law, parameters, 12)
    items = HadamardValuesForecast(law.levels[0], 12)
    assert made.standard_deviations(50) == pytest.approx(items.standard_deviations(50) / np.sqrt(2))
    assert made.reports_per_user == pytest.approx(items.reports_per_user)


def test_a_forecast_says_how_many_flips_are_boosted() -> None:
    assert "all flips of a user whose bucket changes at most 4" in forecast(boosted=5).caveats[2]
    assert forecast(boosted=2).caveats[2].startswith("2 flips of what a device tracks are boosted")


def test_a_forecast_counts_no_more_changes_than_the_epochs_allow() -> None:
    """Twelve epochs allow a first value and eleven changes."""
    assert "changes at most 11 times" in forecast(changes=64, boosted=12).caveats[2]


def test_a_forecast_says_how_wide_buckets_are() -> None:
    assert forecast().caveats[0] == "values lie in 32 buckets, each 2.5 wide"
