"""Test estimates from real windows: unbiased, with the stated error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.aggregators.cell_window import CellWindow
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_counts import level_variance
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.projective_geometry import ProjectiveGeometryAggregator
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


def test_estimates_are_scaled_up_for_absent_users() -> None:
    law = law_of()
    aggregator = ProjectiveGeometryAggregator(law)
    words = np.arange(100, dtype=law.message_format.dtype)[:, None]
    aggregator.add(1, words, np.full(100, 7, np.uint32))
    everybody = aggregator.estimate(1, Participation.constant(1, 700))
    participation = Participation.empty(1)
    participation.set(1, contributors=700, population=1400)
    half = aggregator.estimate(1, participation)
    assert isinstance(everybody, ItemEstimates)
    assert isinstance(half, ItemEstimates)
    assert half.values.tolist() == (2 * everybody.values).tolist()
    assert half.standard_error > 2 * everybody.standard_error


def test_prefix_search_finds_the_top_items_of_open_domains() -> None:
    users, most = 100_000, 10
    law = calibrate(ProjectiveGeometryParameters(4.0, Bits(40)), 1, users)
    rng, drawn = seeded_generator(64), np.random.default_rng(1)
    values = drawn.integers(1, 1 << 40, users)
    popular = values[:most].copy()
    held = [9_000 - 500 * place for place in range(most)]
    values[: sum(held)] = np.repeat(popular, held)
    devices, aggregator = ProjectiveGeometry(law), ProjectiveGeometryAggregator(law)
    devices.enroll(users, rng)
    aggregator.add(1, devices.report(1, values[:, None], None, rng), None)
    participation = Participation.constant(1, users)
    found = aggregator.estimate(1, participation)
    assert isinstance(found, HeavyHitters)
    above = [place for place in range(most) if held[place] > found.detection_threshold]
    assert len(above) >= 8
    assert set(popular[above].tolist()) <= set(found.items.tolist())
    by_item = dict(zip(found.items.tolist(), found.values.tolist(), strict=True))
    for place in above:
        error = by_item[popular[place]] - held[place]
        assert abs(error) < 6 * found.standard_error
    window = aggregator.window([1], participation)
    assert isinstance(window, CellWindow)
    # The search relies on most cells being empty; the error is that of the most frequent item.
    rare, worst = (
        math.sqrt(level_variance(law.probabilities, users / 3, users, share))
        for share in (0.0, held[0] / users)
    )
    assert math.sqrt(window.noise_variance) == pytest.approx(rare, rel=0.02)
    assert found.standard_error == pytest.approx(worst, rel=0.1)
    (one,) = window.estimates.of_items([int(popular[0])])
    assert one[1].standard_error == pytest.approx(worst, rel=0.1)
    both = window.plus(window)
    assert both.held_variance == 2 * window.held_variance > window.noise_variance
    last = window.cells[law.prefixes.starts[-2] :] if law.prefixes else window.cells[:0]
    assert float(np.median(np.abs(last)) / 0.6745) == pytest.approx(rare, rel=0.1)
    assert worst > 1.5 * rare
