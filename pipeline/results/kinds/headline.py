"""An epoch as one number: the count, the largest item, or the median of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.randomizers.equal_buckets import edge_text, rounded_text


@dataclass(frozen=True, slots=True)
class Headline:
    """Display of an epoch as a single number.

    Attributes:
        name: The item, or "median"; empty for a single count.
        value: Number of users, or a value from the domain; None without an estimate.
        ground_truth: Ground truth of the same item or median, if known.
        numbers: Domain of a median; None for other headlines.
        population: Number of users, the maximum to display; None unless users are counted.
    """

    name: str = ""
    value: float | None = None
    ci95_low: float | None = None
    ci95_high: float | None = None
    ground_truth: float | None = None
    numbers: NumericDomain | None = None
    population: int | None = None

    def shown(self, value: float | None) -> str:
        if value is None:
            return "-"
        if self.population is not None:
            value = min(max(value, 0.0), self.population)
        if self.numbers is None:
            return f"{value:,.0f}"
        return rounded_text(value, self.numbers.width)

    @property
    def interval(self) -> str:
        """The 95 % interval; for a median, its ends are edges of buckets."""
        if self.ci95_low is None or self.ci95_high is None:
            return "-"
        if self.numbers is None:
            return f"{self.shown(self.ci95_low)} to {self.shown(self.ci95_high)}"
        return " to ".join(self.edges)

    @property
    def edges(self) -> tuple[str, str]:
        assert self.numbers is not None
        assert self.ci95_low is not None
        assert self.ci95_high is not None
        width = self.numbers.width
        return edge_text(self.ci95_low, width), edge_text(self.ci95_high, width)

    def __str__(self) -> str:
        """Format the name, value and interval.

        >>> str(Headline("dog", 922.4, 900.2, 944.6))
        'dog: 922 (95 % CI 900 to 945)'
        >>> str(Headline("median", 33.217, 28, 36, numbers=NumericDomain(0, 80, 80)))
        'median 33.2 (95 % CI 28 to 36)'
        >>> str(Headline("", 330, 198, 462, population=202))
        '202 (95 % CI 198 to 202)'
        """
        about = f"{self.name}{' ' if self.numbers else ': '}" if self.name else ""
        value = "no estimate" if self.value is None else self.shown(self.value)
        return about + value + ("" if self.ci95_low is None else f" (95 % CI {self.interval})")
