"""Registry entry and forecast for count_min: sets of items at independent epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.count_min import CountMinAggregator
from dpstream.aggregators.item_covariances import sampling_covariances
from dpstream.pipeline.protocols.forecasts import NORMAL_ERROR, detection_note
from dpstream.pipeline.protocols.late_calibration import late, late_calibration
from dpstream.pipeline.protocols.per_epoch_forecast import PerEpochForecast, describe_code
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol, Shuffling
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.cell_codes.grid import AxisCode, Grid
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells
from dpstream.randomizers.code_variances import range_variances
from dpstream.randomizers.count_min import CountMin, CountMinLaw, CountMinParameters, OneSided
from dpstream.randomizers.count_min.one_sided import allowance
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.row_errors import ZIPF_EXPONENT, error_samples, normal_errors
from dpstream.topics.message_formats import MessageFormat

_NO_OTHERS = np.zeros(1)
_ONE_SIDED = "one-sided"


class CountMinForecast(PerEpochForecast):
    def __init__(
        self,
        law: CountMinLaw,
        parameters: CountMinParameters,
        last_epoch: int,
        held: NDArray[np.float64] | None = None,
    ) -> None:
        super().__init__(last_epoch, domain_size(parameters.domain), law.items, held)
        self._law, self._parameters = law, parameters
        self._known: dict[int, Mapping[str, NDArray[np.float64]]] = {}
        self.reports_per_user = np.full(last_epoch, law.messages_per_user)
        self.cells = describe_code(law.code)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "cells": law.code.cells,
                "messages": law.code.messages,
                "dummies": law.noise.mean,
                "dummies_per_user": law.noise.per_contributor(law.code.cells),
            },
        )
        skew = (
            f"counts as skewed as Zipf's law with exponent {ZIPF_EXPONENT}"
            if held is None
            else "the given counts"
        )
        collisions = f"predicted errors from other items in the same cells assume {skew}"
        self.notes = (
            "predicted errors are for a single item, value or point",
            *((collisions,) if self._hashed else ()),
            *self._one_sided_notes(),
            *_noise_notes(law),
        )

    def like(self, held: NDArray[np.float64]) -> CountMinForecast:
        return CountMinForecast(self._law, self._parameters, self._last_epoch, held)

    def detection_notes(self, users: int) -> tuple[str, ...]:
        law = self._law
        if not isinstance(law.code, PrefixCells):
            return ()
        return (detection_note(law.code.levels, users, law.noise.moments(users)[1], law.items),)

    def predicted_error(self, users: int) -> float:
        rows = self._hashed
        if rows is None:
            errors = normal_errors(self._usual_deviation(users))
            return self._usual(errors + self._allowance(users), users)
        return self._usual(self._row_errors(rows, users)[self._estimator(rows, users)], users)

    def noise_error(self, users: int) -> float:
        rows = self._hashed
        if rows is None:
            return self.predicted_error(users)
        _, variance = self._law.noise.moments(users)
        alone = self._with_one_sided(error_samples(_NO_OTHERS, *rows, variance), users)
        return self._usual(alone[self._estimator(rows, users)], users)

    def _one_sided_notes(self) -> tuple[str, ...]:
        requested = self._parameters.estimator
        if not isinstance(requested, OneSided):
            return ()
        users, rows = self._law.noise.minimum, self._hashed
        above = self._allowance(users)
        if rows is not None:
            above = float(self._row_errors(rows, users)[_ONE_SIDED].mean())
        return (
            "estimates are upper bounds: the estimate of an item is below its number of "
            f"contributors with a probability of at most {requested.underestimated:g}, and above "
            f"it by {above:,.0f} on average with {users:,} contributors; predicted "
            "errors include this excess",
        )

    def _allowance(self, users: int) -> float:
        match self._parameters.estimator, self._law.code:
            case OneSided(underestimated), HashedRows() as code:
                return allowance(self._law.noise, users, code.rows, underestimated)
            case _:
                return 0.0

    def _with_one_sided(
        self, errors: Mapping[str, NDArray[np.float64]], users: int
    ) -> Mapping[str, NDArray[np.float64]]:
        return {**errors, _ONE_SIDED: errors["min"] + self._allowance(users)}

    @property
    def _hashed(self) -> tuple[int, int] | None:
        """Number of rows and buckets read for an item; None if no two items share a bucket."""
        match self._law.code:
            case HashedRows() as code if not code.direct:
                return code.rows, code.buckets
            case PrefixCells() as code if not code.levels[-1].direct:
                return 1, code.levels[-1].buckets
            case _:
                return None

    def _estimator(self, rows: tuple[int, int], users: int) -> str:
        if isinstance(self._law.code, PrefixCells):
            return "median"
        if isinstance(self._parameters.estimator, OneSided):
            return _ONE_SIDED
        errors = self._row_errors(rows, users)
        return self._parameters.estimator or min(
            (name for name in errors if name != _ONE_SIDED),
            key=lambda name: float(np.abs(errors[name]).mean()),
        )

    def _row_errors(self, rows: tuple[int, int], users: int) -> Mapping[str, NDArray[np.float64]]:
        if users not in self._known:
            _, variance = self._law.noise.moments(users)
            found = error_samples(users * self._held, *rows, variance)
            self._known[users] = self._with_one_sided(found, users)
        return self._known[users]

    def _deviation(self, users: int) -> float:
        """Return the standard error of an item's count; if items differ, the largest one."""
        if self._hashed is not None:
            errors = self._row_errors(self._hashed, users)[self._estimator(self._hashed, users)]
            return float(np.abs(errors).mean()) / NORMAL_ERROR
        _, variance = self._law.noise.moments(users)
        worst = (float(_deviations(axis).max()) for axis in self._axes)
        return math.hypot(math.sqrt(variance) * math.prod(worst), self._allowance(users))

    def _usual_deviation(self, users: int) -> float:
        _, variance = self._law.noise.moments(users)
        usual = (float(_deviations(axis).mean()) for axis in self._axes)
        return math.sqrt(variance) * math.prod(usual)

    @property
    def _axes(self) -> tuple[AxisCode, ...]:
        match self._law.code:
            case Levels() | KeptNodes() as code:
                return (code,)
            case Grid() as code:
                return code.axes
            case _:
                return ()


