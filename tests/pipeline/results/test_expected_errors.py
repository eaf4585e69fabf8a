"""Test the simultaneous error bound of all epochs: a union bound, compared with device runs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpstream.pipeline.results.expected_errors import largest_error

USERS, EPOCHS, RUNS = 500, 16, 200


@pytest.mark.parametrize(
    "deviations",
    [[3.0], [2.0] * 50, [1.0, 5.0, 2.0], [1e-9, 1.0], [1e-300, 1.0], [1.0 + n for n in range(999)]],
)
def test_exceedance_probabilities_sum_to_the_requested_level(deviations: list[float]) -> None:
    bound = largest_error(np.array(deviations), 0.01)
    assert sum(2 * stats.norm.sf(bound / each) for each in deviations) == pytest.approx(
        0.01, rel=1e-11
    )
