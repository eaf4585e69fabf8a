"""Print retention: cohorts as rows, and epochs since their start as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final

import typer

from dpstream.pipeline.cli.estimate_files import EstimateFile
from dpstream.pipeline.cli.output import number, print_line, print_lines
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import period
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.results.cohorts import WIDE, Cohorts, CohortShare
from dpstream.pipeline.results.file_formats import plain_chunks
from dpstream.pipeline.stages.estimate_records import EstimateRecord

MOST_COLUMNS: Final = 26

CohortAttribute = Annotated[
    str | None,
    typer.Option(
        "--cohorts",
        metavar="ATTRIBUTE",
        help="Print retention: the share of each cohort, by epochs since its start. The values of "
        "the attribute are dates, as those of first_seen.",
    ),
]


def print_cohorts(
    job: DeployedJob,
    attribute: str,
    measure: str | None,
    records: Iterable[EstimateRecord],
    format: str,
    file: EstimateFile | None,
) -> None:
    cohorts = Cohorts.of(job, attribute, measure)
    shares = cohorts.shares(records)
    if file is not None:
        file.write_chunks(plain_chunks(file.format, [each.to_json() for each in shares]))
    elif format == "json":
        for each in shares:
            print_line(json_text(each))
    elif format == "csv":
        chunks = plain_chunks("csv", [each.to_json() for each in shares])
        print_lines(chunk.decode().rstrip("\n") for chunk in chunks)
    else:
        print_lines(_triangle(cohorts, list(shares)))


def _triangle(cohorts: Cohorts, shares: Sequence[CohortShare]) -> Iterator[str]:
    rows: dict[str, dict[int, CohortShare]] = {each.name: {} for each in cohorts.cohorts}
    for share in shares:
        rows[share.cohort][share.since] = share
    longest = max((since for row in rows.values() for since in row), default=0)
    columns = range(min(longest + 1, MOST_COLUMNS))
    width = max(map(len, (cohorts.attribute, *rows)))
    heads = "".join(f"{since:>8}" for since in columns)
    yield f"{cohorts.attribute:<{width}} {'users':>9}{heads}"
    for name, row in rows.items():
        cells = "".join(_cell(row.get(at)) for at in columns)
        yield f"{name:<{width}} {_users(row):>9}{cells}".rstrip()
    yield ""
    each = period(cohorts.job)
    yield (
        f"{cohorts.measure}: % of the cohort, by {each}s since its first {each}; (12.3): known to "
        f"no better than {100 * WIDE:.0f} points on either side"
    )
    if longest >= MOST_COLUMNS:
        yield f"the first {MOST_COLUMNS} of {longest + 1:,} columns. For all: --csv FILE"
    for reason in dict.fromkeys(each.number.refused for each in shares if each.number.refused):
        yield f"-: {reason}"


def _users(row: Mapping[int, CohortShare]) -> str:
    users = row[max(row)].users if row else None
    return "-" if users is None or users != users else number(round(users))


def _cell(share: CohortShare | None) -> str:
    if share is None:
        return " " * 8
    if share.number.value is None:
        return f"{'-':>8}"
    text = f"{100 * share.number.value:.1f}"
    return f"{f'({text})' if share.wide else f'{text} ':>8}"
