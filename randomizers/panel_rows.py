"""Questions, public groups, and the rows of the results: what a job with panels asks of whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from dpstream.randomizers.hadamard_rows import check_labels

Answer: TypeAlias = Literal["boolean", "mean", "labels"]

ONE: Final = 1 << 32
"""Position of the upper end of a mean's range; the lower end has position 0."""
MOST_PANELS: Final = 255
MOST_SHARE: Final = 1_000
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class PanelQuestion:
    """A question that a panel of devices answers at every epoch.

    Attributes:
        name: Name of the question.
        answer: "boolean": 0 or 1. "mean": a number as its position in the range from `low` to
            `high`, from 0 to 2^32. "labels": the number of a label, from 1, or 0 for none yet.
        low, high: Range of a mean; None for other answers.
        labels: The labels, at most 4,096; empty for other answers.
        share: Share of devices that are asked, relative to the other questions' shares.
        by: Names of private attributes. Each label is then a cell of the answer and the attributes'
            values, such as ``wau=yes,plan=pro``; only ``yes`` and ``no`` answer a yes/no question.
    """

    name: str
    answer: Answer
    low: float | None = None
    high: float | None = None
    labels: tuple[str, ...] = ()
    share: int = 1
    by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        if self.answer not in get_args(Answer):
            raise ValueError(f"'answer' is {self.answer!r}; expected one of {get_args(Answer)}")
        if type(self.share) is not int or not 1 <= self.share <= MOST_SHARE:
            raise ValueError(
                f"share is {self.share!r}; expected an integer from 1 to {MOST_SHARE:,}"
            )
        ends = self.low, self.high
        if self.answer != "mean":
            if ends != (None, None):
                raise ValueError(f"low and high are for a mean; question {self.name} has none")
        else:
            numbers = [each for each in ends if isinstance(each, int | float)]
            numbers = [each for each in numbers if not isinstance(each, bool)]
            if len(numbers) < 2 or not all(map(math.isfinite, numbers)) or numbers[0] >= numbers[1]:
                raise ValueError(
                    f"low is {self.low!r} and high is {self.high!r}; expected low < high"
                )
            for name, end in zip(("low", "high"), numbers, strict=True):
                object.__setattr__(self, name, float(end))
        if self.answer == "labels":
            check_labels(self.labels)
        elif self.labels or self.by:
            raise ValueError(
                f"labels and by are for answer 'labels'; question {self.name} has another answer"
            )
        if len(set(self.by)) < len(self.by):
            raise ValueError(f"by is {list(self.by)}; expected distinct attributes")
        if self.by:
            self._check_cells()

    @property
    def span(self) -> float:
        """Length of the range of a mean; 1 for other answers."""
        return 1.0 if self.low is None or self.high is None else self.high - self.low

    @property
    def cells(self) -> tuple[tuple[str | None, Mapping[str, str]], ...]:
        """Each counted answer, or None if it is the only one, with private attributes."""
        if not self.by:
            return tuple((label, {}) for label in self.labels) or ((None, {}),)
        parted = [self._parted(label) for label in self.labels]
        yes_or_no = {answer for answer, _ in parted} == {"no", "yes"}
        return tuple(
            (None if yes_or_no and answer == "yes" else answer, attributes)
            for answer, attributes in parted
        )

    def _parted(self, label: str) -> tuple[str, dict[str, str]]:
        first, *others = label.rsplit(",", len(self.by))
        attributes = (other.partition("=") for other in others)
        return first.removeprefix(f"{self.name}="), {name: value for name, _, value in attributes}

    def _check_cells(self) -> None:
        for label in self.labels:
            _, attributes = self._parted(label)
            if not label.startswith(f"{self.name}=") or (*attributes,) != self.by:
                names = ",".join(f"{name}=..." for name in (self.name, *self.by))
                raise ValueError(f"labels has {label!r}; expected {names}, because of 'by'")


@dataclass(frozen=True, slots=True)
class PanelGroup:
    """A group of users with the same values of all public attributes.

    Attributes:
        attributes: Value of each attribute, by name.
    """

    attributes: Mapping[str, str]

    def __post_init__(self) -> None:
        for name, value in self.attributes.items():
            _check_name("attributes", name)
            _check_name("attributes", value)

    def __hash__(self) -> int:
        return hash(frozenset(self.attributes.items()))

    def __str__(self) -> str:
        return attributes_text(self.attributes)


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A row of the results.

    Attributes:
        measure: Name of the question.
        value: Label that is counted; None for other answers.
        attributes: Attributes of the users whom the row describes, public ones first; empty for
            all users.
        question: Index of the question, from 0.
        cell: Index of the label, from 0.
        groups: Indices of the groups that are added up, from 0.
        in_breakdown: True if public attributes are distinguished.
    """

    measure: str
    value: str | None
    attributes: Mapping[str, str]
    question: int
    cell: int
    groups: tuple[int, ...]
    in_breakdown: bool

    @property
    def label(self) -> str:
        """Label as text, unique among the rows, such as ``wau: platform=ios``."""
        name = self.measure if self.value is None else f"{self.measure}={self.value}"
        return f"{name}: {attributes_text(self.attributes)}" if self.attributes else name


def attributes_text(attributes: Mapping[str, str]) -> str:
    """Return attributes as text, such as ``platform=ios, plan=free``."""
    return ", ".join(f"{name}={value}" for name, value in attributes.items())


def _check_name(field: str, name: Any) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
        raise ValueError(
            f"{field}: got {name!r}; expected 1 to {_LONGEST_NAME} printable characters"
        )


def reject_repeated(field: str, names: Sequence[str]) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise ValueError(f"{field}: {name!r} occurs twice. Remove one of them")
        seen.add(name)
