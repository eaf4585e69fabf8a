"""Answers in a table for people, epoch by epoch, each line as soon as there is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from dpstream.pipeline.cli.output import number
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.results.questions import Answer, Query
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.equal_buckets import edge_text, rounded_text

_LABEL_WIDTH = 12


def epoch_lines(job: Job, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return aligned lines, with the beginning of every epoch where the job has a calendar.

    Args:
        job: whose epochs they are.
        columns: headers behind those of the epoch, as of `say_table`; a column is as wide as its
            header, spaces included.
        rows: each begins with its epoch, or "" where it continues the one before.
    """
    calendar = job.epochs.calendar
    begins = [] if calendar is None else ["begins".ljust(len(calendar.shown(1)))]
    headers = ["> epoch", *begins, *columns]
    names = [header.removeprefix(">") for header in headers]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(len(name)) if header.startswith(">") else cell.ljust(len(name))
            for cell, name, header in zip(row, names, headers, strict=True)
        )
        return " ".join(cells).rstrip()

    yield line(names)
    for epoch, *cells in rows:
        begins = [] if calendar is None else [calendar.shown(int(epoch)) if epoch else ""]
        yield line([epoch, *begins, *cells])


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """What is shown of answers.

    Attributes:
        query: that they answer.
        value: what the numbers are, see `PublishedRows`.
        truth: whether the truth is shown.
    """

    query: Query
    value: str = "estimate"
    truth: bool = False

    def lines(
        self, job: Job, epochs: Iterable[tuple[EstimateRecord, Sequence[Answer]]]
    ) -> Iterator[str]:
        """Return the lines of epochs with their answers; one without any has a line too."""
        notes = "± all" if self.query.question.selects else ""
        counts = [">  reports", ">population"] if self._counts else []
        rows = (self._rows(record, answers) for record, answers in epochs)
        return epoch_lines(job, [*self.columns, *counts, notes], chain.from_iterable(rows))

    @property
    def columns(self) -> list[str]:
        """The headers, in the order of `cells`."""
        question = self.query.question
        labels = question.names(self.query.domain)
        least = 0 if self.query.domain.slots is None else _LABEL_WIDTH
        width = max(least, len(question.kind), *map(len, labels), 0)
        return [
            *([] if question.column is None else [question.kind.ljust(width)]),
            f">{self.value:>10}",
            *([] if question.in_values else [">    ± sd"]),
            *(">  95 % low", ">      high"),
            *([">  norm-sub"] if self.query.norm_sub else []),
            *([">     truth"] if self.truth else []),
        ]

    def cells(self, answer: Answer) -> list[str]:
        """Return the row of an answer."""
        question, width, truth = self.query.question, self.query.domain.width, answer.truth
        if question.in_values:
            shown = [_in_values(answer.value, width)]
            shown += [edge_text(end, width) for end in (answer.low, answer.high)]
            truths = [_in_values(truth, width)]
        else:
            estimate = answer.value, answer.standard_deviation, answer.low, answer.high
            shown = [number(each) for each in estimate]
            truths = [number(None if truth is None else round(truth))]
        return [
            *([] if question.column is None else [answer.name]),
            *shown,
            *([number(answer.norm_sub)] if self.query.norm_sub else []),
            *(truths if self.truth else []),
        ]

    @property
    def _counts(self) -> bool:
        """Whether there is room for the numbers of reports and of users."""
        return self.query.question.column is None and not self.truth

    def _rows(self, record: EstimateRecord, answers: Sequence[Answer]) -> Iterator[list[str]]:
        width = self.query.simultaneous_half_width(record)
        notes = ", ".join([*([] if width is None else [number(width)]), *record.notes])
        counts = [number(record.summary.reports), number(record.population)]
        first, last = str(record.epoch), [*(counts if self._counts else []), notes]
        for cells in [*map(self.cells, answers)] or [["-"] * len(self.columns)]:
            yield [first, *cells, *last]
            first, last = "", [""] * len(last)


def _in_values(value: float | None, width: float) -> str:
    return "-" if value is None else rounded_text(value, width)
