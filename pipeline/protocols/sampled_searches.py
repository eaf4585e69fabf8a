"""Forecast of sampled_response for domains too large to list: searches of windows of epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_counts import level_variance
from dpstream.pipeline.protocols.forecasts import NORMAL_ERROR, detection_note
from dpstream.pipeline.protocols.per_epoch_forecast import PerEpochForecast, describe_code
from dpstream.randomizers.accounting.prefix_levels import predict
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.row_errors import error_samples
from dpstream.randomizers.sampled_response import SampledResponseParameters
from dpstream.randomizers.sampled_response.calibration import calibrate_any
from dpstream.randomizers.sampled_response.leveled_response import LeveledResponseLaw


class SearchForecast(PerEpochForecast):
    """Forecast of mean counts over the latest epochs, if all enrolled devices answer.

    The first epochs of a horizon have shorter windows, and larger errors. Errors of single items
    are those of the longest window.
    """

    def __init__(
        self,
        law: LeveledResponseLaw,
        requested: SampledResponseParameters,
        last_epoch: int,
        held: NDArray[np.float64] | None = None,
    ) -> None:
        super().__init__(last_epoch, law.items, law.slots, held)
        self._law, self._requested = law, requested
        self._window = law.last_epoch if requested.window is None else requested.window
        assert isinstance(law.code, PrefixCells)
        self._levels: tuple[PrefixLevel, ...] = law.code.levels
        own, other = map(float, law.levels[-1].probabilities)
        self.cells = f"{describe_code(law.code)}, one of which an answer is about"
        self.reports_per_user = np.full(last_epoch, 1 / law.last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "epochs": law.last_epoch,
                "searched": self._window,
                "points": law.levels[-1].sets.points,
                "own": own,
                "other": other,
                "epsilon": law.loss,
            },
        )
        self.notes = tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        yield (
            "errors apply to an item that few users have; an item that many have is estimated worse"
        )
        if self._window > 1:
            yield (
                f"an estimate is the mean over the latest {self._window:,} epochs, as far as the "
                "horizon has them: an item that is used in a part of them only counts accordingly. "
                "The errors of single items are those at the end of the horizon"
            )
        if self._law.slots > 1:
            yield (
                f"an answer is about one of {self._law.slots:,} slots, which makes errors "
                f"{self._law.slots:,} times as large as for one item"
            )

    def like(self, held: NDArray[np.float64]) -> SearchForecast:
        return SearchForecast(self._law, self._requested, self._last_epoch, held)

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        epochs = np.minimum(np.arange(1, self._last_epoch + 1), self._window)
        noise = self._noise_deviation(users) ** 2
        # Other items in the same cells do not average out.
        others = max(0.0, self._deviation(users) ** 2 - noise)
        return np.asarray(np.sqrt(others + noise * self._window / epochs), np.float64)

    def _deviation(self, users: int) -> float:
        variance, buckets = self._noise_deviation(users) ** 2, self._levels[-1].buckets
        samples = error_samples(users * self._held, 1, buckets, variance)
        return float(np.abs(samples["median"]).mean()) / NORMAL_ERROR

    def _noise_deviation(self, users: int) -> float:
        return math.sqrt(_variance(self._law, users, self._window))

    def detection_notes(self, users: int) -> Iterator[str]:
        """Describe what a search finds in a window, in one epoch, and if epochs split epsilon."""
        law, window, slots = self._law, self._window, self._law.slots
        found = detection_note(self._levels, users, _variance(law, users, window), slots)
        if law.last_epoch == 1:
            yield found
            return
        yield f"in windows of {window:,} epochs, {found}"
        once = _least(predict(self._levels, users, _variance(law, users, 1), slots))
        charged = _least(self._charged_each_time(users))
        yield (
            f"in a single epoch, {once}; if all users were asked again at every epoch, with "
            f"epsilon / {law.last_epoch:,} each time (projective_geometry), {charged}"
        )

    def _charged_each_time(self, users: int) -> tuple[float, float] | None:
        try:
            epsilon = self._requested.epsilon / self._law.last_epoch
            law = calibrate_any(replace(self._requested, epsilon=epsilon, window=None), 1)
        except ValueError:
            return None
        assert isinstance(law, LeveledResponseLaw)
        return predict(self._levels, users, _variance(law, users, 1), law.slots)


def _variance(law: LeveledResponseLaw, users: int, epochs: int) -> float:
    """Return the noise variance of a cell with few users, in a window of epochs."""
    answers = users * epochs / law.last_epoch / len(law.levels)
    return max(level_variance(level.probabilities, answers, users, 0.0) for level in law.levels)


def _least(found: tuple[float, float] | None) -> str:
    return "no item is found" if found is None else f"about {math.ceil(found[0]):,} must have it"
