"""Answers as lines of text: a block for people, CSV or JSON, each epoch as soon as it is there."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pipeline.answers import Answers
from pipeline.cli.output import number, say, say_pairs, say_table
from pipeline.composed_epochs import composed

if TYPE_CHECKING:
    from pipeline.deployed_job import DeployedJob
    from pipeline.epoch_counts import EpochCounts
    from pipeline.queries import Answer

Answered: TypeAlias = "Iterable[tuple[EpochCounts, Answers | None]]"
"""Epochs and what they answer; nothing where none of them was released."""

_COLUMNS = ("estimate", "standard_deviation", "low", "high")


def say_answers(job: DeployedJob, answered: Answered) -> None:
    """Print what was asked, the answers with their intervals, and what they rest on."""
    first, promised = True, False
    for window, answers in answered:
        if not first:
            say()
        if answers is None:
            say(f"{job.name}: {'; '.join(map(str, window.withheld))}", "bold")
        else:
            say(_title(job, window), "bold")
            _say_table(answers)
            say()
            say_pairs(_about(window, answers))
            # What is promised does not change.
            if not promised:
                say_pairs(_guarantee(job, len(window.epochs)))
                promised = True
        first = False
        sys.stdout.flush()


def csv_lines(job: DeployedJob, answered: Answered) -> Iterator[str]:
    """A header, and a row for every answer."""
    header = False
    for window, answers in answered:
        if answers is None:
            continue
        if not header:
            yield ",".join(["epoch", answers.kind, *_COLUMNS, "population"])
            header = True
        for answer in answers.answers:
            body = answer.to_json()
            line = io.StringIO()
            csv.writer(line, lineterminator="").writerow(
                [
                    _numbers(window),
                    answer.name,
                    *(body[column] for column in _COLUMNS),
                    window.population,
                ]
            )
            yield line.getvalue()


def json_lines(job: DeployedJob, answered: Answered) -> Iterator[str]:
    """One object a line: of an epoch, or of the sum of several."""
    for window, answers in answered:
        body = {
            "job": job.name,
            **({"epoch": window.first} if window.first == window.last else {}),
            "first_epoch": window.first,
            "last_epoch": window.last,
            "epochs": list(window.epochs),
            "withheld": [
                {
                    "epoch": each.epoch,
                    "fate": each.fate.value,
                    "contributors": each.contributors,
                    "minimum": each.minimum,
                }
                for each in window.withheld
            ],
            "contributors": window.contributors,
            "population": window.population,
            "guarantee": job.guarantee().to_json(),
            "composed": composed(job, max(1, len(window.epochs))).to_json(),
        }
        yield json.dumps(body | ({} if answers is None else answers.to_json()), allow_nan=False)


LINES: Mapping[str, Callable[[DeployedJob, Answered], Iterator[str]]] = {
    "csv": csv_lines,
    "json": json_lines,
}
"""The formats for programs, by the names that people give."""


def _title(job: DeployedJob, window: EpochCounts) -> str:
    people = f"{window.contributors:,} of {window.population:,} users contributed"
    if window.first == window.last:
        return f"{job.name}, {job.position_of(window.first)}: {people}"
    return (
        f"{job.name}, epochs {window.first:,} to {window.last:,} added up: {people}, each counted "
        "once an epoch"
    )


def _say_table(answers: Answers) -> None:
    header = [answers.kind, ">estimate", ">± sd", ">95 % low", ">high"]
    rows = [_row(answers.kind, answer) for answer in answers.answers]
    if answers.kind == "quantile":
        header, rows = _without(header, 2), [_without(row, 2) for row in rows]
    say_table(header, rows or [["none found", *["-"] * (len(header) - 1)]])


def _row(kind: str, answer: Answer) -> list[str]:
    values = (answer.value, answer.standard_deviation, answer.low, answer.high)
    if kind == "quantile":
        return [answer.name, *("-" if value is None else f"{value:.10g}" for value in values)]
    return [answer.name, *map(number, values)]


def _without(row: Sequence[str], place: int) -> list[str]:
    return [cell for index, cell in enumerate(row) if index != place]


def _about(window: EpochCounts, answers: Answers) -> Iterator[tuple[str, str]]:
    yield "estimator", answers.estimator
    yield from (("note", note) for note in answers.notes)
    yield from (("left out", str(withheld)) for withheld in window.withheld)


def _guarantee(job: DeployedJob, epochs: int) -> Iterator[tuple[str, str]]:
    """What the epochs asked for lose, and who has to be trusted."""
    own, of_all = job.guarantee(), composed(job, epochs)
    delta = f", delta {own.delta:.3g}" if own.delta else ""
    said = f"epsilon {own.epsilon:.6g}{delta} for what a user holds at one epoch"
    if epochs > 1:
        bound = "" if of_all.exact else "at most "
        said += f"; {bound}{of_all.epsilon:.6g} for these {epochs:,} epochs together"
    yield "guarantee", said
    yield "trusted", own.trust


def _numbers(window: EpochCounts) -> str:
    return str(window.first) if window.first == window.last else f"{window.first}..{window.last}"
