"""Values that an app passes to its device, converted to numbers of the domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from unicodedata import normalize

from dpstream.randomizers.client.device_errors import ValueRejectedError
from dpstream.randomizers.equal_buckets import EqualBuckets

Value: TypeAlias = bool | int | float | str | Sequence[int | str] | Set[int | str] | None
"""Value that an app passes; see `DeviceValues.number`."""


@dataclass(frozen=True, slots=True)
class DeviceValues:
    """Values of a job, from its statement.

    Attributes:
        kind: "value" (yes or no), "items" (an item of a list, or none), "found" (an item of a
            domain too large to estimate each item, or none) or "numbers" (a measured number).
        size: Size of the domain, whose numbers start at 0.
        slots: Maximum number of items in a set; None if a value is not a set.
        labels: Labels of the numbers 1, 2, ...; empty if there are too many to list.
        low, high: Range of measured numbers, low < high; `high` is exclusive.
        buckets: Number of buckets of measured numbers.
        optional: True if a user need not have a measured number.
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
        """Parse the values; raise `ValueError`, `KeyError` or `TypeError` if malformed."""
        kind, size, slots = values["kind"], values["size"], values["slots"]
        if kind not in ("value", "items", "numbers", "found"):
            raise ValueError(f"'kind' is {kind!r}; expected 'value', 'items', 'numbers' or 'found'")
        if type(size) is not int or size < 2:
            raise ValueError(f"'size' is {size!r}; expected an integer of at least 2")
        if slots is not None and (type(slots) is not int or slots < 1):
            raise ValueError(f"'slots' is {slots!r}; expected null or a positive integer")
        if kind == "numbers":
            low, high = float(values["low"]), float(values["high"])
            buckets, optional = values["buckets"], values["optional"]
            if type(buckets) is not int or size != buckets + 1:
                raise ValueError(f"'buckets' is {buckets!r}; expected {size - 1} for size {size}")
            EqualBuckets(low, high, buckets)
            return cls(kind, size, slots, (), low, high, buckets, bool(optional))
        labels = tuple(values.get("labels", ()))
        if not all(type(label) is str for label in labels):
            raise ValueError("'labels' must be text")
        return cls(kind, size, slots, labels)

    def number(self, value: Value) -> int | list[int]:
        """Convert a value to the randomizer's input.

        Absence is visible, so it must not depend on the value. A number outside the range counts as
        the nearest number inside. NaN counts as no number, or as the lowest if a number is
        required. From a set with too many items, only the first ones in the job's order are used.
        Duplicates count once.

        Args:
            value: True or False; a label; a measured number; a number of the domain in jobs over
                items; or None for no item. For sets, one such value or a collection of them.

        Raises:
            ValueRejectedError: If the type is wrong, or the job has no such label or number. Apps
                can prevent this by checking `Terms.values`. Messages never contain values.
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
        return f"{labels}an integer from 1 to {self.size - 1:,}, or None"
