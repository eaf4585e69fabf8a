"""What parts of the pipeline cost: a law with measured constants.

For an epoch of a job a part takes

    epoch + record * records + megabyte * megabytes

processor seconds of one core, and in an open window `record_bytes` of memory for each record.
`python -m tests.benchmarks.fleet_costs` measures the constants on a real broker, and then three
sizes that it has not seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, Final

from topics.frames import PAYLOAD_TARGET

BROKER: Final = "broker"
PARTS: Final = (BROKER, "shuffle", "aggregate", "publish")
"""Whose processor seconds are measured; those of devices are timed when they are planned."""
FILE: Final = "fleet_costs.json"
"""In this package: the constants that were measured last."""
_MEGABYTE: Final = 1e6
# A frame around a batch of reports, and what Kafka adds to a record that is sent by itself.
_FRAME_BYTES: Final = 150.0


@dataclass(frozen=True, slots=True)
class PartCost:
    """What one part takes.

    Attributes:
        epoch: processor seconds for an epoch, whatever is in it.
        record: processor seconds for a record of a gateway, of reports or a punctuation.
        tabular_megabyte: processor seconds for 10^6 bytes of reports that a table counts.
        sorted_megabyte: the same of reports that are sorted.
        idle: cores that are busy with a job of which nothing comes.
        megabytes: of memory, with such a job.
        record_bytes: of memory, for each record of a window that is open.
    """

    epoch: float
    record: float
    tabular_megabyte: float
    sorted_megabyte: float
    idle: float
    megabytes: float
    record_bytes: float


@dataclass(frozen=True, slots=True)
class CostConstants:
    """What all parts take, and where that was measured.

    Attributes:
        machine: in words; other cores are faster or slower than its.
        parts: by `PARTS`.
        table_megabytes: that are passed on, at most, of a window that a table counts.
        sorted_out: bytes that are passed on for each byte of reports that are sorted.
    """

    machine: str
    parts: Mapping[str, PartCost]
    table_megabytes: float
    sorted_out: float

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CostConstants:
        """The constants whose fields these are."""
        return cls(
            **{**values, "parts": {name: PartCost(**values["parts"][name]) for name in PARTS}}
        )


def cost_constants() -> CostConstants:
    """Those that were measured last."""
    text = resources.files(__package__).joinpath(FILE).read_text("utf-8")
    return CostConstants.from_json(json.loads(text))


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all gateways of a job send in an epoch.

    Attributes:
        reports: of all devices.
        gateways: how many send.
        gateway_bytes: of the reports of one of them, as they are encoded.
        tabular: whether a table counts them, for there are few different ones.

    >>> Traffic(reports=1e6, gateways=10, gateway_bytes=1e5, tabular=True).records
    30
    """

    reports: float
    gateways: int
    gateway_bytes: float
    tabular: bool

    @property
    def records(self) -> int:
        """Batches and punctuations: a gateway sends at least one of each."""
        return self.gateways * (1 + max(1, math.ceil(self.gateway_bytes / PAYLOAD_TARGET)))

    @property
    def megabytes(self) -> float:
        """Of all records, 10^6 bytes each."""
        return (self.gateways * self.gateway_bytes + _FRAME_BYTES * self.records) / _MEGABYTE


def processor_seconds(cost: PartCost, traffic: Traffic) -> float:
    """What a part takes for an epoch."""
    megabyte = cost.tabular_megabyte if traffic.tabular else cost.sorted_megabyte
    return cost.epoch + cost.record * traffic.records + megabyte * traffic.megabytes


def memory_megabytes(cost: PartCost, traffic: Traffic, processes: int) -> float:
    """What processes hold of a part that each have one window open."""
    return processes * (cost.megabytes + cost.record_bytes * traffic.records / _MEGABYTE)
