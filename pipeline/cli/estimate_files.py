"""The options of files that estimates are written to, and how they are written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.errors import UsageProblem
from dpstream.pipeline.cli.output import tell
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.estimate_files import WRITERS
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.questions import Query
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.whole_files import replaced_whole

_PANEL = "Files, instead of printing; - is standard output"

CsvFile = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        metavar="FILE",
        dir_okay=False,
        help="Write CSV: a row for every epoch and number, dates in the job's time zone.",
        rich_help_panel=_PANEL,
    ),
]
ParquetFile = Annotated[
    Path | None,
    typer.Option(
        "--parquet",
        metavar="FILE",
        dir_okay=False,
        help="Write the same rows as Parquet, with types: timestamps, dictionaries of names.",
        rich_help_panel=_PANEL,
    ),
]
JsonLinesFile = Annotated[
    Path | None,
    typer.Option(
        "--jsonl",
        metavar="FILE",
        dir_okay=False,
        help="Write the same rows as JSON, an object a line.",
        rich_help_panel=_PANEL,
    ),
]

_STANDARD_OUTPUT = Path("-")


class EstimateFiles:
    """At most one file to write estimates to.

    Args:
        paths: by format; None for those that nobody wants.

    Raises:
        UsageProblem: there are several, or one that is no text would go to a terminal.
    """

    def __init__(self, paths: Mapping[str, Path | None]) -> None:
        wanted = [(form, path) for form, path in paths.items() if path is not None]
        if len(wanted) > 1:
            raise UsageProblem(f"give one of {' and '.join(f'--{form}' for form, _ in wanted)}")
        self._wanted = wanted[0] if wanted else None
        if self._wanted == ("parquet", _STANDARD_OUTPUT) and sys.stdout.isatty():
            raise UsageProblem("--parquet - is no text: give a file, or a pipe")

    def __bool__(self) -> bool:
        """Whether there is one."""
        return self._wanted is not None

    def __str__(self) -> str:
        """Its option, for messages."""
        return "" if self._wanted is None else f"--{self._wanted[0]}"

    def write(
        self,
        job: DeployedJob,
        query: Query | None,
        records: Iterable[EstimateRecord],
        value: str,
    ) -> None:
        """Write the answers to a query, or everything; the file is there whole or not at all.

        Args:
            job: as deployed.
            query: None for everything that was published.
            records: in the order of epochs.
            value: what the numbers are, see `PublishedRows`.

        Raises:
            OSError: the file cannot be written.
        """
        assert self._wanted is not None
        form, path = self._wanted
        asked = PublishedRows.of_everything(job).query if query is None else query
        rows = PublishedRows(job, asked, value)
        if path == _STANDARD_OUTPUT:
            WRITERS[form](sys.stdout.buffer, rows, records)
            return
        with replaced_whole(path) as part, part.open("wb") as file:
            WRITERS[form](file, rows, records)
        tell(f"{path} is written")
