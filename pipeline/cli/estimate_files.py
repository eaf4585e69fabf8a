"""Options for files of estimates, and their writer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.output import tell
from dpstream.pipeline.results.file_formats import CHUNKS
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.whole_files import replaced_whole

_PANEL = "Output files instead of printing; - is standard output"

CsvFile = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        metavar="FILE",
        dir_okay=False,
        help="Write CSV: one row per epoch and estimate, with dates in the job's time zone.",
        rich_help_panel=_PANEL,
    ),
]
ParquetFile = Annotated[
    Path | None,
    typer.Option(
        "--parquet",
        metavar="FILE",
        dir_okay=False,
        help="Write the same rows as Parquet, with typed columns: timestamps, and dictionaries "
        "of names.",
        rich_help_panel=_PANEL,
    ),
]
JsonLinesFile = Annotated[
    Path | None,
    typer.Option(
        "--jsonl",
        metavar="FILE",
        dir_okay=False,
        help="Write the same rows as JSON lines.",
        rich_help_panel=_PANEL,
    ),
]

_STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True)
class EstimateFile:
    """A file to which estimates are written; the path ``-`` is standard output."""

    format: str
    path: Path

    @classmethod
    def of(cls, paths: Mapping[str, Path | None]) -> EstimateFile | None:
        """Return the file for the only path in `paths` (keyed by format); None without paths.

        Raises `UsageProblem` for several paths, or if Parquet would be printed on a terminal.
        """
        outputs = [(form, path) for form, path in paths.items() if path is not None]
        if len(outputs) > 1:
            raise UsageProblem(
                f"{' and '.join((f'--{form}' for form, _ in outputs))} are mutually exclusive"
            )
        if outputs == [("parquet", _STANDARD_OUTPUT)] and sys.stdout.isatty():
            raise UsageProblem(
                "--parquet -: Parquet is binary and cannot be printed: write to a file or a pipe"
            )
        return cls(*outputs[0]) if outputs else None

    def write(self, rows: PublishedRows, records: Iterable[EstimateRecord]) -> None:
        self.write_chunks(CHUNKS[self.format](rows, records))

    def write_chunks(self, chunks: Iterable[bytes]) -> None:
        if self.path == _STANDARD_OUTPUT:
            sys.stdout.buffer.writelines(chunks)
            return
        with replaced_whole(self.path) as part, part.open("wb") as file:
            file.writelines(chunks)
        tell(f"wrote {self.path}")
