"""Questions to the windows of a job over sets of items, from what people write.

Items, the items most held, ranges (boxes of one dimension), boxes and quantiles. Answering them is
for `pipeline.answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from aggregators.cell_window import NotAskedForError
from pipeline.deployed_job import DeployedJob
from pipeline.input.rows import counted
from pipeline.input.sets import SetDomain
from pipeline.input.times import shown
from pipeline.input.values import ValueDomain
from pipeline.queries import QueryError, buckets_between, listed, share_of
from pipeline.whole_files import read_whole_text
from randomizers.cell_codes.grid import Grid
from randomizers.cell_codes.kept_nodes import KeptNodes
from randomizers.cell_codes.levels import Levels
from randomizers.item_domains import Bits, Numbers, Points, Predicates, Strings

MOST_USUAL = 20
"""Domains up to this size are shown whole when nothing is asked."""


@dataclass(frozen=True, slots=True)
class Items:
    """How many users hold each of these items.

    Attributes:
        items: numbers of items, from 1 on; None for all items of the domain.
    """

    items: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Top:
    """The items most held.

    Attributes:
        count: how many at most.
    """

    count: int


@dataclass(frozen=True, slots=True)
class Box:
    """How many users' values or points lie between two ends along each axis.

    Attributes:
        name: as it was asked.
        starts: of each axis, counted from 0.
        ends: the same, after the last one.
    """

    name: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Boxes:
    """How many users lie in each of these.

    Attributes:
        boxes: at least one.
    """

    boxes: tuple[Box, ...]

    @property
    def kind(self) -> str:
        """What each is called: a range along one axis, a box along several."""
        return "range" if len(self.boxes[0].starts) == 1 else "box"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Below which value these shares of all values lie.

    Attributes:
        shares: between 0 and 1.
    """

    shares: tuple[float, ...]


Question: TypeAlias = Items | Top | Boxes | Quantiles


def item_numbers(domain: SetDomain, labels: Sequence[str], option: str = "--item") -> Items:
    """The question about items by their names.

    Raises:
        QueryError: one is not of the domain; the message may guess what was meant.
    """
    numbers, problems = domain.named(labels)
    for problem in problems.values():
        raise QueryError(f"{option}: {problem.removeprefix('value ')}")
    if not len(labels) or not all(numbers):
        raise QueryError(f"{option} is empty: give the name of an item")
    return Items(tuple(dict.fromkeys(numbers.tolist())))


