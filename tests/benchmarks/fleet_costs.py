"""Measures what parts of the pipeline cost, and whether the law of costs holds.

``python -m tests.benchmarks.fleet_costs [--write]``

Jobs of a few kinds pass through the real pipeline, each part a process of its own; the constants of
`pipeline.planning.fleet_costs` are those that come nearest to the processor seconds. Then jobs of
three sizes pass that had no part in that, and a table puts what they took beside what the constants
say. ``--write`` keeps the constants for `dpstream plan --devices`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from pipeline.kafka.connection import Connection
from pipeline.planning.fleet_costs import (
    BROKER,
    FILE,
    PARTS,
    CostConstants,
    PartCost,
    Traffic,
    processor_seconds,
)
from tests.benchmarks.end_to_end import Load, Passage, idle, local_broker, pass_through
from tests.benchmarks.measuring import MEGABYTE, machine

# A broker compiles what it runs often: a cluster that has been up for an hour has done so.
WARM_UP = {
    "warming up, epochs": Load("drawn", epochs=1024, producers=1, number=100),
    "warming up, records": Load("drawn", epochs=32, producers=1, number=10_000, gateways=500),
    "warming up, words": Load("drawn", 8, producers=1, number=2_000_000, reports="words"),
}
FITTED = {
    "epochs of next to nothing": Load("drawn", epochs=512, producers=1, number=100),
    "bytes that a table counts": Load("drawn", epochs=32, producers=1, number=4_000_000),
    "records": Load("drawn", epochs=16, producers=1, number=100, gateways=1_000),
    "some of each": Load("drawn", epochs=64, producers=1, number=20_000, gateways=100),
    "bytes that are sorted": Load(
        "drawn", epochs=8, producers=1, number=2_000_000, reports="words"
    ),
}
CHECKED = {
    "small": Load("drawn", epochs=256, producers=1, number=2_000, gateways=20),
    "medium": Load("drawn", epochs=48, producers=1, number=10_000, gateways=400),
    "large": Load("drawn", epochs=32, producers=1, number=200_000, gateways=100),
}
IDLE_SECONDS = 30.0

console = Console()


@dataclass(frozen=True, slots=True)
class Measured:
    """A load, and how it passed."""

    load: Load
    passage: Passage

    @property
    def traffic(self) -> Traffic:
        """Of one epoch."""
        return traffic_of(self.load)


def traffic_of(load: Load) -> Traffic:
    """Of one epoch of a load."""
    words = load.reports == "words"
    return Traffic(
        reports=load.window_reports,
        gateways=load.producers * load.gateways,
        gateway_bytes=float(load.number * (4 if words else 1)),
        tabular=not words,
    )


def rows(measured: list[Measured]) -> NDArray[np.float64]:
    """What the processor seconds of loads are made of: (loads, 4)."""
    made = []
    for each in measured:
        traffic, epochs = each.traffic, each.load.epochs
        counted = traffic.megabytes if traffic.tabular else 0.0
        made.append([1, traffic.records, counted, traffic.megabytes - counted])
        made[-1] = [epochs * value for value in made[-1]]
    return np.array(made, np.float64)


def fitted(measured: list[Measured], part: str) -> list[float]:
    """Constants that are never below 0, with the least sum of squared relative errors."""
    seconds = np.array([each.passage.processor[part] for each in measured])
    found, _ = nnls(rows(measured) / seconds[:, None], np.ones(len(seconds)))
    return [float(f"{value:.3g}") for value in found.tolist()]


def constants_of(measured: list[Measured], resting: Passage) -> CostConstants:
    """The constants that come nearest to what was measured."""
    parts = {}
    many = max(measured, key=lambda each: each.traffic.records)
    sorted_ones = next(each for each in measured if not each.traffic.tabular)
    for part in PARTS:
        grown = max(0.0, many.passage.peaks[part] - resting.peaks[part])
        of_records = 0.0 if part == BROKER else grown * MEGABYTE / many.traffic.records
        epoch, record, tabular, ordered = fitted(measured, part)
        parts[part] = PartCost(
            epoch=epoch,
            record=record,
            tabular_megabyte=tabular,
            sorted_megabyte=ordered,
            idle=round(resting.processor[part] / resting.seconds, 4),
            megabytes=round(resting.peaks[part]),
            record_bytes=float(f"{of_records:.3g}"),
        )
    about = machine()
    told = f"a machine of {about['cores_available']} cores, with Python {about['python']}"
    words = sorted_ones.load.epochs * sorted_ones.load.window_reports * 4
    most = max(e.passage.shuffled / e.load.epochs for e in measured if e.traffic.tabular)
    return CostConstants(
        machine=told,
        parts=parts,
        table_megabytes=float(f"{most / MEGABYTE:.2g}"),
        sorted_out=round(sorted_ones.passage.shuffled / words, 2),
    )


def measure(connection: Connection, folder: Path, loads: dict[str, Load]) -> list[Measured]:
    """Pass each load through."""
    found = []
    for name, load in loads.items():
        with console.status(name):
            passage = pass_through(connection, folder, load)
        found.append(Measured(load, passage))
        console.print(f"{name}: {passage.seconds:.1f} s, {passage.cores_busy:.2f} cores busy")
    return found


def show(constants: CostConstants, measured: list[Measured], names: list[str]) -> None:
    """What each load took, beside what the constants say."""
    table = Table("load", "part", "measured", "by the law", "ratio", title="processor seconds")
    for name, each in zip(names, measured, strict=True):
        told, took = 0.0, 0.0
        for part in PARTS:
            seconds = each.passage.processor[part]
            law = each.load.epochs * processor_seconds(constants.parts[part], each.traffic)
            told, took = told + law, took + seconds
            table.add_row(name, part, f"{seconds:.2f}", f"{law:.2f}", f"{law / seconds:.2f}")
        table.add_row(name, "all", f"{took:.2f}", f"{told:.2f}", f"{told / took:.2f}")
        table.add_section()
    console.print(table)


def main() -> int:
    """Measure, compare, and keep the constants if that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"keep the constants in {FILE}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dpstream-fleet-") as name:
        os.environ["DPSTREAM_HOME"] = name
        folder = Path(name)
        with local_broker(console.print) as connection:
            measure(connection, folder, WARM_UP)
            resting = idle(connection, folder, FITTED["records"], IDLE_SECONDS)
            found = measure(connection, folder, FITTED)
            constants = constants_of(found, resting)
            show(constants, found, list(FITTED))
            checked = measure(connection, folder, CHECKED)
            show(constants, checked, list(CHECKED))
    text = json.dumps(constants.to_json(), indent=2) + "\n"
    if arguments.write:
        Path(str(resources.files("pipeline.planning").joinpath(FILE))).write_text(text)
    else:
        console.print_json(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
