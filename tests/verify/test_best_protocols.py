"""Which protocol without a trusted party errs least, by horizon, epsilon and changes per user.

Predictions for 100,000 users, compared with the reference: `S` where asking each user few times is
predicted to err least, `V` and `H` where value_stream and hadamard_values are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.results.expected_errors import forecast_of, rmse_of
from tests.support.new_jobs import new_job
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

USERS = 100_000
EPSILONS = (0.5, 1.0, 2.0, 4.0)
CHANGES = (1, 2, 4, 16)

COUNTS: dict[int, tuple[tuple[int, ...], str]] = {
    4: ((1_274, 652, 318, 130), "SSSS SSSS SSSS SSSS"),
    12: ((2_215, 1_145, 583, 297), "VSSS VSSS VSSS VSSS"),
    52: ((4_618, 2_397, 1_240, 667), "VVVS VVVS VVVS VVVS"),
    170: ((8_353, 4_338, 2_251, 1_224), "VVVV VVVV VVVV VVVV"),
    1_024: ((20_503, 10_652, 5_534, 3_020), "VVVV VVVV VVVV VVVV"),
}
"""RMSE of sampled_response for a value that a quarter has, by epsilon; best by epsilon, changes."""

ITEMS: dict[int, dict[int, tuple[tuple[int, ...], str]]] = {
    16: {
        4: ((2_359, 1_143, 503, 185), "SSSS SSSS SSSS SSSS"),
        12: ((4_088, 1_983, 879, 338), "SSSS SSSS SSSS SSSS"),
        52: ((8_510, 4_130, 1_835, 718), "HHHS HHHS HHSS SSSS"),
        170: ((15_388, 7_468, 3_319, 1_304), "HHHH HHHH HHHS HHSS"),
        1_024: ((37_767, 18_329, 8_148, 3_204), "HHHH HHHH HHHH HHHH"),
    },
    1_024: {
        4: ((2_513, 1_227, 544, 177), "SSSS SSSS SSSS SSSS"),
        12: ((4_353, 2_125, 943, 307), "SSSS SSSS SSSS SSSS"),
        52: ((9_062, 4_423, 1_962, 639), "HHHS HHHS HHHS SSSS"),
        170: ((16_384, 7_998, 3_548, 1_155), "HHHH HHHH HHHH HSSS"),
        1_024: ((40_212, 19_628, 8_708, 2_834), "HHHH HHHH HHHH HHHH"),
    },
}
"""The same for an item that one in D users has, by number of items."""

LARGEST: dict[int, tuple[int, ...]] = {
    4: (2_515, 1_228, 544, 178),
    12: (4_357, 2_127, 943, 309),
    52: (9_069, 4_428, 1_963, 642),
    170: (16_398, 8_006, 3_549, 1_162),
    1_024: (40_246, 19_648, 8_709, 2_851),
}
"""RMSE of sampled_response, the only protocol for whole streams of 2^20 items, by epsilon."""


@cache
def error_of(protocol: str, epsilon: float, epochs: int, items: int, **parameters: Any) -> float:
    domain = {"domain": [str(item) for item in range(items)]} if items else {}
    job = new_job("plan", protocol, {"epsilon": epsilon, **domain, **parameters}, count=epochs)
    return rmse_of(forecast_of(job, job.calibrate()), USERS)


@pytest.mark.parametrize("items", [0, *ITEMS])
def test_predicted_best_protocols_match_the_reference(items: int) -> None:
    other = "hadamard_values" if items else "value_stream"
    share = {} if items else {"share": 0.25}
    rows, reference = [], ITEMS[items] if items else COUNTS
    for epochs, (errors, winners) in reference.items():
        best, cells = [], []
        for epsilon, error in zip(EPSILONS, errors, strict=True):
            sampled = error_of("sampled_response", epsilon, epochs, items, **share)
            others = [
                error_of(other, epsilon, epochs, items, max_changes=changes) for changes in CHANGES
            ]
            best.append("".join("S" if sampled < each else other[0].upper() for each in others))
            cells.append(f"{sampled:,.0f} : {' '.join(f'{each:,.0f}' for each in others)}")
            assert sampled == pytest.approx(error, rel=0.003), (epochs, epsilon)
        rows.append([f"{epochs:,}", *cells, " ".join(best)])
        assert " ".join(best) == winners, epochs
    print_table(
        f"sampled_response : {other} with 1, 2, 4, 16 changes, {items} items, {USERS:,} users",
        ["epochs", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "best"],
        rows,
    )


def test_only_sampled_response_follows_two_to_the_power_20_items() -> None:
    for epochs, errors in LARGEST.items():
        for epsilon, error in zip(EPSILONS, errors, strict=True):
            parameters = {"epsilon": epsilon, "domain": {"bits": 20}}
            job = new_job("plan", "sampled_response", parameters, count=epochs)
            predicted = rmse_of(forecast_of(job, job.calibrate()), USERS)
            assert predicted == pytest.approx(error, rel=0.003), (epochs, epsilon)
    with pytest.raises(JobError, match="4,096"):
        error_of("hadamard_values", 1.0, 4, 4_097, max_changes=1)
