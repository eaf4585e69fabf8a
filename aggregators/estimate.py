"""The estimate of one count, with its 95 % confidence interval and flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import EstimatedCounts, UnsupportedQueryError

if TYPE_CHECKING:
    from dpstream.aggregators.crowd_estimates import CrowdEstimates
    from dpstream.aggregators.heavy_hitters import HeavyHitters
    from dpstream.aggregators.item_estimates import ItemEstimates
    from dpstream.aggregators.panel_estimates import PanelEstimates


Published: TypeAlias = "Estimate | ItemEstimates | HeavyHitters | CrowdEstimates | PanelEstimates"
"""Published estimates: a count, all items, the top items, items by crowd, or several questions."""

NORMAL_95 = NormalDist().inv_cdf(0.975)
"""Half-width of a 95 % interval in standard deviations: 1.96."""

GAP = "gap"
"""Flag: an input of the estimate is missing, so the interval claims no coverage."""

CHANGES_USED = "changes-used"
"""Flag: on average, users have made at least half of the changes that intervals allow for. Users
who change more often have then used up their changes, so intervals may miss the ground truth."""

OUTSIDE = "outside"
"""Flag: the estimate is below 0 or above the population; displays clip it."""


INCOMPLETE = "incomplete"
"""Flag: some epochs of a window have no estimate. The mean and its interval cover the others."""


@dataclass(frozen=True, slots=True)
class Estimate(EstimatedCounts):
    """An estimate with its 95 % interval, in users; None marks unknown fields.

    The lower end of the interval can be negative.
    """

    value: float | None
    standard_error: float | None
    ci95_low: float | None
    ci95_high: float | None
    reports: int
    population: int
    flags: tuple[str, ...] = ()

    detection_threshold = None

    @classmethod
    def around(
        cls,
        value: float,
        standard_error: float,
        half_width: float,
        reports: int,
        population: int,
        flags: tuple[str, ...] = (),
    ) -> Self:
        """Return an estimate whose interval is symmetric."""
        ends = value - half_width, value + half_width
        return cls(value, standard_error, *ends, reports, population, flags)

    @property
    def single(self) -> Estimate:
        """The estimate itself."""
        return self

    @property
    def headline(self) -> Estimate:
        """The estimate itself."""
        return self

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Item number 1; empty if the value is unknown."""
        return np.arange(1, 1 if self.value is None else 2)

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Value, low and high, shape (3, 1); shape (3, 0) if the value is unknown."""
        if self.value is None:
            return np.zeros((3, 0))
        return np.array([[self.value], [self.ci95_low], [self.ci95_high]], np.float64)

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        """Return the count as item 1; see `Counts`."""
        if self.value is not None and (items is None or 1 in items):
            yield 1, self

    def top(self, count: int) -> HeavyHitters:
        """Raise `UnsupportedQueryError`: a single count has no top items."""
        raise UnsupportedQueryError("a query for top items requires a job that counts items")

    def may_be_of(self, items: int) -> bool:
        """Return whether the domain has one item and all numbers are finite."""
        return items == 1 and bool(np.isfinite(self.intervals).all())

    def change_from(self, earlier: EstimatedCounts, standard_error: float) -> Estimate | None:
        """Return the change since an earlier epoch; see `EstimatedCounts`."""
        before = earlier.single
        if before is None or before.value is None or self.value is None:
            return None
        width = NORMAL_95 * standard_error
        change = self.value - before.value
        return Estimate.around(change, standard_error, width, *self._with(earlier))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "value": self.value,
            "standard_error": self.standard_error,
            "ci95_low": self.ci95_low,
            "ci95_high": self.ci95_high,
            "reports": self.reports,
            "population": self.population,
            "flags": list(self.flags),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read a result of `to_json`; raise `KeyError` or `TypeError` if it is malformed."""
        return cls(**{**body, "flags": tuple(body["flags"])})


@dataclass(frozen=True, slots=True, eq=False)
class Participation:
    """Public head counts by epoch, used to scale estimates.

    Attributes:
        contributors: int64, shape (epochs + 1,): devices in the released window, whether or not a
            report was due; index 0 is unused.
        population: int64, shape (epochs + 1,): devices enrolled; index 0 is unused.
        added: Number of devices without values whose reports are added to every released window.
    """

    contributors: NDArray[np.int64]
    population: NDArray[np.int64]
    added: int = 0

    @classmethod
    def empty(cls, epochs: int, added: int = 0) -> Participation:
        """Return participation without any devices."""
        return cls(np.zeros(epochs + 1, np.int64), np.zeros(epochs + 1, np.int64), added)

    @classmethod
    def constant(cls, epochs: int, devices: int) -> Participation:
        """Return participation with the same devices enrolled and present at every epoch."""
        return cls(np.full(epochs + 1, devices), np.full(epochs + 1, devices))

    def senders(self, epoch: int) -> int:
        """Return the number of devices whose reports and noise are in an epoch's window."""
        return int(self.contributors[epoch]) + self.added

    def set(self, epoch: int, contributors: int, population: int) -> None:
        """Set the head counts of an epoch."""
        self.contributors[epoch] = contributors
        self.population[epoch] = population