@cache
def _deviations(axis: AxisCode) -> NDArray[np.float64]:
    starts = np.arange(axis.size)
    return np.asarray(np.sqrt(range_variances(axis, starts, starts + 1)), np.float64)


def _noise_notes(law: CountMinLaw) -> tuple[str, ...]:
    if law.noise.dummies == "shuffle":
        return ()
    return (
        f"the number of dummies depends on shuffle.minimum, {law.noise.minimum:,}: the closer "
        "this minimum is to the number of users, the smaller the errors",
    )


PROTOCOL = Protocol(
    name="count_min",
    parameters=CountMinParameters,
    law=lambda requested: CountMinLaw,
    calibrate=late_calibration("count_min", sized=True),
    message_format=lambda law: MessageFormat(CountMin.word_dtype, distinct=law.code.cells),
    randomizer=CountMin,
    aggregation=Aggregation(
        lambda law, requested: CountMinAggregator(law, requested.estimator),
        lambda law, requested, data: CountMinAggregator.from_bytes(law, data, requested.estimator),
        item_covariances=lambda law, requested: (
            sampling_covariances
            if law.items == 1 and not isinstance(requested.estimator, OneSided)
            else None
        ),
    ),
    shuffling=Shuffling(
        late("count_min", "epsilon_with"),
        contributors=lambda law: law.noise.contributors,
        stage_dummies=CountMin.stage_dummies,
    ),
    planning=Planning(CountMinForecast),
    values=lambda requested: SetDomain(requested.domain, requested.items),
    per_epoch=True,
    examples=(
        Example(CountMinParameters(1.0, 0.05, ("a", "b"), rows=1), 1),
        Example(CountMinParameters(1.5, 0.05, ("a", "b"), rows=1), 1, minimum=3),
        Example(CountMinParameters(2.0, 0.2, ("a", "b"), rows=1, dummies="bernoulli"), 2, 6),
        Example(
            CountMinParameters(
                2.0, 0.5, ("a", "b", "c", "d"), items=2, rows=1, dummies="bernoulli"
            ),
            1,
            minimum=4,
        ),
    ),
)
