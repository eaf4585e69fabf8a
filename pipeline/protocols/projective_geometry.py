"""Registry entry and forecast for projective_geometry: sets of items, no trusted party."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_counts import spoken_for_variance
from dpstream.aggregators.item_covariances import set_covariances
from dpstream.aggregators.projective_geometry import ProjectiveGeometryAggregator
from dpstream.pipeline.protocols.forecasts import NORMAL_ERROR, detection_note
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.per_epoch_forecast import PerEpochForecast, describe_code
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.projective_geometry import (
    ProjectiveGeometry,
    ProjectiveGeometryLaw,
    ProjectiveGeometryParameters,
)
from dpstream.randomizers.row_errors import error_samples


class ProjectiveGeometryForecast(PerEpochForecast):
    def __init__(
        self,
        law: ProjectiveGeometryLaw,
        last_epoch: int,
        held: NDArray[np.float64] | None = None,
    ) -> None:
        super().__init__(last_epoch, law.items, law.slots, held)
        self._law = law
        space, (kept, other) = law.space, map(float, law.probabilities)
        points = (
            f"{space.points:,} points of a projective space with {space.coordinates} coordinates "
            f"over a field of {space.order:,} elements"
        )
        self.cells = (
            points
            if law.prefixes is None
            else f"{describe_code(law.prefixes)}, for each of them {points}"
        )
        self.reports_per_user = np.ones(last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "points": space.points,
                "points_of_an_item": space.block,
                "own": kept,
                "other": other,
                "bytes_per_user": law.message_format.report_bytes,
            },
        )
        several = (
            f"a user reports on one of {law.slots:,} slots, which makes errors {law.slots:,} "
            "times as large as for one item",
        )
        self.notes = (
            "predicted errors are for an item that few users have, whichever item it is; an item "
            "that many have is estimated worse",
            *(several if law.slots > 1 else ()),
        )

    def like(self, held: NDArray[np.float64]) -> ProjectiveGeometryForecast:
        """Return an equally accurate forecast: all users send one message, whatever they have."""
        return ProjectiveGeometryForecast(self._law, self._last_epoch, held)

    def _deviation(self, users: int) -> float:
        if self._law.prefixes is None:
            return self._noise_deviation(users)
        buckets = self._law.prefixes.levels[-1].buckets
        samples = error_samples(users * self._held, 1, buckets, self._noise_deviation(users) ** 2)
        return float(np.abs(samples["median"]).mean()) / NORMAL_ERROR

    def _noise_deviation(self, users: int) -> float:
        variance = spoken_for_variance(self._law.probabilities, users, holders=0)
        return math.sqrt(variance * len(self._law.cells))

    def detection_notes(self, users: int) -> tuple[str, ...]:
        law = self._law
        if law.prefixes is None:
            return ()
        variance = self._noise_deviation(users) ** 2
        return (detection_note(law.prefixes.levels, users, variance, law.slots),)


PROTOCOL = Protocol(
    name="projective_geometry",
    parameters=ProjectiveGeometryParameters,
    law=lambda requested: ProjectiveGeometryLaw,
    calibrate=late_calibration("projective_geometry", sized=True),
    randomizer=ProjectiveGeometry,
    aggregation=Aggregation.of(
        ProjectiveGeometryAggregator,
        item_covariances=lambda law, requested: (
            partial(set_covariances, law, law.space) if law.slots == 1 else None
        ),
    ),
    planning=Planning.of(
        ProjectiveGeometryForecast,
        if_shuffled=lambda law, minimum: ProjectiveGeometry(law).if_shuffled,
    ),
    values=lambda requested: SetDomain(requested.domain, requested.items),
    per_epoch=True,
    examples=(
        Example(ProjectiveGeometryParameters(1.0, ("a", "b", "c")), 2),
        Example(ProjectiveGeometryParameters(1.0, tuple("abcdefghijkl")), 1),
        Example(ProjectiveGeometryParameters(0.5, tuple("abcdef"), delta=0.01), 1, minimum=12),
        Example(ProjectiveGeometryParameters(2.0, ("a", "b", "c"), items=2), 1),
    ),
)
