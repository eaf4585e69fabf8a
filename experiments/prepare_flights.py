"""Make an item log of flight delays in the United States, in minutes.

    python -m experiments.prepare_flights SOURCE OUT

SOURCE is a CSV file with a column ``delay``, such as ``flights-200k`` of Vega's example data
(https://github.com/vega/vega-datasets, from the US Department of Transportation's Bureau of
Transportation Statistics), exported from Arrow. A user is a flight; minutes are unchanged.

The log has 200,000 flights with delays from -86 to 1,444 minutes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from experiments.preparation import prepare


def item_rows(contents: bytes) -> Iterator[tuple[int, str]]:
    for user, row in enumerate(table(contents, "delay"), start=1):
        yield user, f"{float(row['delay']):g}"


def table(contents: bytes, *columns: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file, or raise `ValueError` if a column is missing."""
    reader = csv.DictReader(contents.decode("utf-8").splitlines(), skipinitialspace=True)
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"expected a CSV file with the columns {', '.join(columns)}")
    return list(reader)


def main(arguments: Sequence[str] | None = None) -> None:
    prepare(
        arguments,
        "prepare_flights",
        "Make an item log of flight delays.",
        "https://github.com/vega/vega-datasets/blob/main/data/flights-200k.arrow",
        item_rows,
    )


if __name__ == "__main__":
    main()
