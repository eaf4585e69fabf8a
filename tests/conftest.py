"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is says nothing about the code.
settings.register_profile("dpstream", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dpstream")

# Seconds after which a test with a marker has hung; of several markers the longest counts.
LIMITS = {"kafka": 1_200, "browser": 1_200, "verify": 4 * 3_600}


@pytest.fixture(
    params=[
        pytest.param(3, id="every third action"),
        pytest.param(1, id="every action", marks=pytest.mark.verify),
    ]
)
def stride(request: pytest.FixtureRequest) -> int:
    """Of the actions after which something is killed, one run for each."""
    every: int = request.param
    return every


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with those on brokers; give long ones more time, unless they say how much."""
    for item in items:
        limits = [seconds for marker, seconds in LIMITS.items() if item.get_closest_marker(marker)]
        if limits and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(max(limits)))
    # Beside tests that wait for a broker others have the processor: so these come first.
    items.sort(key=lambda item: item.get_closest_marker("kafka") is None)
