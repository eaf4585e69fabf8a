"""The columns and cells of answers in a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpstream.pipeline.cli.output import number
from dpstream.pipeline.results.questions import Answer, Question
from dpstream.randomizers.equal_buckets import edge_text, rounded_text


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """What a table shows of answers; columns as `dpstream.pipeline.cli.output.say_table` has them.

    Attributes:
        question: that they answer.
        deviation: whether standard deviations are shown; values have none.
        norm_sub: whether estimates after Norm-Sub are shown.
        truth: whether the truth is shown.
        width: of a bucket, where the answers are values of the domain.
        value: what the numbers are, see `PublishedRows`.
    """

    question: Question
    deviation: bool = True
    norm_sub: bool = False
    truth: bool = False
    width: float = 1.0
    value: str = "estimate"

    def columns(self) -> list[str]:
        """The headers, in the order of `cells`."""
        return [
            self.question.kind,
            f">{self.value}",
            *([">± sd"] if self.deviation else []),
            *(">95 % low", ">high"),
            *([">norm-sub"] if self.norm_sub else []),
            *([">truth"] if self.truth else []),
        ]

    def rows(self, epoch: int, answers: Iterable[Answer], *notes: str) -> Iterator[list[str]]:
        """The rows of an epoch, behind its number and before its notes."""
        first, last = str(epoch), notes
        for cells in [*map(self.cells, answers)] or [["-"] * len(self.columns())]:
            yield [first, *cells, *last]
            first, last = "", ("",) * len(notes)

    def cells(self, answer: Answer) -> list[str]:
        """The row of an answer."""
        deviation = [self._cell(answer.standard_deviation)] if self.deviation else []
        ends = map(self._end, (answer.low, answer.high))
        norm_sub = [self._cell(answer.norm_sub)] if self.norm_sub else []
        cells = [answer.name, self._cell(answer.value), *deviation, *ends, *norm_sub]
        if self.truth:
            truth = answer.truth
            cells.append(
                self._cell(truth if truth is None or self.question.in_values else round(truth))
            )
        return cells

    def _cell(self, value: float | None) -> str:
        if value is None or not self.question.in_values:
            return number(value)
        return rounded_text(value, self.width)

    def _end(self, value: float | None) -> str:
        if value is None or not self.question.in_values:
            return number(value)
        return edge_text(value, self.width)
