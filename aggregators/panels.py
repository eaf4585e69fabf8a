"""Count the messages of every panel, and estimate its questions for groups and for all users.

At an epoch, of n enrolled users m_p of h reporting devices are in panel p, and h_g in its group g.
So the group has about n_g = n h_g / h users, of whom n_p = n m_p / h are in the panel. The panel's
own aggregator estimates the number C_p of these users with the answer, with variance v_p, which
covers devices of the panel that did not report. The users of a panel are a random sample of the
group, so (n_g / n_p) C_p estimates the group's number, with variance

    (n_g / n_p)^2 v_p + n_g^2 (1 / n_p - 1 / n_g) s (1 - s),  where s is the share of users with it.

Panels have no device in common: numbers of groups, and their variances, are added up for wider
groups and for all users. For a mean, the users with the answer are those above their threshold,
n_g S on average, with S the mean position in the range; thresholds add the variance n_g S (1 - S),
which is at most too large. If devices send their position instead of comparing it, C_p is the sum
of positions. Then thresholds add nothing, and the variance s (1 - s) is at most too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.divided_counts import DividedCounts
from dpstream.aggregators.estimate import GAP, Estimate, Participation
from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.law_aggregator import check_format
from dpstream.aggregators.panel_estimates import SMALL_GROUP, PanelEstimates
from dpstream.aggregators.shuffled_value_stream import (
    ShuffledNumberStreamAggregator,
    ShuffledValueStreamAggregator,
)
from dpstream.aggregators.value_stream import ValueStreamAggregator
from dpstream.randomizers.panels import AskedPanels, PanelRow, PanelsLaw, QuestionLaw
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import ShuffledValueStreamLaw
from dpstream.randomizers.value_stream import ValueStreamLaw
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw

if TYPE_CHECKING:
    from dpstream.aggregators.sampled_panels import SampledPanel

_Following: TypeAlias = (
    ValueStreamAggregator | HadamardValuesAggregator | ShuffledValueStreamAggregator
)
PanelAggregator: TypeAlias = "_Following | SampledPanel"


class PanelsAggregator(DividedCounts[PanelsLaw, PanelAggregator]):
    """Count messages panel by panel; the state is independent of input order, splits and merges.

    >>> from dpstream.randomizers.panels import PanelQuestion, PanelsParameters
    >>> from dpstream.randomizers.panels.calibration import calibrate
    >>> questions = PanelQuestion("active", "boolean"), PanelQuestion("used", "boolean")
    >>> parameters = PanelsParameters(1.0, 1, questions)
    >>> aggregator = PanelsAggregator(calibrate(parameters, last_epoch=2), parameters)
    >>> aggregator.add(1, np.array([[1 << 8 | 80], [2 << 8 | 88], [2 << 8 | 88]], np.uint16), None)
    >>> aggregator.heads(1)
    array([1, 2])
    """

    part_name = "panel"

    def __init__(self, law: PanelsLaw, parameters: AskedPanels) -> None:
        panels = [self._empty(question) for _ in range(law.groups) for question in law.questions]
        super().__init__(law, panels)
        self._parameters = parameters
        self._blocks = row_blocks(parameters.rows)
        self._sizes = _Sizes(law, None)

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, self.law.message_format.dtype)
        if self.law.panels > 1 and len(words):
            numbers = words[:, 0] >> self.law.shift
            wrong = (numbers < 1) | (numbers > self.law.panels)
            if wrong.any():
                raise ValueError(
                    f"message at epoch {epoch} has panel {numbers[wrong.argmax()]}; expected 1 to "
                    f"{self.law.panels}"
                )
        self.check_parts(epoch, words)

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        super()._count(epoch, words, counts)
        self._changed(epoch)

    def _merge(self, other: Self) -> None:
        super()._merge(other)
        self._changed(1)

    @classmethod
    def from_bytes(cls, law: PanelsLaw, parameters: AskedPanels, data: bytes) -> Self:
        return cls(law, parameters).read_parts(data)

    def heads(self, epoch: int) -> NDArray[np.int64]:
        """Return the number of reporting devices of each panel at an epoch, int64."""
        return np.array([self._reporting(panel, epoch) for panel in self.parts], np.int64)

    def _empty(self, question: QuestionLaw) -> PanelAggregator:
        if isinstance(question.law, HadamardValuesLaw):
            return HadamardValuesAggregator(question.law)
        if isinstance(question.law, ShuffledValueStreamLaw):
            numbers = question.answer == "mean"
            kind = ShuffledNumberStreamAggregator if numbers else ShuffledValueStreamAggregator
            return kind(question.law)
        assert isinstance(question.law, ValueStreamLaw)
        return ValueStreamAggregator(question.law)

    def _reporting(self, panel: PanelAggregator, epoch: int) -> int:
        if isinstance(panel, HadamardValuesAggregator):
            return int(panel.sums(epoch)[0])
        assert isinstance(panel, ValueStreamAggregator)
        return panel.sums(epoch).reports

    def _answering(self, epoch: int) -> NDArray[np.int64]:
        """Return the number of devices of each panel that answer at an epoch, int64."""
        return self._sizes.heads

    def estimate(self, epoch: int, participation: Participation) -> PanelEstimates | None:
        """Estimate all rows; return None before the first reports.

        An epoch without reports repeats the previous estimates, flagged `GAP`. Absent devices are
        assumed to be like those that report. The entries of one `participation` object up to the
        epoch must not change between calls.
        """
        if self._sizes.participation is not participation or self._sizes.epoch > epoch:
            self._sizes = _Sizes(self.law, participation)
        while self._sizes.epoch < epoch:
            self._sizes.advance(self.heads(self._sizes.epoch + 1))
        return self._published(epoch) if self._sizes.known else None

    def _published(self, epoch: int) -> PanelEstimates:
        law, sizes = self.law, self._sizes
        groups, heads = sizes.groups, self._answering(epoch).reshape(law.groups, -1)
        counts_of, flags = self._counts(epoch), dict[str, None]()
        rows = len(self._parameters.rows)
        values, variances = np.full((2, rows), np.nan)
        row_sizes, row_heads, small = np.zeros(rows), np.zeros(rows, np.int64), False
        for block in self._blocks:
            where, question = slice(block.start, block.stop), block.question
            row_sizes[where] = size = groups[block.groups].sum()
            row_heads[where] = heads[block.groups, question].sum()
            reporting = int(heads[block.groups].sum())
            if block.breakdown and reporting < self._parameters.by_minimum:
                # An empty group, such as "other" if all values are declared, has no users to hide.
                small = small or size > 0
                continue
            counts = counts_of(block)
            values[where], variances[where] = counts.counts, counts.variances
            flags |= dict.fromkeys(counts.flags)
            asked = self._parameters.questions[question]
            if asked.low is not None:
                unit = asked.span / max(size, 1.0)
                values[where] = asked.low + unit * values[where]
                variances[where] *= unit**2
        return PanelEstimates(
            values=values,
            standard_errors=np.sqrt(variances),
            sizes=row_sizes,
            heads=row_heads,
            reports=int(sizes.heads.sum()),
            population=sizes.population,
            flags=(
                *((GAP,) if not sizes.heads.any() else ()),
                *flags,
                *((SMALL_GROUP,) if small else ()),
            ),
        )

    def _counts(self, epoch: int) -> Callable[[RowBlock], GroupCounts]:
        """Return the numbers of users with each answer, as a function of the rows."""
        law = self.law
        found = [
            [self._of_panel(epoch, group, question) for group in range(law.groups)]
            for question in range(len(law.questions))
        ]
        small = self._sizes.heads.reshape(law.groups, -1).sum(axis=1) < self._parameters.by_minimum

        def summed(block: RowBlock) -> GroupCounts:
            parts = [found[block.question][group] for group in block.groups.tolist()]
            flags = (
                flag
                for group, part in zip(block.groups.tolist(), parts, strict=True)
                for flag in part.flags
                if flag != GAP or not small[group]
            )
            return replace(GroupCounts.total(parts), flags=tuple(dict.fromkeys(flags)))

        return summed

    def _of_panel(self, epoch: int, group: int, question: int) -> GroupCounts:
        """Return the group's numbers for a question, from the panel that is asked."""
        index, asked = self.law.panel(group, question) - 1, self.law.questions[question]
        size, members = float(self._sizes.groups[group]), int(self._sizes.members[index])
        panel = self.parts[index]
        assert isinstance(panel, _Following)
        estimate = panel.estimate(epoch, self._sizes.of_panel[index])
        if estimate is None:
            return GroupCounts.unknown(len(self._parameters.questions[question].cells), size)
        counts, deviation = _numbers_of(estimate)
        scale = size / members
        shares = np.clip(counts / members, 0.0, 1.0)
        sampled = max(0.0, 1 / members - 1 / size) if size else 0.0
        spread = shares * (1 - shares)
        variances = scale**2 * deviation**2 + size**2 * sampled * spread
        if asked.thresholds:
            variances = variances + size * spread
        return GroupCounts(scale * counts, variances, estimate.flags)

    def by_part(
        self, words: NDArray[np.unsignedinteger]
    ) -> Iterator[tuple[PanelAggregator, NDArray[np.bool_] | slice, NDArray[np.unsignedinteger]]]:
        """Yield each panel with messages, their positions, and the messages of its mechanism."""
        if self.law.panels == 1:
            yield self.parts[0], slice(None), words
            return
        shift, numbers = self.law.shift, words[:, 0] >> self.law.shift
        own = words & ((1 << shift) - 1)
        for number in np.unique(numbers).tolist():
            panel, where = self.parts[number - 1], numbers == number
            part = own[where]
            if isinstance(panel, ValueStreamAggregator) and part.dtype != np.uint8:
                # A number above 255 is no symbol, whatever its last byte is.
                part = np.where(part > 255, 0, part).astype(np.uint8)
            yield panel, where, part

    def _changed(self, epoch: int) -> None:
        if epoch <= self._sizes.epoch:
            self._sizes = _Sizes(self.law, None)


