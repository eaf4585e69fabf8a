"""Flags that describe the rows of an input; they override the job file's ``input``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_problems import JobError

_PANEL = "Row format (overrides the job file's input)"


def _option(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=_PANEL)


Column = Annotated[
    list[str] | None,
    _option(
        "--column",
        "user|value|time|epoch|event=NAME",
        "Name of a column. May be repeated.",
    ),
]
Separator = Annotated[
    str | None, _option("--separator", "SIGN", "Field separator, such as ';', or tab.")
]
Encoding = Annotated[
    str | None,
    _option(
        "--encoding",
        "NAME",
        "Character encoding, such as latin-1. Default: that of the byte order mark, or UTF-8 "
        "without one.",
    ),
]
TimeFormat = Annotated[
    str | None,
    _option(
        "--time-format", "FORMAT", "iso, unix, unix_ms, or a pattern such as '%d.%m.%Y %H:%M'."
    ),
]
Timezone = Annotated[
    str | None,
    _option("--timezone", "ZONE", "Time zone for times without one, such as Europe/Berlin."),
]
Duplicates = Annotated[
    str | None,
    _option(
        "--duplicates",
        "RULE",
        "Rule for rows that share their user and epoch or time: first, last, largest, smallest "
        "or reject.",
    ),
]
Clamp = Annotated[
    bool,
    typer.Option(
        "--clamp",
        help="Clamp numbers to the job's range.",
        rich_help_panel=_PANEL,
    ),
]
FileFormat = Annotated[
    str | None,
    _option(
        "--format",
        "csv|json|parquet",
        "Format of the file; json is JSON lines. Default: detected from its content.",
    ),
]

_FLAGS: dict[str, Any] = {
    "column": Column,
    "separator": Separator,
    "encoding": Encoding,
    "time_format": TimeFormat,
    "timezone": Timezone,
    "duplicates": Duplicates,
    "clamp": Clamp,
    "format": FileFormat,
}


class InputFlags:
    """Values of this module's flags in a command line.

    >>> from dpstream.pipeline.jobs.input_formats import AS_IT_IS
    >>> InputFlags(column=["user=student_id"], separator=";").over(AS_IT_IS).columns.user
    'student_id'
    """

    def __init__(self, *, column: list[str] | None = None, clamp: bool = False, **given: Any):
        self._given = {key: value for key, value in given.items() if value is not None}
        if clamp:
            self._given["clamp"] = True
        if column:
            self._given["columns"] = dict(map(_column, column))

    def format_of(self, job: Job) -> InputFormat:
        """Return a job's input format, overridden by these flags.

        Raises `UsageProblem` if a flag is invalid, or does not apply to the job's values.
        """
        input_format = self.over(job.input_format)
        rejection = input_format.rejection(job.row_domain)
        if rejection is not None:
            raise UsageProblem(f"input: {rejection}")
        return input_format

    def adapted(self, job: Job) -> Job:
        input_format = self.format_of(job)
        return (
            job
            if input_format == job.input_format
            else job.model_copy(update={"input": input_format})
        )

    def over(self, input_format: InputFormat) -> InputFormat:
        try:
            return input_format.with_changes(self._given) if self._given else input_format
        except JobError as error:
            lines = [
                f"{_flag(str(problem.path[0]))}: {problem.message}" for problem in error.problems
            ]
            raise UsageProblem("\n".join(lines)) from None


def takes_input_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags to a command, which receives them as `InputFlags` in its argument ``flags``."""
    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def with_flags(**arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in _FLAGS}
        return command(**arguments, flags=InputFlags(**given))

    remaining = [each for each in signature.parameters.values() if each.name != "flags"]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "clamp" else None,
            annotation=annotation,
        )
        for name, annotation in _FLAGS.items()
    ]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in remaining]
    with_flags.__signature__ = signature.replace(parameters=[*keywords, *added])  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in [*keywords, *added]}
    return with_flags


def _column(text: str) -> tuple[str, str]:
    column, equals, name = text.partition("=")
    if not equals or not column or not name:
        raise UsageProblem(
            f"--column: got {text!r}; expected user, value, time, epoch or event, '=' and a column "
            "name, such as --column user=student_id"
        )
    return column, name


def _flag(key: str) -> str:
    return "--column" if key == "columns" else f"--{key.replace('_', '-')}"
