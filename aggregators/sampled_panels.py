"""Count the answers of panels whose devices answer at few epochs, and estimate each epoch alone.

All devices of a panel report at every epoch, so the sizes of groups are known as in
`dpstream.aggregators.panels`. The m devices of a panel that are asked at an epoch are a random
sample of the n_g users of its group. If a share h of their answers lies in the set of a label, then
n_g (h - b) / (a - b) estimates how many users have the label. Here a and b are the probabilities of
an answer in the set of the user's own label, and of another one. With s the true share, the
variance is

    n_g^2 ((s a (1 - a) + (1 - s) b (1 - b)) / (m (a - b)^2) + (1 / m - 1 / n_g) s (1 - s)).

Groups in which few devices are asked are estimated together, as one group, in the rows of wider
groups and of all users. For a mean, thresholds add the variance n_g S (1 - S), as in `panels`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.epoch_tables import TableAggregator
from dpstream.aggregators.estimate import Participation, Published
from dpstream.aggregators.law_aggregator import check_format
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.aggregators.panels import GroupCounts, PanelAggregator, PanelsAggregator, RowBlock
from dpstream.aggregators.sampled_items import answers_inside, cells_counted, counts_of_answers
from dpstream.randomizers.panels import AskedPanels, PanelsLaw, QuestionLaw, unasked
from dpstream.randomizers.sampled_response import SampledResponseLaw

FEW_ANSWERS: Final = 20
"""Expected number of answers of a panel at an epoch below which groups are estimated together."""

_ADDED: Final = 2
"""Answers of either kind that are added for variances only, as by Agresti and Coull (1998)."""

Array = NDArray[np.float64]


class SampledPanel(TableAggregator[SampledResponseLaw]):
    """Count the devices of a panel, and the answers of those that are asked, by epoch."""

    @property
    def cells(self) -> int:
        return 1 + cells_counted(self.law)

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, words.dtype)
        # If all devices are asked at every epoch, no device states that it is not.
        most = unasked(self.law) - (self.law.reports == self.law.last_epoch)
        if len(words) and int(words.max()) > most:
            raise ValueError(
                f"message at epoch {epoch} is {words.max()}; expected 0 to {most - 1}, or {most} "
                "from a device that is not asked"
            )

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        asked = words[:, 0] < unasked(self.law)
        heads = len(words) if counts is None else int(counts.sum(dtype=np.int64))
        points = words[asked, 0]
        answers = counts_of_answers(self.law, points, None if counts is None else counts[asked])
        self._tables.add_table(epoch, np.concatenate([[heads], answers]))

    def heads(self, epoch: int) -> int:
        """Return the number of reporting devices, asked or not."""
        counts = self._tables.counts(epoch)
        return 0 if counts is None else int(counts[0])

    def answers(self, epoch: int) -> tuple[int, NDArray[np.int64]]:
        """Return the number of answers, and the number in the set of each label."""
        counts = self._tables.counts(epoch)
        if counts is None:
            return 0, np.zeros(self.law.items, np.int64)
        return answers_inside(self.law, counts[1:])


class SampledPanelsAggregator(PanelsAggregator):
    """Count answers panel by panel; the state is independent of input order, splits and merges."""

    parts: list[SampledPanel]  # type: ignore[assignment]

    def _empty(self, question: QuestionLaw) -> PanelAggregator:
        assert isinstance(question.law, SampledResponseLaw)
        return SampledPanel(question.law)

    def _reporting(self, panel: PanelAggregator, epoch: int) -> int:
        assert isinstance(panel, SampledPanel)
        return panel.heads(epoch)

    def _answering(self, epoch: int) -> NDArray[np.int64]:
        return np.array([panel.answers(epoch)[0] for panel in self.parts], np.int64)

    def estimate(self, epoch: int, participation: Participation) -> PanelEstimates | None:
        """Estimate all rows from the answers of an epoch; return None without any.

        Devices that are asked and answer are assumed to be a simple random sample of each group:
        absence must not depend on values.
        """
        found = super().estimate(epoch, participation)
        return found if self._answering(epoch).any() else None

    def _counts(self, epoch: int) -> Callable[[RowBlock], GroupCounts]:
        law, questions = self.law, len(self.law.questions)
        sizes, members = self._sizes.groups, self._sizes.members.reshape(law.groups, -1)
        answers = [panel.answers(epoch) for panel in self.parts]

        def counted(block: RowBlock) -> GroupCounts:
            question = law.questions[block.question]
            assert isinstance(question.law, SampledResponseLaw)
            asked = question.law.reports / question.law.last_epoch
            few = members[block.groups, block.question] * asked < FEW_ANSWERS
            together = [[group] for group in block.groups[~few].tolist()]
            together += [block.groups[few].tolist()] if few.any() else []
            parts = []
            for groups in together:
                found = [answers[group * questions + block.question] for group in groups]
                reports = sum(number for number, _ in found)
                inside = np.sum([points for _, points in found], axis=0)
                parts.append(_estimated(question, reports, inside, float(sizes[groups].sum())))
            return GroupCounts.total(parts)

        return counted


def _estimated(
    question: QuestionLaw, reports: int, inside: NDArray[np.int64], size: float
) -> GroupCounts:
    """Return the number of users with each label among `size` users."""
    law = question.law
    assert isinstance(law, SampledResponseLaw)
    if not reports:
        return GroupCounts.unknown(len(inside), size)
    own, other = map(float, law.probabilities)
    counts = size * (inside / reports - other) / (own - other)
    likely = np.clip((inside + _ADDED) / (reports + 2 * _ADDED), other, own)
    having = (likely - other) / (own - other)
    spread = having * (1 - having)
    sampled = max(0.0, 1 / reports - 1 / size) if size else 0.0
    variances = size**2 * (law.flip_variance(having) / reports + sampled * spread)
    if question.answer == "mean":
        variances = variances + size * spread
    return GroupCounts(counts, variances)


class SampledPanelChanges:
    """Upper bounds on the standard errors of all rows' changes; see `ChangeErrors`.

    As in `SampledChanges`, samples of different users are negatively correlated where answers
    persist. If devices answer at both epochs, their flips can be correlated.
    """

    def __init__(self, law: PanelsLaw, parameters: AskedPanels, lag: int) -> None:
        self._rows = _SampledRows(law, parameters)
        self._before: deque[_RowErrors | None] = deque(maxlen=lag + 1)

    def next(self, published: Published | None, population: int) -> Any:
        """Return the standard error of each row's change, nan if unknown; None without any."""
        now = self._rows.errors(published)
        self._before.append(now)
        before = self._before[0]
        if len(self._before) < (self._before.maxlen or 0) or before is None or now is None:
            return None
        apart = 2 * before.deviations * now.deviations / np.maximum(now.sizes - 1, 1.0)
        flips = 2 * self._rows.correlations * np.sqrt(before.flips * now.flips)
        sampled = before.sampled + now.sampled
        return np.asarray(np.sqrt(before.flips + now.flips + sampled + apart + flips))