@dataclass(frozen=True, slots=True, eq=False)
class GroupCounts:
    """Numbers of users in groups with each answer, their variances, shape (cells,), and flags."""

    counts: NDArray[np.float64]
    variances: NDArray[np.float64]
    flags: tuple[str, ...] = ()

    @classmethod
    def unknown(cls, cells: int, size: float) -> GroupCounts:
        """Return numbers without any report: all up to the group's size are possible."""
        return cls(np.full(cells, size / 2), np.full(cells, size**2 / 4))

    @classmethod
    def total(cls, parts: Sequence[GroupCounts]) -> GroupCounts:
        """Sum the numbers of users without a common device; flags are left out."""
        return cls(
            np.sum([part.counts for part in parts], axis=0),
            np.sum([part.variances for part in parts], axis=0),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Consecutive rows [start, stop) of one question and the same groups."""

    question: int
    groups: NDArray[np.intp]
    breakdown: bool
    start: int
    stop: int


class _Sizes:
    """Public sizes of groups and panels, epoch by epoch.

    Attributes:
        groups: n_g, estimated from the last epoch with reports: float64, shape (groups,).
        members: n_p of each panel, from the last epoch with reports of the panel: int64.
        heads: Number of reporting devices in each panel at the epoch, int64.
        of_panel: Participation in each panel, in which the panel's aggregator computes.
    """

    def __init__(self, law: PanelsLaw, participation: Participation | None) -> None:
        self.participation = participation
        self.epoch = self.population = 0
        self._shares = np.zeros(law.groups)
        self.members = np.zeros(law.panels, np.int64)
        self.heads = np.zeros(law.panels, np.int64)
        self.of_panel = [Participation.empty(law.last_epoch) for _ in range(law.panels)]

    @property
    def known(self) -> bool:
        """True if any epoch so far had reports."""
        return bool(self.members.any())

    @property
    def groups(self) -> NDArray[np.float64]:
        return np.asarray(self.population * self._shares, np.float64)

    def advance(self, heads: NDArray[np.int64]) -> None:
        assert self.participation is not None
        self.epoch += 1
        self.population = int(self.participation.population[self.epoch])
        self.heads, total = heads, int(heads.sum())
        if total:
            self._shares = heads.reshape(len(self._shares), -1).sum(axis=1) / total
            enrolled = np.maximum(heads, np.rint(self.population * heads / total).astype(np.int64))
            self.members = np.where(heads > 0, enrolled, self.members)
        for people, present, members in zip(
            self.of_panel, heads.tolist(), self.members.tolist(), strict=True
        ):
            people.set(self.epoch, present, members)


def row_blocks(rows: tuple[PanelRow, ...]) -> tuple[RowBlock, ...]:
    return tuple(_blocks(rows))


def _blocks(rows: tuple[PanelRow, ...]) -> Iterator[RowBlock]:
    starts = (place for place, row in enumerate(rows) if row.cell == 0)
    for first, following in pairwise([*starts, len(rows)]):
        row = rows[first]
        groups = np.array(row.groups, np.intp)
        yield RowBlock(row.question, groups, row.in_breakdown, first, following)


def _numbers_of(estimate: Estimate | ItemEstimates) -> tuple[NDArray[np.float64], float]:
    if isinstance(estimate, ItemEstimates):
        return estimate.values, estimate.standard_error
    assert estimate.value is not None
    assert estimate.standard_error is not None
    return np.array([estimate.value]), estimate.standard_error
