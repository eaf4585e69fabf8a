"""The examples in docstrings of experiments do what they show."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import experiments

MODULES = [
    module.name
    for module in pkgutil.walk_packages(experiments.__path__, "experiments.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0
