"""Pytest settings of all tests."""

from __future__ import annotations

import gc
import tomllib
from collections.abc import Callable, Generator
from fractions import Fraction
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Tests must not fail because the machine is slow.
settings.register_profile("dpstream", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dpstream")

# Timeouts in seconds by marker; of several markers the longest applies.
LIMITS = {"kafka": 1_200, "browser": 1_200, "verify": 4 * 3_600}


def pytest_configure() -> None:
    """Stop if the installed entry points of the experiments are not those of the sources."""
    project = tomllib.loads((Path(__file__).parents[1] / "experiments/pyproject.toml").read_text())
    for group, declared in project["project"]["entry-points"].items():
        installed = {each.name: each.value for each in entry_points(group=group)}
        if not declared.items() <= installed.items():
            raise pytest.UsageError(
                "experiments/pyproject.toml is not installed: run 'make install'"
            )


@pytest.fixture(
    params=[
        pytest.param(3, id="every third action"),
        pytest.param(1, id="every action", marks=pytest.mark.verify),
    ]
)
def stride(request: pytest.FixtureRequest) -> int:
    """Return the distance between the actions after which a process is killed."""
    every: int = request.param
    return every


@pytest.fixture
def exponential_below() -> Callable[[float], Fraction]:
    """Return a lower bound of e^x for x >= 0, within 2^-400, by its series in integers."""

    def bound(exponent: float) -> Fraction:
        numerator, denominator = exponent.as_integer_ratio()
        term = total = 1 << 600
        step = 0
        while term:
            step += 1
            term = term * numerator // (denominator * step)
            total += term
        return Fraction(total, 1 << 600)

    return bound


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause garbage collection during imports, and exempt imported objects from later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests with brokers first, and set a longer timeout for long tests without one."""
    for item in items:
        limits = [seconds for marker, seconds in LIMITS.items() if item.get_closest_marker(marker)]
        if limits and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(max(limits)))
    # Broker tests mostly wait, so other tests can use the processor meanwhile.
    items.sort(key=lambda item: item.get_closest_marker("kafka") is None)
