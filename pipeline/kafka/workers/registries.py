"""Registries for Prometheus whose figures are made whenever somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class _Families(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def registry_with(
    families: Callable[[], Iterator[Metric]], process: str | None = None
) -> CollectorRegistry:
    """A registry of some metrics, and of those of this process.

    Args:
        families: gives the metrics; any thread may call it.
        process: what begins the names of those of the process; None: these are left out.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    if process is not None:
        ProcessCollector(namespace=process, registry=registry)
    return registry
