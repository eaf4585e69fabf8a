"""Windows of cells: sums over epochs whoever was there, and what they can be asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.cell_window import CellWindow
from dpstream.aggregators.count_min import CountMinAggregator
from dpstream.aggregators.counts import NotAskedForError
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.count_min import CountMin, CountMinLaw, CountMinParameters
from dpstream.randomizers.count_min.calibration import calibrate
from dpstream.randomizers.counted_words import written_out
from dpstream.randomizers.randomness import seeded_generator

LABELS = tuple("abcd")


def law_of(epochs: int, **changes: Any) -> CountMinLaw:
    asked = replace(CountMinParameters(2.0, 1e-3, LABELS, rows=1), **changes)
    return calibrate(asked, epochs, 100)


def run(law: CountMinLaw, shares: list[float], key: int) -> tuple[CountMinAggregator, Attendance]:
    """400 users, a quarter of whom hold each item; of each of them so large a share is present."""
    aggregator, devices = CountMinAggregator(law), CountMin(law)
    attendance, rng = Attendance.empty(len(shares)), seeded_generator(1, key)
    devices.enrol(400, rng)
    held = np.repeat([1, 2, 3, 4], 100)[:, None]
    for epoch, share in enumerate(shares, start=1):
        present = np.arange(400) % 100 < 100 * share
        words = written_out(devices.report(epoch, held, present, rng))
        aggregator.add(epoch, words.astype(np.uint32), None)
        attendance.set(epoch, int(present.sum()), 400)
    return aggregator, attendance


@pytest.mark.slow
@pytest.mark.parametrize(
    "dummies", ["poisson", "bernoulli", pytest.param("negative_binomial", marks=pytest.mark.verify)]
)
def test_sums_over_epochs_have_the_right_mean_and_variance(dummies: str) -> None:
    """Whatever share of the users is there at each: more of them add more noise."""
    law, shares, runs = law_of(3, dummies=dummies), [1.0, 0.5, 0.25], 2_000
    found, stated = np.empty((runs, 4)), 0.0
    for key in range(runs):
        window = CountMinAggregator.window(*_of(run(law, shares, key), [1, 2, 3]))
        assert window is not None
        found[key], stated = window.cells, window.noise_variance
    error = np.sqrt(stated / runs)
    assert np.abs(found.mean(axis=0) - 300).max() < 6.5 * error
    variances = found.var(axis=0) / stated
    assert np.abs(variances - 1).max() < 6.5 * np.sqrt(3 / runs)
    # Without the scale of those absent it would be another one.
    unscaled = sum(law.noise.moments(int(400 * share))[1] for share in shares)
    assert abs(variances.mean() * stated / unscaled - 1) > 6.5 * np.sqrt(3 / runs)


def _of(
    received: tuple[CountMinAggregator, Attendance], epochs: list[int]
) -> tuple[CountMinAggregator, list[int], Attendance]:
    return received[0], epochs, received[1]


def test_one_window_of_a_sum_that_was_withheld_leaves_nothing() -> None:
    aggregator, attendance = run(law_of(3), [1.0, 0.5, 0.25], 1)
    attendance.set(2, 0, 400)
    assert aggregator.window([1, 2], attendance) is None
    assert aggregator.estimate(2, attendance) is None
    assert aggregator.window([1, 3], attendance) is not None


def test_how_many_contributed_is_stated_beside_whom_it_is_about() -> None:
    aggregator, attendance = run(law_of(2), [1.0, 0.5], 1)
    window = aggregator.window([1, 2], attendance)
    assert window is not None
    assert (window.contributors, window.population) == (600, 800)
    ((_, first),) = window.estimates.of_items([1])
    for estimate in (first, window.published, window.estimates.top(2)):
        assert (estimate.reports, estimate.population) == (600, 800)


def test_a_stated_estimator_is_used_and_named() -> None:
    law = law_of(1, rows=3, buckets=3)
    aggregator = CountMinAggregator(law, "mean")
    aggregator.add(1, np.array([[0]], np.uint32), None)
    published = aggregator.estimate(1, Attendance.constant(1, 200))
    assert isinstance(published, ItemEstimates)
    assert published.flags == ("estimator: mean",)
    again = CountMinAggregator.from_bytes(law, aggregator.to_bytes(), "mean")
    assert again.to_bytes() == aggregator.to_bytes()


def test_the_items_most_held_are_found_largest_first_and_never_more_than_there_are() -> None:
    window = CellWindow(HashedRows.histogram(5), np.array([3.0, 9, -1, 9, 4]), 1.0, 20, 20)
    found = window.estimates.top(3)
    assert found.values.tolist() == [9.0, 9.0, 4.0]
    assert set(found.items[:2].tolist()) == {2, 4}
    assert found.items[2] == 5
    assert found.found_above == pytest.approx(4 + 1.96, abs=0.01)
    assert window.estimates.top(100).items.tolist()[2:] == [5, 1, 3]


def test_cells_answer_what_they_were_made_for() -> None:
    rows = CellWindow(HashedRows.histogram(4), np.zeros(4), 1.0, 9, 9)
    tree = CellWindow(Levels(4, (2, 2)), np.arange(7.0), 1.0, 5, 9)
    code = PrefixCells((PrefixLevel(2, 4), PrefixLevel(4, 16)), "example")
    prefixes = CellWindow(code, np.zeros(20), 1.0, 9, 9)
    for window in (rows, prefixes):
        assert window.estimates.tree is None
        with pytest.raises(NotAskedForError, match="ranges, boxes and quantiles"):
            window.estimates.box([0], [1])
        with pytest.raises(NotAskedForError, match="ranges, boxes and quantiles"):
            window.estimates.quantile(0.5)
    assert rows.estimates.listed() is not None
    assert prefixes.estimates.listed() is None
    grid = tree.estimates.tree
    assert grid is not None
    assert (grid.reports, grid.population) == (5, 9)
    ((_, second),) = tree.estimates.of_items([2])
    assert second.value == pytest.approx(float(grid.values[1]))
    ((_, third),) = prefixes.estimates.of_items([3])
    assert third.value == 0.0
