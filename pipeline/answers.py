"""Answers from the counts of an epoch, or of several added up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from aggregators.cell_window import CellWindow
from aggregators.estimate import Estimate, ItemEstimates
from aggregators.found_items import FoundItems
from aggregators.quantiles import quantile
from aggregators.top_items import top_items
from pipeline.epoch_counts import Counts, EpochCounts
from pipeline.input.sets import SetDomain
from pipeline.input.values import ValueDomain
from pipeline.queries import Answer, QueryError
from pipeline.questions import Boxes, Items, Quantiles, Question, Top, sets_of
from randomizers.cell_codes.codes import CellCode
from randomizers.cell_codes.grid import Grid
from randomizers.cell_codes.hashed_rows import HashedRows
from randomizers.cell_codes.levels import Levels
from randomizers.cell_codes.prefixes import PrefixCells
from randomizers.item_domains import Numbers


@dataclass(frozen=True, slots=True)
class Answers:
    """What the counts say to a question.

    Attributes:
        kind: what each is about: "item", "range", "box" or "quantile".
        answers: in the order in which they were asked, or the largest first.
        estimator: how they are made, in words.
        found_above: with `Top`, items that more users hold are among them with a probability of
            95 % each; None where all items are.
        bucket_width: with `Quantiles` of numbers, how wide the buckets are.
    """

    kind: str
    answers: tuple[Answer, ...]
    estimator: str
    found_above: float | None = None
    bucket_width: float | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know besides, in sentences."""
        notes = []
        if self.found_above is not None:
            notes.append(
                f"an item that more than {self.found_above:,.0f} users hold is listed with a "
                "probability of 95 %; selecting the largest biases them upwards"
            )
        if self.bucket_width is not None:
            notes.append(
                f"a quantile is known to a bucket, {self.bucket_width:g} wide: where it begins; "
                "the interval reaches to the end of its last bucket"
            )
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The answers by their kind, and what is known besides."""
        body: dict[str, Any] = {
            "boxes" if self.kind == "box" else f"{self.kind}s": [
                answer.to_json() for answer in self.answers
            ],
            "estimator": self.estimator,
        }
        more = {"found_above": self.found_above, "bucket_width": self.bucket_width}
        return body | {name: value for name, value in more.items() if value is not None}


def ask(window: EpochCounts, domain: ValueDomain, question: Question) -> Answers:
    """Answer a question.

    >>> from randomizers.cell_codes.hashed_rows import HashedRows
    >>> cells = CellWindow(HashedRows.histogram(3), np.array([40.0, 90, 55]), 25.0, 185, 185)
    >>> counts = EpochCounts(1, 1, (1,), (), 185, 185, cells)
    >>> found = ask(counts, SetDomain(("red", "green", "blue"), slots=1), Top(2))
    >>> [(answer.name, answer.value, answer.standard_deviation) for answer in found.answers]
    [('green', 90.0, 5.0), ('blue', 55.0, 5.0)]

    Args:
        window: the counts of an epoch, or of several added up.
        domain: of the job.
        question: about items, ranges, boxes or quantiles.

    Raises:
        NotAskedForError: the job's cells were not made for it.
        QueryError: no window was released, or there is nobody whose quantiles could be told.
    """
    sets = sets_of(domain)
    counts = window.counts
    if counts is None:
        raise QueryError("; ".join(map(str, window.withheld)))
    match question:
        case Items():
            items = range(1, sets.size) if question.items is None else question.items
            found = _estimates(counts, np.array(items, np.int64))
            named = zip(items, found, strict=True)
            answers = tuple(_answer(sets.label(item), estimate) for item, estimate in named)
            return Answers("item", answers, _estimator(counts))
        case Top():
            return _top(counts, sets, question.count)
        case Boxes():
            grid = _cells(counts).grid
            boxes = tuple(
                _answer(box.name, grid.box(box.starts, box.ends)) for box in question.boxes
            )
            return Answers(question.kind, boxes, _estimator(counts))
        case Quantiles():
            return _quantiles(_cells(counts), sets, question.shares)


def _estimates(counts: Counts, items: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[Estimate]:
    if isinstance(counts, ItemEstimates):
        yield from (counts.item(item - 1) for item in items.tolist())
    elif isinstance(counts.code, HashedRows):
        # All at once: of a million items, one at a time takes a minute.
        rows = counts.rows
        about = (counts.contributors, counts.population, rows.flags)
        for value in rows.values(items).tolist():
            low, high = value - rows.half_width, value + rows.half_width
            yield Estimate(value, rows.standard_deviation, low, high, *about)
    else:
        yield from (counts.item(item) for item in items.tolist())


def _top(counts: Counts, sets: SetDomain, count: int) -> Answers:
    size = sets.size - 1
    found = _largest(counts, count) if isinstance(counts, ItemEstimates) else counts.top(count)
    known = [index for index, item in enumerate(found.items.tolist()) if item <= size]
    return Answers(
        kind="item",
        answers=tuple(
            _answer(sets.label(int(found.items[index])), found.estimate(index)) for index in known
        ),
        estimator=_estimator(counts),
        found_above=found.found_above if len(known) < size else None,
    )


def _largest(estimates: ItemEstimates, count: int) -> FoundItems:
    order = np.array(top_items(estimates, count).items, np.int64)
    values = estimates.values[order]
    return FoundItems(
        items=order + 1,
        values=values,
        standard_deviation=estimates.standard_deviation,
        half_width=estimates.half_width,
        found_above=float(values[-1]) + estimates.half_width,
        reports=estimates.reports,
        population=estimates.population,
        flags=estimates.flags,
    )


def _quantiles(window: CellWindow, sets: SetDomain, shares: tuple[float, ...]) -> Answers:
    buckets = isinstance(sets.domain, Numbers)
    answers = []
    for share in shares:
        try:
            found = quantile(window.grid, share)
        except ValueError as error:
            raise QueryError(str(error)) from None
        # The tree of the paper may have more leaves than there are values.
        value, low, high = (
            min(each, sets.size - 2) for each in (found.value, found.low, found.high)
        )
        ends = [float(value), float(low), float(high)]
        if buckets:
            ends = [sets.numbers.edge(each) for each in (value, low, high + 1)]
        answers.append(Answer(f"{share:g}", ends[0], None, *ends[1:]))
    return Answers(
        kind="quantile",
        answers=tuple(answers),
        estimator=_estimator(window),
        bucket_width=sets.numbers.width if buckets else None,
    )


def _cells(counts: Counts) -> CellWindow:
    if isinstance(counts, CellWindow):
        return counts
    raise QueryError("ranges, boxes and quantiles are for jobs of count_min with queries: ranges")


def _answer(name: str, estimate: Estimate) -> Answer:
    assert estimate.value is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return Answer(name, estimate.value, estimate.standard_deviation, estimate.low, estimate.high)


def _estimator(counts: Counts) -> str:
    """How estimates are made, in words."""
    if isinstance(counts, ItemEstimates):
        return "of each item by itself, without bias"
    return _of_code(counts.code, counts)


def _of_code(code: CellCode, window: CellWindow) -> str:
    match code:
        case HashedRows() if code.direct:
            return "the cell of each item"
        case HashedRows():
            rows = (
                "one row" if code.rows == 1 else f"the {window.rows.estimator} of {code.rows} rows"
            )
            return f"{rows} of {code.buckets:,} buckets, less what any bucket holds"
        case PrefixCells():
            lengths = ", ".join(str(level.length) for level in code.levels)
            return f"a search through prefixes of {lengths} bits"
        case Levels():
            return f"least squares on a tree that branches {_times(code.branching)}"
        case Grid():
            sides = "; ".join(_of_code(axis, window) for axis in dict.fromkeys(code.axes))
            return f"along each axis: {sides}"
        case _:
            return "sums of left children in a binary tree"


def _times(branching: tuple[int, ...]) -> str:
    return " x ".join(map(str, branching))
