"""Values that an app gives to its device, converted to numbers of the domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from unicodedata import normalize

from dpstream.randomizers.client.device_errors import ValueRejectedError
from dpstream.randomizers.equal_buckets import EqualBuckets

Value: TypeAlias = bool | int | float | str | Sequence[int | str] | Set[int | str] | None
"""Value as apps pass it; see `DeviceValues.number`."""


@dataclass(frozen=True, slots=True)
class DeviceValues:
    """Values of a job, from its statement.

    Attributes:
        kind: "value" yes or no; "items" one of a list, or none; "found" the same, in a domain too
            large to publish every item; "numbers" a measured number.
        size: Numbers are at least 0 and less than this.
        slots: Maximum items of a set; None if a value is not a set.
        labels: Labels of the numbers 1, 2, ...; empty if too many to list.
        low, high: Range of measured numbers, low < high; `high` is exclusive.
        buckets: Number of buckets of measured numbers.
        optional: True if the measured number may be absent.
    """

    kind: str
    size: int
    slots: int | None
    labels: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    buckets: int = 1
    optional: bool = False

    @classmethod
    def from_statement(cls, values: Mapping[str, Any]) -> Self:
        """Parse the values; `ValueError`, `KeyError` or `TypeError` if they are malformed."""
        kind, size, slots = values["kind"], values["size"], values["slots"]
        if kind not in ("value", "items", "numbers", "found") or type(size) is not int or size < 2:
            raise ValueError("values have an unknown kind or an invalid size")
        if slots is not None and (type(slots) is not int or slots < 1):
            raise ValueError("values: invalid maximum set size")
        if kind == "numbers":
            low, high = float(values["low"]), float(values["high"])
            buckets, optional = values["buckets"], values["optional"]
            if type(buckets) is not int or size != buckets + 1 or not low < high:
                raise ValueError("values: expected a range with low < high")
            EqualBuckets(low, high, buckets)
            return cls(kind, size, slots, (), low, high, buckets, bool(optional))
        labels = tuple(values.get("labels", ()))
        if not all(type(label) is str for label in labels):
            raise ValueError("labels are not text")
        return cls(kind, size, slots, labels)

    def number(self, value: Value) -> int | list[int]:
        """Convert a value to the randomizer's input.

        Absence is visible, so it must not depend on the value. A number outside the range counts as
        the nearest one inside. NaN counts as none, or as the lowest where a number is required. Of
        a set with too many items, those first in the job's order count; duplicates count once.

        Args:
            value: True or False; a label; a measured number; a number of the domain, in jobs over
                items; None for no item. Where users have sets: one or a collection of these.

        Raises:
            ValueRejectedError: If the type is wrong, or the job has no such label or number: an app
                error that `Terms.values` reveals before joining. Messages never contain values.
        """
        if self.slots is None:
            return self._one(value)
        several = isinstance(value, Sequence | Set) and not isinstance(value, str | bytes)
        given = list(value) if several else [value]  # type: ignore[arg-type]
        numbers = {number for number in map(self._one, given) if number}
        return sorted(numbers)[: self.slots]

    def _one(self, value: object) -> int:
        number: int | None = None
        if self.kind == "numbers":
            number = self._bucket(value)
        elif value is None and self.kind != "value":
            number = 0
        elif isinstance(value, str):
            label = normalize("NFC", value)
            number = self.labels.index(label) + 1 if label in self.labels else None
        elif type(value) is int or (type(value) is bool and self.kind == "value"):
            number = int(value)
        if number is None or not 0 <= number < self.size:
            raise ValueRejectedError(f"the value is invalid; expected {self._allowed}")
        return number

    def _bucket(self, value: object) -> int | None:
        if value is None:
            return 0 if self.optional else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        if value != value:
            return int(not self.optional)
        if value < self.low:
            return 1
        if value >= self.high:
            return self.buckets
        return 1 + EqualBuckets(self.low, self.high, self.buckets).find(value)

    @property
    def _allowed(self) -> str:
        if self.kind == "value":
            return "True or False"
        if self.kind == "numbers":
            return "a number" + (" or None" if self.optional else "")
        labels = f"one of the {len(self.labels):,} labels of this job, " if self.labels else ""
        return f"{labels}a whole number from 1 to {self.size - 1:,}, or None"
