"""Test quantiles of integers: exact for exact counts, and robust to noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.grid_counts import GridCounts
from dpstream.aggregators.quantiles import quantile
from dpstream.randomizers.cell_codes.grid import AxisCode
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from tests.support.code_matrices import code_matrix

CODES: list[AxisCode] = [Levels(60, (4, 4, 4)), KeptNodes(60)]
NOISE = 100.0


def counts_of(
    code: AxisCode, held: NDArray[np.integer], rng: np.random.Generator | None
) -> GridCounts:
    exact = (code_matrix(code) @ held).astype(np.int64)
    noise = round(NOISE) if rng is None else rng.poisson(NOISE, code.cells)
    return GridCounts.from_cells(code, exact + noise, NOISE, NOISE, contributors=int(held.sum()))


@pytest.mark.parametrize("code", CODES)
def test_quantiles_of_exact_counts_are_exact(code: AxisCode) -> None:
    held = np.random.default_rng(1).integers(0, 100, code.size)
    held[10:20] = 0
    everybody = np.repeat(np.arange(code.size), held)
    counts = counts_of(code, held, None)
    for share in (np.arange(97) + 0.5) / 97:
        found = quantile(counts, share)
        # The smallest value with at least this fraction of values at or below it.
        assert found.value == everybody[math.ceil(share * len(everybody)) - 1]
        assert found.ci95_low <= found.value <= found.ci95_high


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_quantile_intervals_have_at_least_nominal_coverage(code: AxisCode) -> None:
    rng = np.random.default_rng(3)
    held = rng.integers(50, 200, code.size)
    everybody = np.repeat(np.arange(code.size), held)
    shares, runs = np.arange(1, 10) / 10, 500
    ground_truths = [everybody[math.ceil(share * len(everybody)) - 1] for share in shares]
    covered, widths = np.zeros(len(shares)), []
    for _ in range(runs):
        counts = counts_of(code, held, rng)
        for index, (share, ground_truth) in enumerate(zip(shares, ground_truths, strict=True)):
            found = quantile(counts, share)
            covered[index] += found.ci95_low <= ground_truth <= found.ci95_high
            widths.append(found.ci95_high - found.ci95_low)
    # Values are discrete, so intervals are wider than necessary.
    assert (covered / runs > 0.95 - 6.5 * math.sqrt(0.95 * 0.05 / runs)).all()
    assert 0 < np.mean(widths) < 3


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, math.nan])
def test_fractions_outside_0_to_1_are_rejected(share: float) -> None:
    with pytest.raises(ValueError, match="expected a number above 0 and below 1"):
        quantile(counts_of(CODES[0], np.full(60, 3), None), share)
