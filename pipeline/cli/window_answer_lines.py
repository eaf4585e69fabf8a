"""Answers from windows as lines of text: a block for people, CSV or JSON, epoch by epoch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from dpstream.pipeline.cli.answer_table import AnswerTable
from dpstream.pipeline.cli.output import say, say_pairs, say_table
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.results.composed_epochs import composed
from dpstream.pipeline.results.epoch_counts import EpochCounts
from dpstream.pipeline.results.published_rows import csv_row
from dpstream.pipeline.results.questions import Answers, Query

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
            _say_table(job, answers)
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
            yield ",".join(["epoch", answers.question.kind, *_COLUMNS, "population"])
            header = True
        for answer in answers.answers:
            body = answer.to_json()
            cells = (body[column] for column in _COLUMNS)
            yield csv_row(_numbers(window), answer.name, *cells, window.population)


def json_lines(job: DeployedJob, answered: Answered) -> Iterator[str]:
    """One object a line: of an epoch, or of the sum of several."""
    for window, answers in answered:
        body = {
            "job": job.name,
            **({"epoch": window.first} if window.first == window.last else {}),
            "first_epoch": window.first,
            "last_epoch": window.last,
            "epochs": list(window.epochs),
            "withheld": window.withheld,
            "contributors": window.contributors,
            "population": window.population,
            "guarantee": job.guarantee,
            "composed": composed(job, max(1, len(window.epochs))),
        }
        yield json_text(body | ({} if answers is None else answers.to_json()))


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


def _say_table(job: DeployedJob, answers: Answers) -> None:
    table = AnswerTable(Query(job.domain, answers.question))
    rows = [table.cells(answer) for answer in answers.answers]
    say_table(table.columns, rows or [["none found", *["-"] * (len(table.columns) - 1)]])


def _about(window: EpochCounts, answers: Answers) -> Iterator[tuple[str, str]]:
    yield "estimator", answers.estimator
    yield from (("note", note) for note in answers.notes)
    yield from (("left out", str(withheld)) for withheld in window.withheld)


def _guarantee(job: DeployedJob, epochs: int) -> Iterator[tuple[str, str]]:
    own, of_all = job.guarantee, composed(job, epochs)
    delta = f", delta {own.delta:.3g}" if own.delta else ""
    said = f"epsilon {own.epsilon:.6g}{delta} for what a user holds at one epoch"
    if epochs > 1:
        bound = "" if of_all.exact else "at most "
        said += f"; {bound}{of_all.epsilon:.6g} for these {epochs:,} epochs together"
    yield "guarantee", said
    yield "trusted", own.trust


def _numbers(window: EpochCounts) -> str:
    return str(window.first) if window.first == window.last else f"{window.first}..{window.last}"
