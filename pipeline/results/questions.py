"""What counts can be asked, whether they were published or lie in the windows themselves.

A question is about one count, items, the items most held, ranges and boxes, or quantiles. Each kind
knows its answers from any `Counts`, the truth beside them, and how it is drawn and named.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from aggregators.counts import Counts, NotAskedForError, NoValuesError
from aggregators.estimate import Estimate
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.results.epoch_counts import CountsCells, EpochCounts
from pipeline.values.boxes import Box, QueryError, finite
from pipeline.values.item_sums import ItemSums
from pipeline.values.value_domains import ValueDomain
from pipeline.whole_files import read_whole_text

MOST_USUAL = 20
"""Domains up to this size are shown whole when nothing is asked."""

QUARTILES = (0.25, 0.5, 0.75)

_LABELS_MEASURED = 1 << 12


@dataclass(frozen=True, slots=True)
class Answer:
    """One number about an epoch.

    Attributes:
        name: the item, the range or the share of the quantile.
        value: the estimate, in users; of a quantile, a value.
        standard_deviation: of its noise; None for quantiles.
        low: lower end of the 95 % interval.
        high: upper end of it.
        norm_sub: the estimate after Norm-Sub, where it was asked for.
        truth: where it is known.
        item: its number, from 1 on; 0 where it is about none.
    """

    name: str
    value: float
    standard_deviation: float | None
    low: float
    high: float
    norm_sub: float | None = None
    truth: float | None = None
    item: int = 0

    @classmethod
    def of(cls, name: str, estimate: Estimate, item: int = 0) -> Answer:
        """What an estimate says."""
        assert estimate.value is not None
        assert estimate.low is not None
        assert estimate.high is not None
        numbers = estimate.value, estimate.standard_deviation, estimate.low, estimate.high
        return cls(name, *numbers, item=item)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; those that were not asked for are left out."""
        body = {
            "name": self.name,
            "estimate": self.value,
            "standard_deviation": self.standard_deviation,
            "low": self.low,
            "high": self.high,
        }
        more = {"norm_sub": self.norm_sub, "truth": self.truth}
        return body | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Answers:
    """What counts say to a question.

    Attributes:
        question: that was asked.
        answers: in the order in which they were asked, or the largest first.
        estimator: how they are made, in words.
        found_above: with `Top`, items that more users hold are among them with a probability of
            95 % each; None where all items are.
        bucket_width: with `Quantiles` that are told to a bucket, how wide it is.
        withheld: crowds that nothing is told of.
    """

    question: Question
    answers: tuple[Answer, ...]
    estimator: str
    found_above: float | None = None
    bucket_width: float | None = None
    withheld: tuple[str, ...] = ()

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
        if self.withheld:
            notes.append(
                "withheld, since too few messages were left after deletion: "
                f"{', '.join(self.withheld)}"
            )
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The answers by their kind, and what is known besides."""
        body: dict[str, Any] = {
            self.question.plural: [answer.to_json() for answer in self.answers],
            "estimator": self.estimator,
        }
        more = {
            "found_above": self.found_above,
            "bucket_width": self.bucket_width,
            "withheld_crowds": list(self.withheld) or None,
        }
        return body | {name: value for name, value in more.items() if value is not None}


class Question(ABC):
    """One kind of question."""

    __slots__ = ()

    in_values: ClassVar[bool] = False
    """Whether the answers are values of the domain instead of numbers of users."""

    selects: ClassVar[bool] = False
    """Whether it selects the largest, which biases them upwards."""

    of_tree: ClassVar[str] = ""
    """What is asked, in words, where cells have to be those of a tree."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What each answer is about, in one word."""

    @property
    def plural(self) -> str:
        """The same of several."""
        return f"{self.kind}s"

    @abstractmethod
    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """The answers.

        Raises:
            NotAskedForError: the counts are of another kind.
            NoValuesError: no user has a value, so there are no quantiles.
        """

    def truths(
        self, answers: Sequence[Answer], held: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        """What users truly hold, beside each answer."""
        items = np.array([answer.item for answer in answers], np.int64)
        yield from map(float, held.of(items))

    def names(self, domain: ValueDomain) -> list[str]:
        """Of the answers, as far as they are known beforehand."""
        return []

    def first(self, count: int) -> Question:
        """About no more than so many."""
        return self


@dataclass(frozen=True, slots=True)
class Count(Question):
    """How many users have the one value that is counted."""

    kind: ClassVar[str] = "value"

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        answers = (Answer.of("1", estimate, item) for item, estimate in counts.of_items())
        return Answers(self, tuple(answers), counts.method)


@dataclass(frozen=True, slots=True)
class Items(Question):
    """How many users hold each of these items.

    Attributes:
        items: numbers of items, from 1 on; None for all items of the domain that are known.
    """

    items: tuple[int, ...] | None = None

    kind: ClassVar[str] = "item"

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        answers = _labelled(domain, counts.of_items(self.items))
        return Answers(self, answers, counts.method, withheld=_withheld(domain, counts))

    def names(self, domain: ValueDomain) -> list[str]:
        """See `Question`."""
        items: Sequence[int] = self.items or ()
        if self.items is None and domain.items is not None:
            items = range(1, min(domain.size, _LABELS_MEASURED))
        return [domain.label(item) for item in items]

    def first(self, count: int) -> Items:
        """See `Question`."""
        return Items(tuple(range(1, count + 1)) if self.items is None else self.items[:count])


@dataclass(frozen=True, slots=True)
class Top(Question):
    """The items most held.

    Attributes:
        count: how many at most.
        numbers: of a crowd and the items in it; None: all items.
    """

    count: int
    numbers: range | None = None

    kind: ClassVar[str] = "item"
    selects: ClassVar[bool] = True

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        if self.numbers is None:
            largest, items = counts.top(self.count), domain.size - 1
        else:
            # Among them is the crowd, which is no item.
            largest, items = counts.top_of(self.numbers, self.count), len(self.numbers) - 1
        answers, withheld = _labelled(domain, largest.of_items()), _withheld(domain, counts)
        # Where crowds were withheld, that is what there is to say.
        above = None if len(answers) == items or withheld else largest.found_above
        return Answers(self, answers, counts.method, found_above=above, withheld=withheld)

    def names(self, domain: ValueDomain) -> list[str]:
        """See `Question`."""
        return Items().names(domain)


@dataclass(frozen=True, slots=True)
class Boxes(Question):
    """How many users' values or points lie in each of these.

    Attributes:
        boxes: at least one.
    """

    boxes: tuple[Box, ...]

    of_tree: ClassVar[str] = "ranges and boxes"

    @property
    def kind(self) -> str:
        """A range along one axis, a box along several."""
        return "range" if len(self.boxes[0].starts) == 1 else "box"

    @property
    def plural(self) -> str:
        """Of `kind`."""
        return "ranges" if self.kind == "range" else "boxes"

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        answers = (Answer.of(each.name, counts.box(each.starts, each.ends)) for each in self.boxes)
        return Answers(self, tuple(answers), counts.method)

    def truths(
        self, answers: Sequence[Answer], held: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        """See `Question`."""
        yield from (held.within(box, domain.grid) for box in self.boxes)

    def names(self, domain: ValueDomain) -> list[str]:
        """See `Question`."""
        return [box.name for box in self.boxes]

    def first(self, count: int) -> Boxes:
        """See `Question`."""
        return Boxes(self.boxes[:count])


@dataclass(frozen=True, slots=True)
class Quantiles(Question):
    """Below which value these shares of all values lie.

    Attributes:
        shares: between 0 and 1.
    """

    shares: tuple[float, ...]

    kind: ClassVar[str] = "quantile"
    in_values: ClassVar[bool] = True
    of_tree: ClassVar[str] = "quantiles"

    def ask(self, counts: Counts, domain: ValueDomain) -> Answers:
        """See `Question`."""
        answers = []
        for share, name in zip(self.shares, self.names(domain), strict=True):
            estimate = counts.quantile(share)
            value, low, high = domain.quantile(estimate.value, estimate.low, estimate.high)
            answers.append(Answer(name, float(value), None, float(low), float(high)))
        return Answers(self, tuple(answers), counts.method, bucket_width=domain.step)

    def truths(
        self, answers: Sequence[Answer], held: ItemSums, domain: ValueDomain
    ) -> Iterator[float | None]:
        """See `Question`."""
        for share in self.shares:
            yield domain.true_quantile(held.items, held.counts, share)

    def names(self, domain: ValueDomain) -> list[str]:
        """See `Question`."""
        return [f"{share:g}" for share in self.shares]

    def first(self, count: int) -> Quantiles:
        """See `Question`."""
        return Quantiles(self.shares[:count])


def _labelled(domain: ValueDomain, found: Iterator[tuple[int, Estimate]]) -> tuple[Answer, ...]:
    # A tree may have more leaves than there are items.
    return tuple(
        Answer.of(domain.label(item), estimate, item)
        for item, estimate in found
        if item < domain.size
    )


def _withheld(domain: ValueDomain, counts: Counts) -> tuple[str, ...]:
    return tuple(map(domain.label, counts.withheld))


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as people write it: one of these, of a crowd if they name one.

    Attributes:
        items: names of items; ``@FILE`` stands for those of a file, one a line.
        top: how many of the items most held.
        ranges: ``LOW:HIGH`` each.
        quantiles: shares between 0 and 1.
        boxes: ``A1:B1,A2:B2`` each.
        crowd: the label of one; by itself it asks for its size and all items in it.
    """

    items: Sequence[str] | None = None
    top: int | None = None
    ranges: Sequence[str] | None = None
    quantiles: Sequence[str] | None = None
    boxes: Sequence[str] | None = None
    crowd: str | None = None

    def question(self, domain: ValueDomain) -> Question | None:
        """What it says about values of a domain; None if nothing is asked.

        >>> from pipeline.values.numbers import NumericDomain
        >>> Asked(ranges=["10:40", "60:"]).question(NumericDomain(0, 80, 8))
        ... # doctest: +NORMALIZE_WHITESPACE
        Boxes(boxes=(Box(name='10:40', starts=(1,), ends=(4,)),
                     Box(name='60:', starts=(6,), ends=(8,))))

        Raises:
            QueryError: the domain, or the rest of the question, does not allow it.
        """
        crowd = None if self.crowd is None else domain.numbers_in(self.crowd)

        def items_of(names: Sequence[str]) -> Items:
            listed = [*_listed(names)]
            if self.crowd is not None:
                listed = [domain.text_of(self.crowd, name) for name in listed]
            return Items(domain.numbers_of(listed))

        options: Mapping[str, tuple[Any, Callable[[Any], Question]]] = {
            "--item": (self.items, items_of),
            "--top": (self.top, lambda count: Top(count, crowd)),
            "--range": (self.ranges, lambda texts: Boxes(tuple(map(domain.range, texts)))),
            "--quantile": (self.quantiles, lambda texts: Quantiles(tuple(map(_share, texts)))),
            "--box": (self.boxes, lambda texts: Boxes(tuple(map(domain.box, texts)))),
        }
        given = [option for option, (value, _) in options.items() if value]
        if len(given) > 1:
            raise QueryError(f"{' and '.join(given)} do not go together: give one of them")
        for option in given:
            domain.check_asks(option)
            value, made = options[option]
            return made(value)
        return None if crowd is None else Items(tuple(crowd))


def _listed(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if not name.startswith("@"):
            yield name.strip()
            continue
        try:
            lines = read_whole_text(Path(name[1:]), "utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise QueryError(f"--item: {name[1:]} cannot be read: {reason}") from None
        yield from filter(None, map(str.strip, lines))


def _share(text: str) -> float:
    share = finite(text, "--quantile")
    if not 0 < share < 1:
        raise QueryError(f"--quantile: {share:g} does not lie between 0 and 1")
    return share


def ask(window: EpochCounts, domain: ValueDomain, question: Question) -> Answers:
    """Ask the window of an epoch, or several added up.

    >>> from aggregators.cell_window import CellWindow
    >>> from pipeline.values.sets import SetDomain
    >>> from randomizers.cell_codes.hashed_rows import HashedRows
    >>> cells = CellWindow(HashedRows.histogram(3), np.array([40.0, 90, 55]), 25.0, 185, 185)
    >>> window = EpochCounts(1, 1, (1,), (), 185, 185, cells)
    >>> found = ask(window, SetDomain(("red", "green", "blue"), slots=1), Top(2))
    >>> [(answer.name, answer.value, answer.standard_deviation) for answer in found.answers]
    [('green', 90.0, 5.0), ('blue', 55.0, 5.0)]

    Raises:
        NotAskedForError: the job's cells were not made for it.
        QueryError: no window was released, or no user has a value, so there are no quantiles.
    """
    if window.counts is None:
        raise QueryError("; ".join(map(str, window.withheld)))
    try:
        return question.ask(window.counts.estimates, domain)
    except NoValuesError as error:
        raise QueryError(str(error)) from None


def has_tree(job: DeployedJob) -> bool:
    """Whether the cells of a job are those of a tree, which ranges and quantiles need."""
    aggregator = job.aggregator()
    return isinstance(aggregator, CountsCells) and aggregator.ordered


def check_askable(job: DeployedJob, question: Question) -> Question:
    """The same question; raises `NotAskedForError` if the job's cells were not made for it."""
    if question.of_tree and not has_tree(job):
        raise NotAskedForError(
            f"{question.of_tree} are for jobs of count_min with queries: ranges over numbers or "
            f"points; job {job.name} of {job.protocol} counts single items: give --item or --top"
        )
    return question


def usual_question(job: DeployedJob) -> Question:
    """What is asked of a job when nothing is: all items of few, the quartiles, or the top ten."""
    if "--quantile" in job.domain.asks and has_tree(job):
        return Quantiles(QUARTILES)
    return Items() if job.domain.size - 1 <= MOST_USUAL else Top(10)
