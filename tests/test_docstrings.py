"""Docstring examples are correct."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import dpstream.aggregators
import dpstream.pipeline
import dpstream.randomizers
import dpstream.topics
import experiments


def modules() -> list[str]:
    """Return every package and module with an example, including the experiments."""
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
    return [name for name in names if not name.endswith("__main__") and ">>>" in source(name)]


def source(name: str) -> str:
    spec = find_spec(name)
    return Path(spec.origin).read_text() if spec and spec.origin else ""


def test_docstring_examples_are_correct() -> None:
    # A single test, because searching during collection would take seconds in every worker.
    failed = [name for name in modules() if doctest.testmod(import_module(name)).failed]
    assert failed == []
