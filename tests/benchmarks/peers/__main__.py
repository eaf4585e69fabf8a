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
from pathlib import Path

from rich.console import Console

from experiments.preparation import read_plain
from tests.benchmarks.measuring import machine, on_cores, table_of
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
            title = f"{ITEMS:,} items, {USERS:,} users, Zipf 1.1"
            caption = (
                "root mean squared error of all items in users, without bias, and clipped at zero "
                "and scaled; uncertainty: a standard error; reports per processor second, one core"
            )
        else:
            words = held_words(read_plain(chosen.words), chosen.users)
            measured = list(measure_searches(python, folder, words, chosen.limit, status.update))
            title = f"Words of {chosen.users:,} users, truncated to 6 letters"
            caption = f"recall: of the top {WANTED} words; processor seconds, one core"
    console.print(table_of(title, [each.to_json() for each in measured], caption))
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


if __name__ == "__main__":
    sys.exit(main())
