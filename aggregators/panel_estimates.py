"""Published estimates of several questions, for all users and by public group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import EstimatedCounts
from dpstream.aggregators.estimate import NORMAL_95, Estimate
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_covariances import ItemCovariances, sampling_covariances

SMALL_GROUP: Final = "small_group"
"""Flag: rows of groups with too few reporting devices are suppressed."""

_DIGITS = 9


@dataclass(frozen=True, slots=True, eq=False)
class PanelEstimates(EstimatedCounts):
    """Estimates of all rows; rows are those of `dpstream.randomizers.panels.PanelsParameters`.

    All arrays have shape (rows,). The value and the standard error of a suppressed row are nan.

    Attributes:
        values: float64, in users; for a mean, in the unit of its range.
        standard_errors: float64, standard error of each value.
        sizes: float64, number of users that a row describes, from the public groups of devices.
        heads: int64, number of devices that answered the row's question.
        reports: Number of devices that reported.
        population: Number of users.
        hidden: Zero-based indices of rows that readers are not shown. They have no number, like
            suppressed rows, but are not listed as such.
        whole: The published estimates, with numbers for hidden rows; None without hidden rows.
    """

    values: NDArray[np.float64]
    standard_errors: NDArray[np.float64]
    sizes: NDArray[np.float64]
    heads: NDArray[np.int64]
    reports: int
    population: int
    flags: tuple[str, ...] = ()
    hidden: frozenset[int] = frozenset()
    whole: PanelEstimates | None = None

    @property
    def standard_error(self) -> None:  # type: ignore[override]
        """None: every row has its own."""

    @property
    def detection_threshold(self) -> float | None:  # type: ignore[override]
        """The population if any row is suppressed (its number is unknown); otherwise None."""
        return float(self.population) if self.suppressed else None

    @property
    def numbers(self) -> NDArray[np.int64]:
        return 1 + np.flatnonzero(np.isfinite(self.values))

    @property
    def suppressed(self) -> tuple[int, ...]:
        suppressed = np.flatnonzero(np.isnan(self.values)).tolist()
        return tuple(1 + index for index in suppressed if index not in self.hidden)

    @property
    def suppressed_because(self) -> str:
        return "fewer devices answered in the group than by_minimum"

    @property
    def intervals(self) -> NDArray[np.float64]:
        return self.intervals_of(self.numbers)

    def intervals_of(self, items: NDArray[np.int64]) -> NDArray[np.float64]:
        values, widths = self.values[items - 1], NORMAL_95 * self.standard_errors[items - 1]
        return np.stack([values, values - widths, values + widths])

    @property
    def headline(self) -> Estimate | None:
        """The first row: the first question's, for all users."""
        return self.row(0)

    def row(self, index: int) -> Estimate:
        """Return the estimate of the row at a zero-based index."""
        value, deviation = float(self.values[index]), float(self.standard_errors[index])
        return Estimate.around(value, deviation, NORMAL_95 * deviation, *self.about)

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        known = np.isfinite(self.values)
        for item in range(1, len(self.values) + 1) if items is None else items:
            if known[item - 1]:
                yield item, self.row(item - 1)

    def top(self, count: int) -> HeavyHitters:
        """Return the rows with the largest values, each with the widest interval."""
        numbers = self.numbers
        order = np.argsort(-self.values[numbers - 1], kind="stable")[:count]
        found = numbers[order]
        values = self.values[found - 1]
        deviation = float(self.standard_errors[found - 1].max(initial=0.0))
        half_width = NORMAL_95 * deviation
        above = float(self.population)
        if len(found) and not self.suppressed:
            above = float(values[-1]) + half_width
        return HeavyHitters(found, values, deviation, half_width, above, *self.about)

    @property
    def estimates(self) -> Self:
        return self

    @property
    def method(self) -> str:
        return "each row separately, from the devices that are asked its question"

    def hiding(self, rows: NDArray[np.bool_]) -> PanelEstimates:
        """Return the estimates as readers are shown them, without some rows, shape (rows,)."""
        return replace(
            self,
            values=np.where(rows, np.nan, self.values),
            standard_errors=np.where(rows, np.nan, self.standard_errors),
            hidden=frozenset(np.flatnonzero(rows).tolist()),
            whole=self,
        )

    @property
    def shown(self) -> PanelEstimates:
        """The estimates without the numbers of hidden rows, also in JSON."""
        return replace(self, whole=None)

    def covariance(
        self, one: int, other: int, covariances: ItemCovariances = sampling_covariances
    ) -> float:
        """Return the covariance of two labels of a question, among the users of both rows.

        Those who have one label do not have the other, so it matters which devices are asked.
        `covariances` are those of the question's mechanism; by default, its noise is independent.
        `one` and `other` are zero-based indices of rows, one of which describes a part of the users
        of the other.
        """
        rows = [one, other]
        sizes = np.maximum(self.sizes[rows], 1.0)
        narrow = int(sizes.argmin())
        users = round(float(sizes[narrow]))
        values = users * self.values[rows] / sizes
        return float(covariances(int(self.heads[rows[narrow]]), users, values)[0, 1])

    def changed_since(
        self, earlier: PanelEstimates, standard_errors: NDArray[np.float64]
    ) -> PanelEstimates:
        """Return the changes since an earlier epoch; rows suppressed in one are suppressed."""
        values = self.values - earlier.values
        known = np.isfinite(values) & np.isfinite(standard_errors)
        return replace(
            self,
            values=np.where(known, values, np.nan),
            standard_errors=np.where(known, standard_errors, np.nan),
            reports=earlier.reports + self.reports,
            flags=tuple(dict.fromkeys((*self.flags, *earlier.flags))),
            hidden=self.hidden | earlier.hidden,
            whole=None,
        )

    def mean_of(
        self,
        values: NDArray[np.float64],
        standard_errors: NDArray[np.float64],
        reports: int,
        population: int,
        flags: tuple[str, ...],
        hidden: frozenset[int],
    ) -> PanelEstimates:
        """Return the means over a window that ends here, of groups of the size they have here."""
        known = np.isfinite(values) & np.isfinite(standard_errors)
        return replace(
            self,
            values=np.where(known, values, np.nan),
            standard_errors=np.where(known, standard_errors, np.nan),
            reports=reports,
            population=population,
            flags=flags,
            hidden=hidden,
            whole=None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the published fields as JSON values, with 9 digits; None if suppressed."""
        published = self.whole or self
        return {
            "rows": _rounded(published.values),
            "standard_errors": _rounded(published.standard_errors),
            "sizes": _rounded(self.sizes),
            "heads": self.heads.tolist(),
            "reports": self.reports,
            "population": self.population,
            "flags": list(self.flags),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        numbers = (_read(body[name]) for name in ("rows", "standard_errors", "sizes"))
        values, deviations, sizes = numbers
        heads = np.array(body["heads"], np.int64)
        if not len(values) == len(deviations) == len(sizes) == len(heads):
            raise ValueError("rows, standard_errors, sizes and heads have different lengths")
        if not np.array_equal(np.isnan(values), np.isnan(deviations)) or np.isnan(sizes).any():
            raise ValueError("a row has only one of its value and its standard error")
        people = int(body["reports"]), int(body["population"])
        return cls(values, deviations, sizes, heads, *people, tuple(body["flags"]))


def _rounded(numbers: NDArray[np.float64]) -> list[float | None]:
    return [
        None if number != number else float(f"{number:.{_DIGITS}g}") for number in numbers.tolist()
    ]


def _read(numbers: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if number is None else float(number) for number in numbers])
