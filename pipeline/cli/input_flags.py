"""Flags that say how the rows of an input are written; they go before the job file's ``input``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.jobs.input_forms import InputForm
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_problems import JobError

_PANEL = "How rows are written (before the job file's input)"
"""Of ``--help``."""


def _option(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=_PANEL)


Column = Annotated[
    list[str] | None,
    _option(
        "--column",
        "user|value|time|epoch=NAME",
        "What a column is called. May be repeated.",
    ),
]
Separator = Annotated[
    str | None, _option("--separator", "SIGN", "Between fields, such as ';', or tab.")
]
Encoding = Annotated[
    str | None,
    _option("--encoding", "NAME", "Such as latin-1. Default: UTF-8, or by a byte order mark."),
]
TimeFormat = Annotated[
    str | None,
    _option("--time-format", "FORMAT", "iso, unix, unix_ms, or such as '%d.%m.%Y %H:%M'."),
]
Timezone = Annotated[
    str | None, _option("--timezone", "ZONE", "Of times that name none, such as Europe/Berlin.")
]
Duplicates = Annotated[
    str | None,
    _option(
        "--duplicates",
        "RULE",
        "first, last, largest, smallest or refuse: which of several rows of a user for the same "
        "epoch or time counts.",
    ),
]
Clamp = Annotated[
    bool,
    typer.Option(
        "--clamp",
        help="Numbers outside of the job's range count as its ends.",
        rich_help_panel=_PANEL,
    ),
]
FileFormat = Annotated[
    str | None,
    _option("--format", "csv|json|parquet", "Default: as the file begins; json is one a line."),
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
    """What the flags of a command line say.

    >>> from dpstream.pipeline.jobs.input_forms import AS_IT_IS
    >>> InputFlags(column=["user=student_id"], separator=";").over(AS_IT_IS).columns.user
    'student_id'
    """

    def __init__(self, *, column: list[str] | None = None, clamp: bool = False, **given: Any):
        self._given = {key: value for key, value in given.items() if value is not None}
        if clamp:
            self._given["clamp"] = True
        if column:
            self._given["columns"] = dict(map(_column, column))

    def form_of(self, job: Job) -> InputForm:
        """How the input of a job is written.

        Raises:
            UsageProblem: a flag says what cannot be, or is for other values than the job's.
        """
        form = self.over(job.input_form)
        refusal = form.refusal(job.domain)
        if refusal is not None:
            raise UsageProblem(f"input: {refusal}")
        return form

    def adapted(self, job: Job) -> Job:
        """Return the job as one that says how its input is written; raises as `form_of`."""
        form = self.form_of(job)
        return job if form == job.input_form else job.model_copy(update={"input": form})

    def over(self, form: InputForm) -> InputForm:
        """A form with what the flags say."""
        try:
            return form.with_changes(self._given) if self._given else form
        except JobError as error:
            told = [
                f"{_flag(str(problem.path[0]))}: {problem.message}" for problem in error.problems
            ]
            raise UsageProblem("\n".join(told)) from None


def takes_input_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags; it is called with `InputFlags` as its argument ``flags``."""
    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def with_flags(**arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in _FLAGS}
        return command(**arguments, flags=InputFlags(**given))

    kept = [each for each in signature.parameters.values() if each.name != "flags"]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "clamp" else None,
            annotation=annotation,
        )
        for name, annotation in _FLAGS.items()
    ]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in kept]
    with_flags.__signature__ = signature.replace(parameters=[*keywords, *added])  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in [*keywords, *added]}
    return with_flags


def _column(text: str) -> tuple[str, str]:
    column, equals, name = text.partition("=")
    if not equals or not column or not name:
        raise UsageProblem(
            f"--column {text}: give user, value, time or epoch, and its name: "
            "--column user=student_id"
        )
    return column, name


def _flag(key: str) -> str:
    return "--column" if key == "columns" else f"--{key.replace('_', '-')}"
