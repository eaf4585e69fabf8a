"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast a machine is says nothing about the code.
settings.register_profile("dpstream", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dpstream")
