"""Errors of changes and of means over windows of epochs, for the rows of panels.

A row's published error has two parts. The noise of an estimate remains in later ones, as in
`dpstream.aggregators.change_errors`; it follows from the row's public numbers of users and devices.
The rest comes from which devices are asked and report, from thresholds, and from random rows of
labels. These are the same at all epochs, so the rest of two epochs is never negatively correlated
as long as answers persist. In a change, the parts of the two epochs are added as if independent; in
a mean, as if fully correlated. Both are upper bounds then.
"""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.change_errors import FollowedChanges, ReceivedErrors
from dpstream.aggregators.estimate import Estimate, Published
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.aggregators.panels import RowBlock, row_blocks
from dpstream.aggregators.shuffled_value_stream import received_errors as summed_errors
from dpstream.aggregators.value_stream import received_errors
from dpstream.aggregators.window_errors import FollowedWindows
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.panels import PanelsLaw, PanelsParameters, QuestionLaw
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import ShuffledValueStreamLaw
from dpstream.randomizers.value_stream import ValueStreamLaw
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw

Array = NDArray[np.float64]


class PanelChanges:
    """Standard errors of the changes of all rows over `lag` epochs; see `ChangeErrors`."""

    def __init__(self, law: PanelsLaw, parameters: PanelsParameters, lag: int) -> None:
        self._rows = _Rows(law, parameters)
        self._errors = [FollowedChanges(*about, lag) for about in self._rows.mechanisms]
        self._rest: deque[Array | None] = deque(maxlen=lag + 1)

    def next(self, published: Published | None, population: int) -> Any:
        """Return the standard error of each row's change, nan if unknown; None without any."""
        found = self._rows.estimates(published)
        changed = [
            errors.next(*self._rows.noisy(found, block))
            for errors, block in zip(self._errors, self._rows.blocks, strict=True)
        ]
        noise = [errors.noise for errors in self._errors]
        self._rest.append(None if found is None else self._rows.rest(found, noise))
        before, now = self._rest[0], self._rest[-1]
        if found is None or before is None or now is None or len(self._rest) <= 1:
            return None
        if len(self._rest) < (self._rest.maxlen or 0):
            return None
        deviations = self._rows.spread([np.nan if each is None else each for each in changed])
        return np.asarray(np.sqrt((deviations * self._rows.units(found)) ** 2 + before + now))


class PanelWindows:
    """Variances of the sums of a window's estimates, for all rows; see `WindowErrors`."""

    from_start: ClassVar[bool] = True

    def __init__(self, law: PanelsLaw, parameters: PanelsParameters) -> None:
        self._rows = _Rows(law, parameters)
        self._errors = [FollowedWindows(*about) for about in self._rows.mechanisms]
        self.open_window()

    @property
    def variance(self) -> Any:
        """Variance of the sum of each row's estimates, shape (rows,)."""
        noise = self._rows.spread([errors.variance for errors in self._errors])
        return np.asarray(noise * self._units**2 + self._rest**2)

    def open_window(self) -> None:
        for errors in self._errors:
            errors.open_window()
        self._rest = np.zeros(self._rows.count)
        self._units = np.ones(self._rows.count)

    def open_horizon(self) -> None:
        for errors in self._errors:
            errors.open_horizon()

    def next(self, published: Published | None, population: int) -> None:
        found = self._rows.estimates(published)
        for errors, block in zip(self._errors, self._rows.blocks, strict=True):
            errors.next(*self._rows.noisy(found, block))
        if found is not None:
            noise = [errors.noise for errors in self._errors]
            self._rest = self._rest + np.sqrt(self._rows.rest(found, noise))
            self._units = self._rows.units(found)


class _Rows:
    """Rows of a job, block by block, and the parts of their published errors."""

    def __init__(self, law: PanelsLaw, parameters: PanelsParameters) -> None:
        self.count = len(parameters.rows)
        self.blocks = row_blocks(parameters.rows)
        self.mechanisms = [
            _mechanism(law.questions[block.question], len(block.groups)) for block in self.blocks
        ]
        questions = parameters.questions
        self._spans = np.array([questions[row.question].span for row in parameters.rows])
        self._means = np.array([questions[row.question].low is not None for row in parameters.rows])

    def estimates(self, published: Published | None) -> PanelEstimates | None:
        return published if isinstance(published, PanelEstimates) else None

    def noisy(self, found: PanelEstimates | None, block: RowBlock) -> tuple[Estimate | None, int]:
        """Return an estimate with a block's number of devices, and its number of users."""
        if found is None:
            return None, 0
        users, heads = round(float(found.sizes[block.start])), int(found.heads[block.start])
        users = max(users, heads)
        return Estimate.around(0.0, 0.0, 0.0, heads, users), users

    def spread(self, numbers: list[float]) -> Array:
        """Return the number of each row's block, shape (rows,)."""
        return np.repeat(numbers, [block.stop - block.start for block in self.blocks])

    def units(self, found: PanelEstimates) -> Array:
        """Return the unit of each row per user: 1, or the part of a mean's range."""
        return np.where(self._means, self._spans / np.maximum(found.sizes, 1.0), 1.0)

    def rest(self, found: PanelEstimates, noise: list[float]) -> Array:
        """Return the variance of each row that is not that of noise; nan if suppressed."""
        variances = self.spread(noise) * self.units(found) ** 2
        return np.maximum(np.square(found.standard_errors) - variances, 0.0)


def _mechanism(question: QuestionLaw, groups: int) -> tuple[Kernel, ReceivedErrors]:
    """Return the change kernel and errors of the sum of a question's panels in several groups."""
    law = question.law
    if isinstance(law, ShuffledValueStreamLaw):
        summed, rounded = law, question.answer == "mean"

        def noisy(reports: int, population: int, value: float) -> tuple[float, float]:
            # Every panel has noise of its own.
            found = summed_errors(
                summed, reports, population, value, windows=groups, rounded=rounded
            )
            return found[0], 0.0

        return Kernel(law.boost, law.decay), noisy
    booleans = law.booleans if isinstance(law, HadamardValuesLaw) else law
    assert isinstance(booleans, ValueStreamLaw)
    factor = 4.0 if isinstance(law, HadamardValuesLaw) else 1.0

    def received(reports: int, population: int, value: float) -> tuple[float, float]:
        return factor * received_errors(booleans, reports, population, value)[0], 0.0

    return Kernel(booleans.boost, booleans.decay), received
