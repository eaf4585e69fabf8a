"""Protocol in which every report has its own cell, to detect any lost or repeated report.

A device's value and its report are the number of the device's cell, without noise or privacy. The
state counts reports per cell and epoch; after any fault, every count must be 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Estimate, Participation
from dpstream.pipeline.protocols.protocol import Aggregation, Protocol
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.message_formats import MessageFormat

NAME = "cells"


@dataclass(frozen=True)
class CellsParameters:
    cells: int


@dataclass(frozen=True)
class CellsLaw:
    cells: int
    last_epoch: int

    def to_json(self) -> dict[str, Any]:
        return {"cells": self.cells, "last_epoch": self.last_epoch}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        return cls(body["cells"], body["last_epoch"])


class Cells(Devices[CellsLaw]):
    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            epsilon=1e9,
            delta=0.0,
            unit="epoch",
            neighbors="none: every report tells its value",
            trust="everybody",
            basis="exact",
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint16]:
        chosen = values if present is None else values[present]
        return chosen.astype("<u2")[:, None]


class CellsAggregator:
    """Count reports; `counts` is int64, shape (last epoch + 1, cells)."""

    def __init__(self, law: CellsLaw) -> None:
        self.law = law
        self.counts = np.zeros((law.last_epoch + 1, law.cells), np.int64)

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        if len(words) and int(words.max()) >= self.law.cells:
            raise ValueError(f"epoch {epoch}: cell {int(words.max())} of {self.law.cells}")

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.uint32] | None,
    ) -> None:
        self.check_messages(epoch, words)
        np.add.at(self.counts[epoch], words[:, 0], 1 if counts is None else counts)

    def merge(self, other: Self) -> None:
        self.counts += other.counts

    def to_bytes(self) -> bytes:
        flat = np.flatnonzero(self.counts)
        return flat.astype("<i8").tobytes() + self.counts.ravel()[flat].astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, law: CellsLaw, data: bytes) -> Self:
        aggregator = cls(law)
        flat, counts = np.frombuffer(data, "<i8").reshape(2, -1)
        aggregator.counts.ravel()[flat] = counts
        return aggregator

    def estimate(self, epoch: int, participation: Participation) -> Estimate:
        counts = self.counts[epoch]
        return Estimate(
            value=float(counts.sum()),
            standard_error=0.0,
            ci95_low=float(counts.min()),
            ci95_high=float(counts.max()),
            reports=int(counts.sum()),
            population=int(participation.population[epoch]),
            flags=(),
        )


CELLS = Protocol(
    name=NAME,
    parameters=CellsParameters,
    calibrate=lambda parameters, last_epoch, minimum: CellsLaw(parameters.cells, last_epoch),
    law=lambda parameters: CellsLaw,
    message_format=lambda law: MessageFormat(np.dtype("<u2")),
    randomizer=Cells,
    aggregation=Aggregation.of(CellsAggregator),
)


def register() -> None:
    PROTOCOLS[NAME] = CELLS
