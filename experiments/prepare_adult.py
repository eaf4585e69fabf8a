"""Make an item log of people: points given by age and weekly working hours.

    python -m experiments.prepare_adult SOURCE OUT

SOURCE is a CSV file with columns ``age`` and ``hours_per_week``: the UCI Adult data (Becker,
Kohavi 1996; CC BY 4.0), https://archive.ics.uci.edu/dataset/2/adult, ``adult.data`` and
``adult.test`` joined under a header.

The log has 48,842 people, aged 17 to 90, who work 1 to 99 hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.preparation import prepare
from experiments.prepare_flights import table


def item_rows(contents: bytes) -> Iterator[tuple[int, str]]:
    for user, row in enumerate(table(contents, "age", "hours_per_week"), start=1):
        yield user, f"{int(row['age'])};{int(row['hours_per_week'])}"


def main(arguments: Sequence[str] | None = None) -> None:
    prepare(
        arguments,
        "prepare_adult",
        "Make an item log of people's ages and weekly working hours.",
        "https://archive.ics.uci.edu/dataset/2/adult",
        item_rows,
    )


if __name__ == "__main__":
    main()
