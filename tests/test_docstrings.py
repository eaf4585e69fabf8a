"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import dpstream.aggregators
import dpstream.pipeline
import dpstream.randomizers
import dpstream.topics
import experiments


def modules() -> list[str]:
    """Every package and module that is installed, and the experiments."""
    packages = (
        dpstream.aggregators,
        dpstream.pipeline,
        dpstream.randomizers,
        dpstream.topics,
        experiments,
    )
    inside = [
        module.name
        for package in packages
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    names = [package.__name__ for package in packages] + inside
    return [name for name in names if not name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0
