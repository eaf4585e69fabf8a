"""The heavy hitters of Table I: its columns, and estimates as accurate as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.randomizers.fragments.calibration import loss_of_report
from experiments.esa_heavy_hitters import (
    EPSILONS,
    found,
    fragments,
    histogram,
    losses,
    reports,
)


def test_columns_are_those_of_the_paper() -> None:
    rows = [losses(epsilon) for epsilon in EPSILONS]
    columns = {
        "sigma": ([row.sigma for row in rows], (1821.02, 455.34, 91.16, 18.32, 4.66)),
        "loss": ([row.loss for row in rows], (1.78, 4.07, 7.235, 10.40, 12.99)),
        "one of 4": ([row.of_one[4] for row in rows], (0.47, 2.47, 5.63, 8.79, 11.38)),
        "one of 16": ([row.of_one[16] for row in rows], (0.13, 1.30, 4.40, 7.56, 10.15)),
        "one of 256": ([row.of_one[256] for row in rows], (0.01, 0.11, 1.72, 4.85, 7.44)),
    }
    for name, (ours, printed) in columns.items():
        assert ours == pytest.approx(printed, abs=0.0101), name
    messages = (256_589, 29_856.75, 1_281.93, 55.11, 5.06)
    assert [row.messages for row in rows] == pytest.approx(messages, rel=0.004)
    sketched = (9_457.76, 1_101.36, 48.21, 2.99, 1.15)
    assert [row.sketched for row in rows] == pytest.approx(sketched, rel=0.004)
    # The rounded figures of the first row are 1.45, 1.50 and 1.52 in the paper.
    assert list(rows[0].of_all.values()) == pytest.approx((1.45, 1.50, 1.52), abs=0.03)


@pytest.mark.parametrize("number", [1, 4, 256])
def test_errors_are_those_of_bits_reversed_once_or_twice(number: int) -> None:
    users, rng = 50_000, np.random.default_rng(1)
    truth = histogram(users, 4_000, rng)
    assert truth.sum() == users
    loss = 3.0
    estimates = (
        fragments(truth, users, loss, rng)
        if number == 1
        else reports(truth, users, loss, number, rng)
    )

    def variance(of: float) -> float:
        return float(np.exp(of) / np.expm1(of) ** 2)

    expected = users * variance(loss)
    if number > 1:
        kept = float(np.tanh(loss / 2))
        expected += users * variance(loss_of_report(loss, number)) / number / kept**2
    right, error = found(estimates, truth, 10)
    assert error == pytest.approx(np.sqrt(expected), rel=0.1)
    assert right >= 1
    assert found(truth.astype(np.float64), truth, 10) == (10, 0.0)
