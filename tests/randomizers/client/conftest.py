"""Fixtures of devices with controlled clocks, store and collector."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dpstream.randomizers.client import Device, Limit
from tests.support.small_collector import SIGNER, START, MemoryStore, SmallCollector, deployed


@dataclass
class Phone:
    """Environment of a device; `start` simulates a new process of the app.

    Attributes:
        time: Wall clock of the device, in milliseconds since 1970.
        seconds: Monotonic clock of the device.
    """

    collector: SmallCollector
    store: Any = field(default_factory=MemoryStore)
    limit: Limit = field(default_factory=lambda: Limit.of(100, 1e-3))
    time: int = START
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)

    def start(self) -> Device:
        more: dict[str, Any] = {
            "transport": self.collector,
            "store": self.store,
            "now": lambda: self.time,
            "monotonic": lambda: self.seconds,
            "jitter": lambda: 1.0,
            **self.more,
        }
        name = self.collector.job.name
        return Device("https://example.org", name, signers=[SIGNER], limit=self.limit, **more)

    def joined(self) -> Device:
        device = self.start()
        device.join()
        return device

    def statement(self) -> dict[str, Any]:
        told = self.collector.job.signed_description
        assert told is not None
        statement: dict[str, Any] = json.loads(told.statement)
        return statement

    def wait(self, milliseconds: int) -> None:
        self.time += milliseconds
        self.seconds += milliseconds / 1000
        self.collector.time += milliseconds


@pytest.fixture
def make_phone() -> Callable[..., Phone]:
    def make(job: dict[str, Any] | None = None, **more: Any) -> Phone:
        return Phone(SmallCollector(deployed(**(job or {}))), **more)

    return make


@pytest.fixture
def phone(make_phone: Callable[..., Phone]) -> Phone:
    return make_phone()
