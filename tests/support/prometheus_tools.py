"""Prometheus and its promtool, which the system's packages bring."""

from __future__ import annotations

import shutil

import pytest


def find_tool(name: str) -> str:
    """The path of a program of Prometheus; a test that needs it fails without it."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"there is no {name}: on Debian and Ubuntu, apt install prometheus brings it")
    return path
