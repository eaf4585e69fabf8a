"""Labeled examples: a class and its features; a device's example never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.times import shown
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.labeled_examples import FEATURE_UNIT, LARGEST_FEATURE


class ExampleDomain(ValueDomain):
    """Examples as integer rows: the class plus 1, and the features times 4096; int16.

    As text, an example is the class and the features, separated by spaces. A row of zeros means
    that there is no example.

    >>> ExampleDomain(2, 3).parse(["2 0.5 -1"])[0].tolist()
    [[3, 2048, -4096]]

    Classes are numbered from 0. With `tested`, the accuracy on a test set is published; otherwise,
    the length of gradients.
    """

    initial = 0
    size = 2
    slots = None
    kind = "value"
    about = "examples"
    supported_options = ()
    numeric = True
    columns: int

    def __init__(self, features: int, classes: int, *, tested: bool = False) -> None:
        self.features = features
        self.classes = classes
        self.columns = 1 + features
        self.measured = (
            ("accuracy on the test set", "%")
            if tested
            else ("gradient norm", "% of the clipping norm")
        )

    @property
    def items(self) -> None:
        """None, because examples are learned from, not counted."""

    @property
    def identity(self) -> object:
        return "examples", self.features, self.classes

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """See `ValueDomain.parse`; shape (len(texts), 1 + features)."""
        values = np.zeros((len(texts), self.columns), np.int16)
        problems: dict[int, str] = {}
        for index, text in enumerate(texts):
            class_, *features = text.split() or [""]
            row, problem = self.example(class_, features)
            if problem is None:
                values[index] = row
            else:
                problems[index] = problem
        return values, problems

    def example(self, class_: str, features: Sequence[str]) -> tuple[NDArray[np.int16], str | None]:
        """Return one example, shape (1 + features,), and its problem or None."""
        row = np.zeros(self.columns, np.int16)
        if len(features) != self.features:
            return row, f"got {len(features)} features; expected {self.features}"
        if not (class_.isascii() and class_.isdecimal()) or int(class_[:20]) >= self.classes:
            return row, (
                f"class {shown(class_)} is invalid; expected a whole number from 0 to "
                f"{self.classes - 1}"
            )
        try:
            numbers = np.array(features, np.float64)
        except ValueError:
            return row, "a feature is not a number"
        if not (np.abs(numbers) <= LARGEST_FEATURE).all():
            return (
                row,
                f"a feature is out of range; expected -{LARGEST_FEATURE} to {LARGEST_FEATURE}",
            )
        row[0] = 1 + int(class_)
        row[1:] = np.rint(FEATURE_UNIT * numbers)
        return row, None
