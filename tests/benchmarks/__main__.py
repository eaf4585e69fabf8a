"""Measure speed and memory: ``python -m tests.benchmarks [--json PATH] [--runs N]``.

Prints tables, and writes all results as JSON. The benchmarks run in a temporary folder and on a
separate local broker, which are both removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from rich.console import Console
from rich.status import Status

from dpstream.pipeline.kafka.cluster import ClusterError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.processes import python_module
from dpstream.pipeline.operations.restarted_processes import ProcessError
from tests.benchmarks import one_core, replaying
from tests.benchmarks.end_to_end import (
    BenchmarkError,
    Load,
    Passage,
    local_broker,
    pass_through,
    produce,
)
from tests.benchmarks.measuring import machine, on_cores, table_of

CORES = 2
MEMORY_LIMIT = 300
"""Maximum peak memory of a worker in megabytes."""
EPOCHS = 20_000
"""Number of epochs in the job that demonstrates constant memory."""

WARM_UP = Load("drawn", epochs=256, producers=1, number=100_000)
PASSAGES = {
    "devices report": Load("devices", epochs=256, producers=2, number=500_000),
    "devices report symbols": Load(
        "devices", epochs=64, producers=2, number=500_000, reports="letters"
    ),
    "reports already drawn": Load("drawn", epochs=128, producers=1, number=1_000_000),
    "cells of items": Load("devices", epochs=32, producers=2, number=500_000, reports="cells"),
}
HELD = {
    "order: sorted": Load("held", epochs=2, producers=1, number=10_000_000),
    "order: random": Load("held", epochs=2, producers=1, number=10_000_000, order="random"),
}

console = Console()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("benchmark.json"), metavar="PATH")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="the median counts")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    if not arguments.json.absolute().parent.is_dir():
        parser.error(f"the folder of {arguments.json} does not exist")
    signal.signal(signal.SIGTERM, _leave)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dpstream-bench-") as folder,
            on_cores(CORES) as cores,
            console.status("") as status,
        ):
            # The broker, the workers and their spill files all use this folder.
            os.environ["DPSTREAM_HOME"] = folder
            figures = {"machine": {**machine(), "cores_used": cores}}
            figures |= _measure(arguments.runs, Path(folder), status)
    except (BenchmarkError, ClusterError, ProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    console.print(f"All results: {arguments.json}")
    return 0


def _measure(runs: int, folder: Path, status: Status) -> dict[str, Any]:
    rates = []
    with on_cores(1):
        status.update("one core: randomize")
        for rate in one_core.measure(runs):
            rates.append(rate)
            status.update(f"one core: {rate.name} finished")
    with local_broker(status.update) as connection:
        status.update("one core: produce")
        rates.append(produce(connection, runs))
        caption = (
            f"medians of {runs} runs, by processor time; produce, which waits for the broker's "
            "acknowledgments, by wall-clock time"
        )
        console.print(table_of("one core", [rate.to_json() for rate in rates], caption))
        status.update("end to end: warming up")
        pass_through(connection, folder, WARM_UP)
        passages = {
            name: _passages(name, load, runs, connection, folder, status)
            for name, load in PASSAGES.items()
        }
        held = {}
        for name, load in HELD.items():
            status.update(f"two open windows, {name}")
            held[name] = pass_through(connection, folder, load)
        _print_held(held)
    replays = _replays(runs, folder, status)
    points = _many_epochs(folder, status)
    return {
        "one_core": [rate.to_json() for rate in rates],
        "end_to_end": {
            name: {
                "reports_per_second": round(median(p.reports_per_second for p in done)),
                "runs": [passage.to_json() for passage in done],
            }
            for name, done in passages.items()
        },
        "two_open_windows": {
            name: {
                "reports": passage.reports,
                "peak_megabytes": {n: round(peak, 1) for n, peak in passage.peaks.items()},
            }
            for name, passage in held.items()
        },
        "replays": replays,
        "many_epochs": points,
    }


def _passages(
    name: str, load: Load, runs: int, connection: Connection, folder: Path, status: Status
) -> list[Passage]:
    passages = []
    for run in range(runs):
        status.update(f"end to end: {name}, run {run + 1} of {runs}")
        passages.append(pass_through(connection, folder, load))
    speeds = sorted(passage.reports_per_second for passage in passages)
    middle = sorted(passages, key=lambda passage: passage.reports_per_second)[runs // 2]
    caption = (
        f"median of {runs} runs of {middle.reports / 1e6:.0f} million reports, "
        f"{speeds[0] / 1e6:.1f} to {speeds[-1] / 1e6:.1f}; the median run used "
        f"{middle.cores_busy:.2f} cores, other processes {middle.cores_of_others:.2f}"
    )
    rows = [
        {
            "process": process,
            "processor seconds": round(middle.processor[process], 2),
            "share": f"{share:.0%}",
            "peak megabytes": round(middle.peaks[process]),
        }
        for process, share in middle.shares().items()
    ]
    title = f"end to end, {name}: {median(speeds) / 1e6:.1f} million reports/s"
    console.print(table_of(title, rows, caption))
    return passages


def _print_held(held: dict[str, Passage]) -> None:
    title = "two open windows of ten million reports each: peak megabytes"
    rows = [
        {"process": process} | {name: round(each.peaks[process]) for name, each in held.items()}
        for process in next(iter(held.values())).peaks
    ]
    caption = f"the limit per worker is {MEMORY_LIMIT} MB"
    console.print(table_of(title, rows, caption))


def _replays(runs: int, folder: Path, status: Status) -> list[dict[str, Any]]:
    measured = []
    for number, source in enumerate(replaying.SOURCES):
        status.update(f"replay: {source}")
        place = folder / f"replay {number}"
        place.mkdir()
        with on_cores(1):
            done = subprocess.run(
                python_module("tests.benchmarks.replaying", source, str(runs), str(place)),
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(),
                check=False,
            )
        shutil.rmtree(place)
        if done.returncode != 0:
            raise BenchmarkError(f"replaying exited with code {done.returncode}")
        measured.append(json.loads(done.stdout))
    title = (
        f"replay of {replaying.EPOCHS} windows of {replaying.WINDOW / 1e6:g} million one-byte "
        "reports, one core"
    )
    caption = f"medians of {runs} replays in memory from files, by processor time"
    console.print(table_of(title, measured, caption))
    return measured


def _many_epochs(folder: Path, status: Status) -> list[dict[str, Any]]:
    topics = folder / "topics"
    topics.mkdir()
    command = python_module("tests.benchmarks.many_epochs", str(EPOCHS), str(topics))
    points = []
    status.update(f"{EPOCHS:,} epochs")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
        # Only the parent process handles Ctrl-C, and forwards it.
        start_new_session=True,
    ) as child:
        try:
            for line in child.stdout or ():
                point = json.loads(line)
                points.append(point)
                status.update(f"{EPOCHS:,} epochs: {point['epochs']:,}")
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        raise BenchmarkError(f"many_epochs exited with code {child.returncode}")
    console.print(table_of(f"{EPOCHS:,} epochs, all stages in one process", points))
    return points


def _environment() -> dict[str, str]:
    # `python_module` keeps the working directory out of the search path.
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def _leave(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
