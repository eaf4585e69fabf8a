"""Parameters of panels: what a job asks of whom, and the rows of its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dpstream.randomizers.panel_rows import (
    MOST_PANELS,
    PanelGroup,
    PanelQuestion,
    PanelRow,
    reject_repeated,
)
from dpstream.randomizers.parameter_checks import check_epsilon, check_shuffled_parameters
from dpstream.randomizers.sampled_response import SampledResponseParameters
from dpstream.randomizers.value_stream import ValueStreamParameters


class AskedPanels:
    """Questions to users in public groups, and the rows of the results.

    Attributes:
        epsilon: Privacy loss of a user's whole stream.
        questions: The questions; a device answers one of them.
        groups: The partition of users by public attributes; may be empty.
        by: Breakdowns of the results: each has the names of the attributes to distinguish.
        by_minimum: Minimum number of devices of a group that answer at an epoch, for its results to
            be published.
    """

    epsilon: float
    questions: tuple[PanelQuestion, ...]
    groups: tuple[PanelGroup, ...]
    by: tuple[tuple[str, ...], ...]
    by_minimum: int

    def _check(self) -> None:
        check_epsilon(self.epsilon)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if type(self.by_minimum) is not int or self.by_minimum < 1:
            raise ValueError(
                f"by_minimum is {self.by_minimum!r}; expected an integer of at least 1"
            )
        for name, kind in (("questions", PanelQuestion), ("groups", PanelGroup), ("by", tuple)):
            listed = getattr(self, name)
            if not all(isinstance(each, kind) for each in listed):
                raise ValueError(f"{name} is {listed!r}; expected a list of {name}")
        if not self.questions:
            raise ValueError("questions is empty; expected at least one question")
        if not all(set(question.by).isdisjoint(self.attributes) for question in self.questions):
            raise ValueError("questions: 'by' of a question has a public attribute")
        self._check_groups()
        if self.panels > MOST_PANELS:
            raise ValueError(
                f"groups: {len(self.questions):,} questions in {len(self.groups):,} groups make "
                f"{self.panels:,} panels; expected at most {MOST_PANELS}. Use fewer questions, "
                "fewer public attributes, or fewer values"
            )
        reject_repeated("questions", [row.label for row in self.rows])

    @property
    def panels(self) -> int:
        return len(self.questions) * self.partition

    @property
    def partition(self) -> int:
        """Number of groups, at least 1."""
        return max(1, len(self.groups))

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the public attributes."""
        return tuple(self.groups[0].attributes) if self.groups else ()

    @cached_property
    def rows(self) -> tuple[PanelRow, ...]:
        """Rows of the results: for each question the total, then the cells of each breakdown."""
        return tuple(self._rows())

    def _rows(self) -> Iterator[PanelRow]:
        everyone = tuple(range(self.partition))
        total: dict[tuple[str, ...], tuple[int, ...]] = {(): everyone}
        breakdowns = [total, *map(self._cells_of, self.by)]
        for number, question in enumerate(self.questions):
            for names, breakdown in zip(((), *self.by), breakdowns, strict=True):
                for values, groups in breakdown.items():
                    public = dict(zip(names, values, strict=True))
                    for cell, (answer, private) in enumerate(question.cells):
                        yield PanelRow(
                            measure=question.name,
                            value=answer,
                            attributes={**public, **private},
                            question=number,
                            cell=cell,
                            groups=groups,
                            in_breakdown=bool(public),
                        )

    def _cells_of(self, names: tuple[str, ...]) -> dict[tuple[str, ...], tuple[int, ...]]:
        """Return the groups of each combination of values that occurs, in the order of groups."""
        cells: dict[tuple[str, ...], tuple[int, ...]] = {}
        for number, group in enumerate(self.groups):
            values = tuple(group.attributes[name] for name in names)
            cells[values] = (*cells.get(values, ()), number)
        return cells

    def _check_groups(self) -> None:
        names = set(self.attributes)
        for group in self.groups:
            if set(group.attributes) != names:
                raise ValueError(
                    f"groups: {str(group)!r} has other attributes than {str(self.groups[0])!r}"
                )
        reject_repeated("groups", list(map(str, self.groups)))
        for breakdown in self.by:
            if not breakdown or not names.issuperset(breakdown):
                raise ValueError(
                    f"by: {list(breakdown)} is not a list of public attributes; expected some of "
                    f"{sorted(names)}"
                )
            reject_repeated("by", list(breakdown))


@dataclass(frozen=True)
class PanelsParameters(AskedPanels):
    """Parameters of panels that report at every epoch.

    Attributes:
        max_changes: Number of changes per user of a question's answer, from nothing on.
    """

    epsilon: float
    max_changes: int
    questions: tuple[PanelQuestion, ...]
    groups: tuple[PanelGroup, ...] = ()
    by: tuple[tuple[str, ...], ...] = ()
    by_minimum: int = 100

    def __post_init__(self) -> None:
        # Each panel's Boolean has these parameters.
        ValueStreamParameters(self.epsilon, self.max_changes)
        self._check()


@dataclass(frozen=True)
class SampledPanelsParameters(AskedPanels):
    """Parameters of panels whose devices answer at few epochs of a horizon.

    Attributes:
        reports: Number of answers per device and horizon; None selects, for each question, the
            number with the smallest error. With more than `MOST_VALUES` labels, it is 1.
    """

    epsilon: float
    questions: tuple[PanelQuestion, ...]
    groups: tuple[PanelGroup, ...] = ()
    by: tuple[tuple[str, ...], ...] = ()
    by_minimum: int = 100
    reports: int | None = None

    def __post_init__(self) -> None:
        SampledResponseParameters(self.epsilon, self.reports)
        self._check()


@dataclass(frozen=True, kw_only=True)
class ShuffledPanelsParameters(PanelsParameters):
    """Parameters of panels whose answers the shuffler sums; all answers are yes/no or means.

    Attributes:
        delta: With epsilon, the privacy loss of a user's whole stream.
    """

    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shuffled_parameters(self.epsilon, self.delta, "shuffle", None)
        object.__setattr__(self, "delta", float(self.delta))
        for question in self.questions:
            if question.answer == "labels":
                raise ValueError(
                    f"questions: {question.name} has labels, which sums by the shuffler do not "
                    "support; expected yes/no answers and means"
                )
