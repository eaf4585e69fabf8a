"""Predictions match golden numbers derived by the reference.

Values match if they print the same digits.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.protocols.dyadic_variants import FutureRandForecast
from dpstream.randomizers.accounting.calibration import optimal, published
from dpstream.randomizers.dyadic import FutureRandLaw
from tests.support.new_jobs import new_job
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

# At epsilon 1, by k: c_gap and exact loss with published calibration, c_gap with optimal.
C_GAPS = {
    1: (".099668", ".200000", ".462117"),
    2: (".048723", ".186376", ".300489"),
    4: (".036380", ".252435", ".209620"),
    8: (".0268", ".342", ".1446"),
    16: (".0195", ".464", ".0998"),
    64: (".0101", ".470", ".0499"),
    256: (".0051", ".474", ".0248"),
    1024: (".0026", ".482", ".0124"),
}

# At epsilon 1, by epochs and k: RMSE divided by the square root of the number of users, with
# published calibration and with optimal calibration for k signs at every order.
ERRORS = {
    (64, 1): ("46.1", "9.9"),
    (64, 4): ("126", "21.9"),
    (64, 16): ("236", "46.0"),
    (256, 1): ("60.2", "13.0"),
    (256, 4): ("165", "28.6"),
    (256, 16): ("308", "60.1"),
    (1024, 1): ("74.4", "16.0"),
    (1024, 4): ("204", "35.4"),
    (1024, 16): ("380", "74.3"),
    (4096, 1): ("88.6", "19.1"),
    (4096, 4): ("243", "42.1"),
    (4096, 16): ("453", "88.5"),
}


def test_c_gaps_and_privacy_losses_match_the_reference() -> None:
    rows = []
    for k, golden in C_GAPS.items():
        law = published(k, 1.0)
        ours = [
            alike(value, printed)
            for value, printed in zip(
                (law.c_gap, law.loss, optimal(k, 1.0).c_gap), golden, strict=True
            )
        ]
        rows.append([str(k), *(cell for pair in zip(ours, golden, strict=True) for cell in pair)])
    columns = ["k", "published c_gap", "reference", "loss", "reference", "optimal c_gap"]
    print_table("Composed laws, epsilon 1", [*columns, "reference"], rows)
    assert all(row[1::2] == row[2::2] for row in rows)


def test_predicted_errors_match_the_reference() -> None:
    """Published calibration, and optimal calibration with k signs at every order (Algorithm 2)."""
    rows = []
    for (epochs, k), golden in ERRORS.items():
        orders = epochs.bit_length()
        same_everywhere = FutureRandLaw(epochs, 1.0, (1,) * orders, (optimal(k, 1.0),) * orders)
        deviations = FutureRandForecast(same_everywhere, epochs, "prefix").standard_errors(1)
        rows.append(
            [
                *map(str, (epochs, k)),
                alike(planned_error(epochs, k, "published"), golden[0]),
                golden[0],
                alike(float(np.sqrt(np.square(deviations).mean())), golden[1]),
                golden[1],
                f"{planned_error(epochs, k, 'optimal'):.1f}",
            ]
        )
    columns = ["epochs", "k", "published", "reference", "optimal, k signs", "reference"]
    print_table("Predicted RMSE / sqrt(users), epsilon 1", [*columns, "optimal, as planned"], rows)
    assert all((row[2], row[4]) == (row[3], row[5]) for row in rows)


def planned_error(epochs: int, changes: int, calibration: str) -> float:
    users = 1_000_000
    job = new_job(
        "reference",
        "future_rand",
        {
            "epsilon": 1,
            "max_changes": changes,
            "calibration": calibration,
            "estimator": "tree" if calibration == "optimal" else "prefix",
        },
        count=epochs,
    )
    return plan(job, users).rmse / math.sqrt(users)


def alike(value: float, printed: str) -> str:
    """Return a value rounded to the printed digits."""
    decimals = len(printed.partition(".")[2])
    text = f"{value:.{decimals}f}"
    return text.removeprefix("0") if printed.startswith(".") else text
