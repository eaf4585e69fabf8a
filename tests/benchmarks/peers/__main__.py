"""Compare with other libraries on the same users.

``python -m tests.benchmarks.peers [--words FILE]`` counts 1,024 items of 100,000 users with all
protocols or, if FILE is the ``en_50k.txt`` of `experiments.prepare_words`, searches for the most
frequent words. multi-freq-ldpy and pure-LDP are installed into a separate environment.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.preparation import read_plain
from tests.benchmarks.measuring import machine, on_cores
from tests.benchmarks.peers.environment import NoPeersError, peer_python
from tests.benchmarks.peers.measure import (
    ITEMS,
    USERS,
    WANTED,
    Oracle,
    Search,
    held_words,
    measure_oracles,
    measure_searches,
)

LIMIT = 900


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--words", type=Path, metavar="FILE", help="plain or gzip")
    parser.add_argument(
        "--users", type=int, default=1_000_000, help="number of users with a word (%(default)s)"
    )
    parser.add_argument("--draws", type=int, default=1, help="draws of the users' items (1)")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds per task (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for all results")
    chosen = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    with (
        tempfile.TemporaryDirectory(prefix="dpstream-peers-") as name,
        on_cores(1),
        console.status("environment of other libraries") as status,
    ):
        folder, python = Path(name), python_or_none(console)
        measured: list[Oracle] | list[Search]
        if chosen.words is None:
            measured = list(
                measure_oracles(python, folder, chosen.limit, status.update, draws=chosen.draws)
            )
            show_oracles(console, measured)
        else:
            words = held_words(read_plain(chosen.words), chosen.users)
            measured = list(measure_searches(python, folder, words, chosen.limit, status.update))
            show_searches(console, measured, chosen.users)
    if chosen.json is not None:
        figures = {
            "machine": dict(machine()),
            "measured": [each.to_json() for each in measured],
        }
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def python_or_none(console: Console) -> Path | None:
    try:
        return peer_python()
    except NoPeersError as error:
        console.print(str(error))
        return None


def show_oracles(console: Console, measured: Sequence[Oracle]) -> None:
    table = Table(
        title=f"{ITEMS:,} items, {USERS:,} users, Zipf 1.1",
        caption="root mean squared error of all items in users, without bias, and cut at zero and "
        "scaled; ± a standard error; speed by processor time, one core",
    )
    for heading in ("epsilon", "library", "protocol"):
        table.add_column(heading)
    for heading in ("RMSE", "±", "cut, scaled", "bytes", "randomized/s", "served/s"):
        table.add_column(heading, justify="right")
    for one in measured:
        figures = (one.rmse, one.uncertainty, one.clipped, one.bytes, one.randomized, one.served)
        table.add_row(f"{one.epsilon:g}", one.library, one.protocol, *_shown(figures, one.note))
    console.print(table)


def show_searches(console: Console, measured: Sequence[Search], users: int) -> None:
    table = Table(
        title=f"Words of {users:,} users, truncated to 6 letters",
        caption=f"Listed words: all, of the top {WANTED}, and of no user; CPU seconds on one core",
    )
    for heading in ("epsilon", "library", "search"):
        table.add_column(heading)
    for field in fields(Search)[3:8]:
        table.add_column(field.name, justify="right")
    for one in measured:
        figures = (one.listed, one.recall, one.unheld, one.randomizing, one.serving)
        table.add_row(f"{one.epsilon:g}", one.library, one.algorithm, *_shown(figures, one.note))
    console.print(table)


def _shown(figures: Sequence[float | None], note: str) -> list[str]:
    if note:
        return [note, *[""] * (len(figures) - 1)]
    return [
        ""
        if each is None
        else f"{each:,.0f}"
        if abs(each) >= 100 or each == int(each)
        else f"{each:.2f}"
        for each in figures
    ]


if __name__ == "__main__":
    sys.exit(main())