def items_listed(domain: SetDomain, text: str) -> Items:
    """The question about the items of a file, one name a line, or of a list ``A,B,...``.

    Raises:
        QueryError: the file cannot be read or is empty, or an item is not of the domain.
    """
    path = Path(text)
    if not path.is_file():
        return item_numbers(domain, listed(text, "--items"), "--items (there is no such file)")
    try:
        lines = read_whole_text(path, "utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise QueryError(f"--items: {text} cannot be read: {reason}") from None
    labels = [label for line in lines if (label := line.strip())]
    return item_numbers(domain, labels, f"--items {text}")


def value_range(domain: SetDomain, first: str, last: str, option: str = "--range") -> Boxes:
    """The question about the values of a range.

    Of numbers, from an edge of buckets to below another one; of whole numbers and labels, both ends
    included.

    Raises:
        QueryError: there is no such range.
    """
    match domain.domain:
        case Numbers():
            start, end = buckets_between(first, last, domain.numbers, option)
            return Boxes((Box(f"{first}:{last}", (start,), (end,)),))
        case Points() if len(domain.domain.grid) > 1:
            raise QueryError(f"{option} has one dimension: of points give --box")
        case Strings() | Predicates():
            raise QueryError(f"{option} is for numbers, which have an order: give --item or --top")
        case Points() | Bits():
            size = domain.size - 1
            start, end = (_coordinate(text, size, option) for text in (first, last))
        case _:
            start, end = (
                number - 1
                for text in (first, last)
                for number in item_numbers(domain, [text], option).items or ()
            )
    if start > end:
        raise QueryError(f"{option}: from {first} to {last} is empty: give the lower end first")
    return Boxes((Box(f"{first} to {last}", (start,), (end + 1,)),))


def grid_boxes(domain: SetDomain, texts: Sequence[str]) -> Boxes:
    """The question about boxes of points, ``A1:B1,A2:B2`` each, both ends included.

    An end that is left out is that of the grid.

    Raises:
        QueryError: there is no such box.

    >>> grid_boxes(SetDomain(Points((64, 64)), 1), ["0:9,32:"]).boxes
    (Box(name='0:9,32:', starts=(0, 32), ends=(10, 64)),)
    """
    grid = domain.domain
    if not isinstance(grid, Points):
        raise QueryError("--box is for jobs over points of a grid; of numbers give --range")
    return Boxes(tuple(_box(text, grid.grid) for text in texts))


def quantiles(domain: SetDomain, shares: Sequence[str], option: str = "--quantile") -> Quantiles:
    """The question about quantiles.

    Raises:
        QueryError: values have no order, or a share does not lie between 0 and 1.
    """
    if not has_order(domain):
        other = "--box" if isinstance(domain.domain, Points) else "--item or --top"
        raise QueryError(f"{option} is for numbers, which have an order: here give {other}")
    return Quantiles(tuple(share_of(share, option) for share in shares))


def has_order(domain: SetDomain) -> bool:
    """Whether the values of a domain are numbers."""
    if isinstance(domain.domain, Points):
        return len(domain.domain.grid) == 1
    return isinstance(domain.domain, Numbers | Bits)


def has_tree(job: DeployedJob) -> bool:
    """Whether the cells of a job are those of a tree, which ranges and quantiles need."""
    return isinstance(getattr(job.law(), "code", None), Levels | KeptNodes | Grid)


def check_askable(job: DeployedJob, question: Question) -> Question:
    """The same question; raises `NotAskedForError` if the job's cells were not made for it."""
    if isinstance(question, Boxes | Quantiles) and not has_tree(job):
        kind = "quantiles" if isinstance(question, Quantiles) else "ranges and boxes"
        raise NotAskedForError(
            f"{kind} are for jobs of count_min with queries: ranges over numbers or points; job "
            f"{job.name} of {job.protocol} counts single items: give --item or --top"
        )
    return question


def usual_question(job: DeployedJob) -> Question:
    """What is asked of a job when nothing is: all items of few, the quartiles, or the top ten."""
    domain = sets_of(job.domain)
    if has_tree(job) and has_order(domain):
        return Quantiles((0.25, 0.5, 0.75))
    return Items() if domain.size - 1 <= MOST_USUAL else Top(10)


def sets_of(domain: ValueDomain) -> SetDomain:
    """The domain of a job whose epochs stand alone."""
    if not isinstance(domain, SetDomain):
        raise QueryError("questions are for jobs over sets of items")
    return domain


def _box(text: str, sizes: tuple[int, ...]) -> Box:
    sides = text.split(",")
    grid = " x ".join(map(str, sizes))
    if len(sides) != len(sizes):
        raise QueryError(
            f"--box: {shown(text)} has {counted(len(sides), 'side')}, the grid {grid} has "
            f"{len(sizes)}: give A:B for each, separated by commas"
        )
    starts, ends = [], []
    for side, size in zip(sides, sizes, strict=True):
        low, colon, high = (part.strip() for part in side.partition(":"))
        if not low and not colon:
            raise QueryError(f"--box: {shown(text)} has a side that is empty: a whole side is ':'")
        first = _coordinate(low or "0", size, "--box")
        last = _coordinate(high or str(size - 1), size, "--box") if colon else first
        if first > last:
            raise QueryError(f"--box: {shown(side)} is empty: give the lower end first")
        starts.append(first)
        ends.append(last + 1)
    return Box(text, tuple(starts), tuple(ends))


def _coordinate(text: str, size: int, option: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise QueryError(f"{option}: {shown(text)} is not a whole number") from None
    if not 0 <= number < size:
        raise QueryError(f"{option}: {number} lies outside of the values, 0 to {size - 1:,}")
    return number
