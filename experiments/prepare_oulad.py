"""Make the demonstration's change log from the Open University Learning Analytics Dataset.

    python -m experiments.prepare_oulad FOLDER

FOLDER contains ``courses.csv`` and ``studentRegistration.csv`` of the dataset, plain or as .csv.gz.

* A course run in presentation 2013B starts on 1 February 2013; one in 2013J, on 1 October.
* A student is enrolled in a course run from the day of registration (if missing: day 0, its start)
  until the day before un-registration or, without un-registration, before the end of the run.
* Weeks have seven days, and the first one starts on the day of the first registration (Wednesday
  28 March 2012). The value of a week is 1 if the student is enrolled in any course at its end.
* Users are the students, numbered from 1 in ascending order of their numbers in the dataset.

Only changes are written, by week and then by user. A student who is not enrolled at the end of any
week gets a row with value 0 in week 1. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from dpstream.pipeline.demo import demo_change_log
from experiments.preparation import Row, write_change_log

_FIRST_MONTH = {"B": 2, "J": 10}


def enrollments(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """Return the periods of enrollment, [start, end), by student number in the dataset.

    Days are proleptic ordinals. Periods can overlap (several courses) or be empty (un-registration
    before registration).
    """
    lengths = {
        (row["code_module"], row["code_presentation"]): int(row["module_presentation_length"])
        for row in _read(folder, "courses")
    }
    intervals: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in _read(folder, "studentRegistration"):
        presentation = row["code_presentation"]
        begin = date(int(presentation[:4]), _FIRST_MONTH[presentation[4]], 1).toordinal()
        registered = int(row["date_registration"] or 0)
        length = lengths[row["code_module"], presentation]
        left = int(row["date_unregistration"] or length)
        intervals[int(row["id_student"])].append((begin + registered, begin + left))
    return dict(intervals)


def weekly_changes(intervals: Mapping[int, Sequence[tuple[int, int]]]) -> list[Row]:
    """Return the change log for the result of `enrollments`, by week and then by user."""
    first_day = min(begin for periods in intervals.values() for begin, _ in periods)
    rows: list[Row] = []
    for user, student in enumerate(sorted(intervals), start=1):
        weeks: set[int] = set()
        for begin, end in intervals[student]:
            # Week w ends with day 7 w - 1, so d // 7 + 1 is the first to end on or after day d.
            weeks.update(range((begin - first_day) // 7 + 1, (end - first_day) // 7 + 1))
        changes = sorted(weeks ^ {week + 1 for week in weeks})
        rows += [(week, user, int(week in weeks)) for week in changes or [1]]
    return [(user, week, value) for week, user, value in sorted(rows)]


def _read(folder: Path, name: str) -> Iterator[dict[str, str]]:
    plain = folder / f"{name}.csv"
    packed = folder / f"{name}.csv.gz"
    with (
        plain.open(encoding="utf-8", newline="")
        if plain.exists()
        else gzip.open(packed, "rt", encoding="utf-8", newline="")
    ) as file:
        yield from csv.DictReader(file)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.prepare_oulad",
        description="Make the demonstration's change log from the OULAD files.",
        epilog="Get the files, as CSV, from https://analyse.kmi.open.ac.uk/open_dataset",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder with both CSV files")
    parser.add_argument("--output", type=Path, default=demo_change_log(), help="(%(default)s)")
    options = parser.parse_args(arguments)
    try:
        rows = weekly_changes(enrollments(options.folder))
        write_change_log(rows, options.output)
    except OSError as error:
        parser.exit(1, f"{error.filename}: {error.strerror}\n")
    print(f"{options.output}: {len(rows):,} rows, {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