class SampledPanelWindows:
    """Upper bounds on the variances of the sums of a window's estimates; see `WindowErrors`.

    If a device answers c times within a window, its samples count as if they were the same c times,
    and its flips are correlated.
    """

    from_start: ClassVar[bool] = False

    def __init__(self, law: PanelsLaw, parameters: AskedPanels) -> None:
        self._rows = _SampledRows(law, parameters)
        self.open_window()

    @property
    def variance(self) -> Any:
        """Variance of the sum of each row's estimates, shape (rows,)."""
        again = np.maximum(np.ceil(self._epochs * self._rows.asked) - 1, 0)
        both = self._sampled + self._rows.correlations * self._flips
        return np.asarray(self._sampled + self._flips + again * both)

    def open_window(self) -> None:
        self._epochs = 0
        self._sampled, self._flips = np.zeros((2, len(self._rows.asked)))

    def open_horizon(self) -> None:
        """Do nothing: a window can contain epochs of two horizons."""

    def next(self, published: Published | None, population: int) -> None:
        self._epochs += 1
        if (errors := self._rows.errors(published)) is not None:
            self._sampled = self._sampled + errors.sampled
            self._flips = self._flips + errors.flips


@dataclass(frozen=True, slots=True, eq=False)
class _RowErrors:
    """Parts of the errors of all rows, in the unit of each row, shape (rows,).

    Attributes:
        sizes: Numbers of users.
        deviations: Standard deviations between users, times the number of users.
        sampled: Variances due to users who are not asked and to thresholds.
        flips: Variances due to flips.
    """

    sizes: Array
    deviations: Array
    sampled: Array
    flips: Array


class _SampledRows:
    """Rows of a job, and the parts of their published errors.

    Attributes:
        asked: Fraction of the devices of the row's question that answer at an epoch, shape (rows,).
        correlations: Maximum correlation of the flips of two answers of a device, shape (rows,).
    """

    def __init__(self, law: PanelsLaw, parameters: AskedPanels) -> None:
        laws = [law.questions[row.question].law for row in parameters.rows]
        sampled = [each for each in laws if isinstance(each, SampledResponseLaw)]
        self.asked = np.array([each.reports / each.last_epoch for each in sampled])
        self.correlations = np.array([flip_correlation(each) for each in sampled])
        questions = [parameters.questions[row.question] for row in parameters.rows]
        self._means = np.array([question.low is not None for question in questions])
        self._lows = np.array([question.low or 0.0 for question in questions])
        self._spans = np.array([question.span for question in questions])

    def errors(self, published: Published | None) -> _RowErrors | None:
        if not isinstance(published, PanelEstimates):
            return None
        sizes, heads = np.maximum(published.sizes, 1.0), np.maximum(published.heads, 1)
        units = np.where(self._means, self._spans / sizes, 1.0)
        shares = np.clip((published.values - self._lows) / (units * sizes), 0.0, 1.0)
        # The thresholds of a mean add the part of all users.
        absent = np.maximum(1 / heads - ~self._means / sizes, 0.0)
        spread = sizes**2 * shares * (1 - shares) * units**2
        variances = np.square(published.standard_errors)
        sampled = np.minimum(absent * spread, variances)
        return _RowErrors(sizes, np.sqrt(spread), sampled, variances - sampled)


def flip_correlation(law: SampledResponseLaw) -> float:
    """Return the correlation of two flips of a device, as a positive number; 0 with one answer."""
    if law.reports == 1:
        return 0.0
    pairs = law.reports * (law.reports - 1)
    inside = [(law.reports - flips) * (law.reports - flips - 1) for flips in range(law.reports + 1)]
    both = sum(number * mass for number, mass in zip(inside, law.masses, strict=True))
    own, _ = law.probabilities
    common = Fraction(both, pairs * sum(law.masses)) - own**2
    return abs(float(common / (own * (1 - own))))
