"""Prometheus and promtool from the system's packages."""

from __future__ import annotations

import shutil

import pytest


def find_tool(name: str) -> str:
    """Return the path of a Prometheus program, failing the test if it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing; on Debian and Ubuntu: apt install prometheus")
    return path
