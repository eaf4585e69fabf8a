"""Answers to several questions as values, and public groups of users: see `randomizers.panels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.numeric_values import number_of
from dpstream.pipeline.values.times import shown
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain
from dpstream.randomizers.panel_rows import (
    ONE,
    PanelGroup,
    PanelQuestion,
    PanelRow,
    attributes_text,
)

SEPARATOR = ";"


class PanelDomain(ValueDomain):
    """One integer per question; int64. The items are the rows of the results.

    As text, a value is the answers in the order of the questions, separated by semicolons: 0 or 1,
    a number, or a label (empty for none yet).

    >>> from dpstream.randomizers.panels import PanelsParameters
    >>> questions = PanelQuestion("active", "boolean"), PanelQuestion("spent", "mean", 0, 10)
    >>> groups = PanelGroup({"os": "ios"}), PanelGroup({"os": "web"})
    >>> rows = PanelsParameters(1.0, 2, questions, groups, (("os",),)).rows
    >>> domain = PanelDomain(questions, groups, rows)
    >>> domain.items
    ('active', 'active: os=ios', 'active: os=web', 'spent', 'spent: os=ios', 'spent: os=web')
    >>> domain.parse(["1;5"])[0].tolist(), domain.group_of({"os": "web"})
    ([[1, 2147483648]], 1)
    """

    initial = 0
    slots = None
    kind = "items"
    about = "measures"
    supported_options = ("--item",)
    columns: int

    def __init__(
        self,
        questions: tuple[PanelQuestion, ...],
        groups: tuple[PanelGroup, ...],
        rows: tuple[PanelRow, ...],
    ) -> None:
        self.rows, self.questions = rows, questions
        self.attributes = tuple(groups[0].attributes) if groups else ()
        self.columns = len(questions)
        self.size = 1 + len(rows)
        self.groups = max(1, len(groups))
        self._groups = groups

    @cached_property
    def items(self) -> tuple[str, ...]:
        return tuple(row.label for row in self.rows)

    @property
    def means(self) -> frozenset[int]:
        asked = (self.questions[row.question].answer for row in self.rows)
        return frozenset(number for number, answer in enumerate(asked, 1) if answer == "mean")

    @property
    def nameable(self) -> tuple[str, ...]:
        return self.items

    @property
    def identity(self) -> object:
        return self.questions, self._groups, self.items

    @property
    def largest(self) -> NDArray[np.int64]:
        return np.array([_largest(question) for question in self.questions], np.int64)

    def named(self, names: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        return CategoryDomain(self.items).parse(names)

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        parted = [text.split(SEPARATOR) for text in texts]
        problems = {
            index: f"value {shown(text)} has {len(parts)} answers; expected {self.columns}"
            for index, (text, parts) in enumerate(zip(texts, parted, strict=True))
            if len(parts) != self.columns
        }
        values = np.zeros((len(texts), self.columns), np.int64)
        whole = [index for index in range(len(texts)) if index not in problems]
        for column, question in enumerate(self.questions):
            answers, wrong = _parsed(question, [parted[index][column].strip() for index in whole])
            values[whole, column] = answers
            problems |= {
                whole[index]: f"{question.name}: {problem}" for index, problem in wrong.items()
            }
        return values, problems

    def group_of(self, attributes: Mapping[str, str]) -> int:
        """Return the number of a group, from 0, given its public attributes.

        Raises `ValueError` if an attribute is missing, or no group has these values. Attributes
        that are not public are not used.
        """
        missing = [name for name in self.attributes if name not in attributes]
        if missing:
            raise ValueError(f"public attributes {', '.join(missing)} are missing")
        own = {name: attributes[name] for name in self.attributes}
        number = self._numbers.get(tuple(own.values()))
        if number is None:
            raise ValueError(f"no group has {attributes_text(own)}; expected {self._allowed}")
        return number

    def ground_truth(
        self, values: NDArray[np.integer], groups: NDArray[np.integer]
    ) -> NDArray[Any]:
        """Return the true number of each row, float64, shape (rows,), in the unit of the row.

        `values` are all answers of all users, shape (users, questions); `groups` are the numbers of
        their groups, shape (users,).
        """
        found = np.zeros(len(self.rows))
        for index, row in enumerate(self.rows):
            question = self.questions[row.question]
            answers = values[np.isin(groups, row.groups), row.question]
            if question.answer == "mean":
                assert question.low is not None
                mean = float(answers.mean()) / ONE if len(answers) else 0.0
                found[index] = question.low + question.span * mean
            else:
                found[index] = np.count_nonzero(answers == row.cell + 1)
        return found

    @property
    def _allowed(self) -> str:
        values = {
            name: dict.fromkeys(group.attributes[name] for group in self._groups)
            for name in self.attributes
        }
        return "; ".join(f"{name} from {', '.join(each)}" for name, each in values.items())

    @cached_property
    def _numbers(self) -> dict[tuple[str, ...], int]:
        return {
            tuple(group.attributes[name] for name in self.attributes): number
            for number, group in enumerate(self._groups)
        } or {(): 0}


def _largest(question: PanelQuestion) -> int:
    return len(question.labels) or (ONE if question.answer == "mean" else 1)


def _parsed(question: PanelQuestion, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
    if question.labels:
        return CategoryDomain(question.labels).parse(texts)
    if question.low is None:
        return BOOLEAN.parse(texts)
    numbers = np.fromiter(map(number_of, texts), np.float64, len(texts))
    problems = {
        index: f"value {shown(texts[index])} is not a number"
        for index in np.flatnonzero(np.isnan(numbers)).tolist()
    }
    positions = np.clip((np.nan_to_num(numbers) - question.low) / question.span, 0.0, 1.0)
    return np.floor(positions * ONE).astype(np.int64), problems
