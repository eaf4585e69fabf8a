"""Rows of the results of a job with measures: which measure, of whom, and from which items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.measure_keys import Question
from dpstream.pipeline.values.panels import PanelDomain


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """One number that a job with measures publishes.

    Attributes:
        measure: Name of the measure.
        value: Counted answer; None for the users who answer yes, and for a mean.
        attributes: Values by name of the attributes that distinguish the row; empty for all users.
        items: Numbers of the published items that the row is the sum of, from 1.
    """

    measure: str
    value: str | None
    attributes: Mapping[str, str]
    items: tuple[int, ...]

    @property
    def label(self) -> str:
        """Text of the row, such as ``wau: platform=ios``."""
        name = self.measure if self.value is None else f"{self.measure}={self.value}"
        text = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"{name}: {text}" if text else name


def rows_of(job: Job) -> tuple[MeasureRow, ...]:
    """Return all rows of a job, totals before breakdowns; () for a job without measures.

    If one question asks for cells of private attributes, all other rows are sums of cells.
    """
    if job.measures is None:
        return ()
    domain = job.domain
    if isinstance(domain, PanelDomain):
        return tuple(
            MeasureRow(row.measure, row.value, row.attributes, (number,))
            for number, row in enumerate(domain.rows, start=1)
        )
    (question,) = job.questions
    return tuple(_of_question(job, question))


def _of_question(job: Job, question: Question) -> Iterator[MeasureRow]:
    if not question.attributes:
        for number, label in enumerate(question.measure.labels or (None,), start=1):
            yield MeasureRow(question.name, label, {}, (number,))
        return
    names = tuple(name for name, _ in question.attributes)
    cells = list(product(question.answers, *(values for _, values in question.attributes)))
    for breakdown in dict.fromkeys(((), *(job.by or ()))):
        places = [names.index(name) + 1 for name in breakdown]
        found: dict[tuple[str, ...], list[int]] = {}
        for number, cell in enumerate(cells, start=1):
            found.setdefault((cell[0], *(cell[place] for place in places)), []).append(number)
        for (answer, *values), items in found.items():
            value = None if (question.measure.answer, answer) == ("boolean", "yes") else answer
            attributes = dict(zip(breakdown, values, strict=True))
            yield MeasureRow(question.name, value, attributes, tuple(items))
