"""Lazy imports of calibrations and forecasts, which running a protocol does not need."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def late(package: str, function: str) -> Callable[..., Any]:
    return late_function(f"dpstream.randomizers.{package}.calibration", function)


def late_function(module: str, function: str) -> Callable[..., Any]:
    """Return a function whose module is imported at its first call."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(module), function)(*arguments)

    return call


def late_plan(module: str, function: str) -> Callable[..., Any]:
    return late_function(f"dpstream.pipeline.protocols.{module}", function)


def late_calibration(package: str, *, sized: bool = False) -> Callable[..., Any]:
    """Return a lazily imported calibration; unless `sized`, it ignores the minimum window size."""
    calibrate = late(package, "calibrate")
    if sized:
        return calibrate
    return lambda parameters, last_epoch, minimum: calibrate(parameters, last_epoch)
