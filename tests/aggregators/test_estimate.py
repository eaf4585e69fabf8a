from __future__ import annotations

import json

from dpstream.aggregators.estimate import GAP, NORMAL_95, Estimate


def test_an_estimate_survives_json() -> None:
    for estimate in (
        Estimate(10.5, 2.0, 6.6, 14.4, 100, 120),
        Estimate(None, None, None, None, 0, 120, (GAP, "withheld")),
    ):
        assert Estimate.from_json(json.loads(json.dumps(estimate.to_json()))) == estimate


def test_half_width_of_a_95_percent_interval() -> None:
    assert abs(NORMAL_95 - 1.959963984540054) < 1e-12
