"""Estimates from real windows: right on average, and as far off as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.cell_window import CellWindow
from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.projective_geometry import (
    ProjectiveGeometryAggregator,
    level_variance,
)
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.projective_geometry import (
    ProjectiveGeometry,
    ProjectiveGeometryLaw,
    ProjectiveGeometryParameters,
)
from dpstream.randomizers.projective_geometry.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator

USERS, ITEMS = 20_000, 600
LABELS = tuple(map(str, range(ITEMS)))


def law_of(slots: int = 1, epsilon: float = 1.0, epochs: int = 1) -> ProjectiveGeometryLaw:
    return calibrate(ProjectiveGeometryParameters(epsilon, LABELS, slots), epochs, 100)


def test_the_silent_are_spoken_for() -> None:
    law = law_of()
    aggregator = ProjectiveGeometryAggregator(law)
    words = np.arange(100, dtype=law.word_form.dtype)[:, None]
    aggregator.add(1, words, np.full(100, 7, np.uint32))
    everybody = aggregator.estimate(1, Attendance.constant(1, 700))
    attendance = Attendance.empty(1)
    attendance.set(1, contributors=700, population=1400)
    half = aggregator.estimate(1, attendance)
    assert isinstance(everybody, ItemEstimates)
    assert isinstance(half, ItemEstimates)
    assert half.values.tolist() == (2 * everybody.values).tolist()
    assert half.standard_deviation > 2 * everybody.standard_deviation


def test_an_epoch_without_reports_has_no_estimate() -> None:
    law = law_of(epochs=2)
    aggregator = ProjectiveGeometryAggregator(law)
    aggregator.add(1, np.zeros((0, 1), law.word_form.dtype), None)
    assert aggregator.estimate(1, Attendance.constant(2, 5)) is None
    assert aggregator.window([1, 2], Attendance.constant(2, 5)) is None
    assert aggregator.to_bytes() == b""


def test_epochs_add_up() -> None:
    law = law_of(epochs=2)
    aggregator = ProjectiveGeometryAggregator(law)
    for epoch in (1, 2):
        words = np.arange(epoch, 40, dtype=law.word_form.dtype)[:, None]
        aggregator.add(epoch, words, None)
    attendance = Attendance.constant(2, 50)
    one, two = (aggregator.window([epoch], attendance) for epoch in (1, 2))
    both = aggregator.window([1, 2], attendance)
    assert isinstance(one, ItemEstimates)
    assert isinstance(two, ItemEstimates)
    assert isinstance(both, ItemEstimates)
    assert both.values == pytest.approx(one.values + two.values)
    assert both.standard_deviation == pytest.approx(
        math.hypot(one.standard_deviation, two.standard_deviation)
    )


def test_of_domains_too_large_to_publish_the_items_most_held_are() -> None:
    law = calibrate(ProjectiveGeometryParameters(2.0, Bits(16)), 1, 100)
    values = np.full((50_000, 1), 777)
    devices, rng = ProjectiveGeometry(law), seeded_generator(63)
    devices.enrol(len(values), rng)
    aggregator = ProjectiveGeometryAggregator(law)
    aggregator.add(1, devices.report(1, values, None, rng), None)
    attendance = Attendance.constant(1, len(values))
    found = aggregator.estimate(1, attendance)
    assert isinstance(found, FoundItems)
    assert found.items[0] == 777
    every = aggregator.window([1], attendance)
    assert isinstance(every, ItemEstimates)
    assert len(every.values) == 1 << 16
    assert every.values[776] == found.values[0]


def test_of_open_domains_the_items_most_held_are_found_through_prefixes() -> None:
    """Ten items by many, and one by each of the others."""
    users, most = 100_000, 10
    law = calibrate(ProjectiveGeometryParameters(4.0, Bits(40)), 1, users)
    rng, drawn = seeded_generator(64), np.random.default_rng(1)
    values = drawn.integers(1, 1 << 40, users)
    popular = values[:most].copy()
    held = [9_000 - 500 * place for place in range(most)]
    values[: sum(held)] = np.repeat(popular, held)
    devices, aggregator = ProjectiveGeometry(law), ProjectiveGeometryAggregator(law)
    devices.enrol(users, rng)
    aggregator.add(1, devices.report(1, values[:, None], None, rng), None)
    attendance = Attendance.constant(1, users)
    found = aggregator.estimate(1, attendance)
    assert isinstance(found, FoundItems)
    above = [place for place in range(most) if held[place] > found.found_above]
    assert len(above) >= 8
    assert set(popular[above].tolist()) <= set(found.items.tolist())
    by_item = dict(zip(found.items.tolist(), found.values.tolist(), strict=True))
    for place in above:
        error = by_item[popular[place]] - held[place]
        assert abs(error) < 6 * found.standard_deviation
    window = aggregator.window([1], attendance)
    assert isinstance(window, CellWindow)
    # The search knows that most cells are empty; what is found is as bad as the item most held.
    rare, worst = (
        math.sqrt(level_variance(law, users / 3, users, share)) for share in (0.0, held[0] / users)
    )
    assert math.sqrt(window.noise_variance) == pytest.approx(rare, rel=0.02)
    assert found.standard_deviation == pytest.approx(worst, rel=0.1)
    (one,) = window.estimates.of_items([int(popular[0])])
    assert one[1].standard_deviation == pytest.approx(worst, rel=0.1)
    both = window.plus(window)
    assert both.held_variance == 2 * window.held_variance > window.noise_variance
    last = window.cells[law.prefixes.starts[-2] :] if law.prefixes else window.cells[:0]
    assert float(np.median(np.abs(last)) / 0.6745) == pytest.approx(rare, rel=0.1)
    assert worst > 1.5 * rare


def test_cells_of_prefixes_are_counted_level_by_level() -> None:
    """Without noise: words of a level speak for all users."""
    code = PrefixCells((PrefixLevel(2, 4), PrefixLevel(5, 12)), seed="counted")
    odds = ComposedLaw((10**30, 1))
    law = ProjectiveGeometryLaw(32, 1, 13, 2, 10, 1, odds, 0.5, 0.5, 1e-6, code)
    values = np.array([0, *[32] * 3000, *[7] * 5000, *[0] * 1999])[:, None]
    devices, rng = ProjectiveGeometry(law), seeded_generator(65)
    devices.enrol(len(values), rng)
    aggregator = ProjectiveGeometryAggregator(law)
    aggregator.add(1, devices.report(1, values, None, rng), None)
    window = aggregator.window([1], Attendance.constant(1, len(values)))
    assert isinstance(window, CellWindow)
    expected = np.zeros(code.cells)
    for item, held in ((32, 3000), (7, 5000)):
        expected[code.encode(np.array([item]))[0]] += held
    deviation = math.sqrt(window.noise_variance + window.held_variance)
    assert deviation == pytest.approx(50, rel=0.1)
    assert np.abs(window.cells - expected).max() < 6 * deviation
    assert np.abs(window.cells[expected == 0]).max() < 1e-6
