"""Calibration and plans, imported when called: who runs a protocol reads its entry without them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def late(package: str, function: str) -> Callable[..., Any]:
    """A function of the calibration in a package of `randomizers`."""
    return late_function(f"dpstream.randomizers.{package}.calibration", function)


def late_function(module: str, function: str) -> Callable[..., Any]:
    """A function of a module that is imported when the function is called."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(module), function)(*arguments)

    return call


def late_plan(module: str, function: str) -> Callable[..., Any]:
    """A function of a module beside this one that `plan` alone needs."""
    return late_function(f"dpstream.pipeline.protocols.{module}", function)


def late_calibration(package: str, *, sized: bool = False) -> Callable[..., Any]:
    """How a law is made; where noise is `sized` on the smallest window, it is told of that."""
    calibrate = late(package, "calibrate")
    if sized:
        return calibrate
    return lambda parameters, last_epoch, minimum: calibrate(parameters, last_epoch)
