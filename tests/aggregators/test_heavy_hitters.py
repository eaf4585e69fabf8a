"""Test that top items round trip through JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.heavy_hitters import HeavyHitters

FOUND = HeavyHitters(
    items=np.array([1 << 40, 3]),
    values=np.array([91.25, 17.0]),
    standard_error=2.5,
    half_width=4.9,
    detection_threshold=21.9,
    reports=80,
    population=100,
    flags=("estimator: min",),
)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"found": [1]}, ValueError),
        ({"found": [[1, 2]], "values": [[1.0, 2.0]]}, ValueError),
        ({"found": ["x", "y"]}, ValueError),
        ({"reports": None}, TypeError),
        ({"flags": None}, TypeError),
    ],
)
def test_malformed_json_is_rejected(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        HeavyHitters.from_json({**FOUND.to_json(), **changes})
    with pytest.raises(KeyError):
        HeavyHitters.from_json({})
