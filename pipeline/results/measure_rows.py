"""Rows of the results of a job with measures: which measure, of whom, and from which items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.measure_keys import Question
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.randomizers.panel_rows import attributes_text


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """One number that a job with measures publishes.

    Attributes:
        measure: Name of the measure.
        value: Counted answer; None for the users who answer yes, and for a mean.
        attributes: Values by name of the attributes that distinguish the row; empty for all users.
        items: Numbers of the published items that the row is the sum of, from 1.
        whole: Items whose sum estimates the number of users with these attributes; empty if that
            number is public.
    """

    measure: str
    value: str | None
    attributes: Mapping[str, str]
    items: tuple[int, ...]
    whole: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Text of the row, such as ``wau: platform=ios``."""
        name = self.measure if self.value is None else f"{self.measure}={self.value}"
        return f"{name}: {attributes_text(self.attributes)}" if self.attributes else name


def rows_of(job: Job) -> tuple[MeasureRow, ...]:
    """Return all rows of a job, totals before breakdowns; () for a job without measures.

    Spare cells without a value have no rows. If one question asks for cells of private attributes,
    all other rows are sums of cells.
    """
    domain, attributes = job.domain, job.attributes or {}
    if isinstance(domain, PanelDomain):
        unnamed = {(n, value) for n, keys in attributes.items() for value in keys.reserved}
        rows = _of_panels(domain)
        return tuple(row for row in rows if unnamed.isdisjoint(row.attributes.items()))
    if job.measures is None:
        return ()
    (question,) = job.questions
    return tuple(_of_question(job, question))


def measures_of_items(job: Job, items: Iterable[int]) -> tuple[str, ...]:
    """Return the measures that published items are about, by the items' numbers from 1."""
    domain = job.domain
    if not isinstance(domain, PanelDomain):
        return tuple(job.measures or ())
    return tuple(dict.fromkeys(domain.rows[item - 1].measure for item in items))


def _of_panels(domain: PanelDomain) -> Iterator[MeasureRow]:
    wholes: dict[tuple[int, str], tuple[int, ...]] = {}
    for number, row in enumerate(domain.rows, start=1):
        if domain.questions[row.question].by:
            about = row.question, attributes_text(row.attributes)
            wholes[about] = (*wholes.get(about, ()), number)
    for number, row in enumerate(domain.rows, start=1):
        whole = wholes.get((row.question, attributes_text(row.attributes)), ())
        yield MeasureRow(row.measure, row.value, row.attributes, (number,), whole)


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
        wholes: dict[tuple[str, ...], tuple[int, ...]] = {}
        for (_, *values), items in found.items() if breakdown else ():
            wholes[*values,] = (*wholes.get((*values,), ()), *items)
        for (answer, *values), items in found.items():
            value = None if (question.measure.answer, answer) == ("boolean", "yes") else answer
            attributes = dict(zip(breakdown, values, strict=True))
            whole = wholes.get((*values,), ())
            yield MeasureRow(question.name, value, attributes, tuple(items), whole)
