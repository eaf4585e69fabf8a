"""Make change logs of the life courses included in TraMineR: mvad, biofam and actcal.

    python -m experiments.prepare_traminer SOURCE OUT [--users N] [--seed 1]

SOURCE is one of the three tables as CSV, plain or gzip. TraMineR (https://traminer.unige.ch) is an
R package, licensed GPL (>= 2). To export a table in R::

    data(mvad, package = "TraMineR"); write.csv(mvad, "mvad.csv")

* mvad: 712 people from school to work, in 72 months from July 1993 (McVicar and Anyadike-Danes).
* biofam: 2,000 family lives, a state for each year of age from 15 to 30 (Swiss Household Panel).
* actcal: 2,000 working lives in the 12 months of 2000 (Swiss Household Panel).

The table is recognized by its columns. A value is the label of a state; coded tables get TraMineR's
labels. With ``--users``, N people are drawn with replacement: more people, the same real lives.
Only changes are written, by epoch and then by user; the first epoch has the first state of every
person. The same input, users and seed give the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.preparation import write_change_log

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Table:
    """One of the tables: its state columns in order, and the labels of the state codes."""

    name: str
    columns: tuple[str, ...]
    labels: Mapping[str, str]


TABLES = (
    Table(
        "mvad",
        tuple(
            f"{_MONTHS[month % 12]}.{93 + month // 12}" for month in range(6, 78)
        ),  # July 1993 to June 1999
        {label: label for label in ("employment", "FE", "HE", "joblessness", "school", "training")},
    ),
    Table(
        "biofam",
        tuple(f"a{age}" for age in range(15, 31)),
        {
            "0": "parents",
            "1": "left",
            "2": "married",
            "3": "left+married",
            "4": "child",
            "5": "left+child",
            "6": "left+married+child",
            "7": "divorced",
        },
    ),
    Table(
        "actcal",
        tuple(f"{month.lower()}00" for month in _MONTHS),
        {"A": "full-time", "B": "long-part-time", "C": "short-part-time", "D": "no-work"},
    ),
)


def read_states(path: Path) -> list[tuple[str, ...]]:
    """Return the life of each person in a table as a label per epoch."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rt", newline="") if packed else path.open(newline="") as text:
        reader = csv.DictReader(text)
        names = set(reader.fieldnames or ())
        table = next((table for table in TABLES if names >= set(table.columns)), None)
        if table is None:
            known = ", ".join(table.name for table in TABLES)
            raise ValueError(f"{path}: unknown columns; expected one of TraMineR's tables {known}")
        lives = []
        for row in reader:
            # R writes the codes of biofam as numbers, some versions with a decimal point.
            codes = [row[column].removesuffix(".0") for column in table.columns]
            if unknown := set(codes) - table.labels.keys():
                raise ValueError(
                    f"{path}:{reader.line_num}: got {min(unknown)!r}; expected a state of "
                    f"{table.name}"
                )
            lives.append(tuple(map(table.labels.__getitem__, codes)))
    return lives


def resample(lives: Sequence[tuple[str, ...]], users: int, seed: int) -> list[tuple[str, ...]]:
    """Draw the lives of `users` people, with replacement."""
    drawn = np.random.default_rng(seed).integers(len(lives), size=users)
    return [lives[person] for person in drawn.tolist()]


def state_changes(lives: Sequence[Sequence[str]]) -> list[tuple[int, int, str]]:
    """Return rows of user, epoch (from 1) and label, sorted by epoch and then by user."""
    return [
        (user, epoch, life[epoch - 1])
        for epoch in range(1, len(lives[0]) + 1)
        for user, life in enumerate(lives, start=1)
        if epoch == 1 or life[epoch - 1] != life[epoch - 2]
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.prepare_traminer",
        description="Make a change log from the data mvad, biofam or actcal in the R package "
        "TraMineR.",
        epilog="Export SOURCE from R, with TraMineR from CRAN (biofam and actcal the same way):\n"
        '  install.packages("TraMineR")\n'
        '  data(mvad, package = "TraMineR"); write.csv(mvad, "mvad.csv")',
        # Keeps URLs and commands on one line, for copying.
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", type=Path, help="the table, CSV, plain or gzip")
    parser.add_argument("out", metavar="OUT", type=Path, help="the change log to write, .csv.gz")
    parser.add_argument("--users", type=int, help="draw this number of users, with replacement")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw (%(default)s)")
    options = parser.parse_args(arguments)
    if options.users is not None and options.users < 1:
        parser.error(f"--users: got {options.users}; expected an integer of at least 1")
    try:
        lives = read_states(options.source)
        if options.users is not None:
            lives = resample(lives, options.users, options.seed)
        rows = state_changes(lives)
        write_change_log(rows, options.out)
    except OSError as error:
        parser.exit(1, f"{error.filename or options.source}: {error.strerror or error}\n")
    except (ValueError, EOFError) as error:
        parser.exit(1, f"{error}\n")
    print(f"{options.out}: {len(rows):,} rows, {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
