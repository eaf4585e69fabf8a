"""Measures: what a device works out of its own events at the end of an epoch.

A measure is a pure function of a user's events in a *window*, the last `within` epochs. Its answer
is one integer, in the form of `Measure.answer`:

* ``boolean``: 0 or 1.
* ``labels``: the number of a label from 1, or 0 if no event decides it.
* ``mean``: the position of a number in a range, from 0 at `low` to 2^32 at `high`, rounded down.
* ``numbers``: the number of one of `EqualBuckets`, from 1.

All arithmetic is exact: numbers are multiplied by `scale` and rounded to integers when recorded.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, get_args

from dpstream.randomizers.equal_buckets import EqualBuckets, check_numbers, decimal, number_text

MeasureType: TypeAlias = Literal[
    "active", "count", "days", "sum", "max", "last", "most", "lifecycle", "steps"
]
Answer: TypeAlias = Literal["boolean", "mean", "labels", "numbers"]

MAX_WITHIN: Final = 1 << 12
MAX_LABELS: Final = 64
"""Maximum number of labels of a measure, including `OTHER`."""
MAX_STEPS: Final = 32
MAX_NAMES: Final = 256
MAX_NUMBER: Final = 1 << 53
"""Bound of numbers and sums after multiplication by `scale`; what lies beyond is clamped."""
MEAN_UNIT: Final = 1 << 32
OTHER: Final = "other"
LIFECYCLE: Final = ("new", "retained", "resurrected", "dormant")

_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "sum": ("number",),
    "max": ("number",),
    "last": ("number", "label"),
    "most": ("label",),
}
_RESERVED: Final = (OTHER, "none", "never", "earlier")
_EXAMPLE: Final = "'at_least: 5', 'mean: {low: 0, high: 10}' or 'buckets: [0, 1, 2, 5]'"


@dataclass(frozen=True, slots=True)
class MeanRange:
    """Range of the numbers whose mean is estimated; numbers outside it are clamped."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measure:
    """Constants of a measure; part of the statement that devices verify.

    Attributes:
        within: Number of epochs of the window, which ends with the epoch that is answered.
        event: Names of the events that count; () for all.
        number: Column with the numbers of `sum`, `max` and `last`.
        label: Column with the labels of `last` and `most`.
        values: Labels in their order; every other label counts as `OTHER`.
        steps: Distinct names of events, in the order in which they are expected.
        at_least: Threshold of a number, for a Boolean answer.
        buckets: Ascending lower edges of cells, or buckets of equal width. Numbers below the first
            edge belong to the first cell.
        scale: Factor of all numbers before they are rounded, half to even, to integers.

    >>> Measure("count", within=4, buckets=(0, 1, 2, 5)).labels
    ('0', '1', '2 to 4', '5 and more')
    """

    type: MeasureType
    within: int = 1
    event: tuple[str, ...] = ()
    number: str | None = None
    label: str | None = None
    values: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    at_least: float | None = None
    mean: MeanRange | None = None
    buckets: tuple[float, ...] | EqualBuckets | None = None
    scale: int = 1000

    def __post_init__(self) -> None:
        if self.type not in get_args(MeasureType):
            known = ", ".join(get_args(MeasureType))
            raise ValueError(f"'type' is {self.type!r}; expected one of {known}")
        _check_integer("within", self.within, 1, MAX_WITHIN)
        _check_integer("scale", self.scale, 1, 10**6)
        _check_names("event", self.event, MAX_NAMES)
        _check_names("steps", self.steps, MAX_STEPS, in_results=True)
        _check_names("values", self.values, MAX_LABELS - 1, in_results=True)
        self._check_columns()
        self._check_answer()

    def _check_columns(self) -> None:
        columns = [key for key in ("number", "label") if getattr(self, key) is not None]
        expected = _COLUMNS.get(self.type, ())
        if expected and len(columns) != 1:
            needed = " or ".join(f"'{key}: COLUMN'" for key in expected)
            raise ValueError(f"type '{self.type}' requires exactly one of: {needed}")
        for key in columns:
            if key not in expected:
                raise ValueError(f"type '{self.type}' does not support '{key}'. Remove it")
            if not getattr(self, key):
                raise ValueError(f"'{key}' is empty; expected the name of a column")
        for key, supported in (
            ("values", self.label is not None),
            ("steps", self.type == "steps"),
        ):
            if supported and not getattr(self, key):
                raise ValueError(f"type '{self.type}' requires '{key}', a list of names")
            if getattr(self, key) and not supported:
                raise ValueError(f"type '{self.type}' does not support '{key}'. Remove it")
        if self.type == "steps" and self.event:
            raise ValueError("type 'steps' does not support 'event'. Remove it")
        if len(self.steps) == 1:
            raise ValueError(
                f"'steps' has only {self.steps[0]!r}; expected at least 2 names. To ask for one "
                f"event, use type 'active' with event: [{self.steps[0]}]"
            )

    def _check_answer(self) -> None:
        asked = [key for key in ("at_least", "mean", "buckets") if getattr(self, key) is not None]
        if not self._is_number:
            if asked:
                raise ValueError(
                    f"'{asked[0]}' requires a number, but type '{self.type}' has none. Remove it"
                )
            return
        if len(asked) != 1:
            raise ValueError(
                f"got {' and '.join(asked) or 'no answer'} for type '{self.type}'; expected "
                f"exactly one of {_EXAMPLE}"
            )
        if self.at_least is not None:
            self._check_number("at_least", self.at_least)
        if self.mean is not None:
            self._check_number("mean: low", self.mean.low)
            self._check_number("mean: high", self.mean.high)
            if not self.mean.low < self.mean.high:
                raise ValueError(
                    f"'mean' has high {self.mean.high:g}; expected a number above low, "
                    f"{self.mean.low:g}"
                )
            width = self.mean.high - self.mean.low
            if width * self.unit < 1:
                more = "" if self.number is None else ", or a larger 'scale'"
                raise ValueError(
                    f"'mean' has a range of {width:g}, but numbers are multiples of "
                    f"{1 / self.unit:g}. Use a wider range{more}"
                )
        if self.buckets is not None:
            self._check_buckets(self.buckets)

    def _check_buckets(self, buckets: tuple[float, ...] | EqualBuckets) -> None:
        if isinstance(buckets, EqualBuckets):
            check_numbers(buckets.low, buckets.high, None, buckets.count)
            self._check_number("buckets: low", buckets.low)
            self._check_number("buckets: high", buckets.high)
            if self.can_be_none:
                raise ValueError(
                    f"'buckets' of equal width require a number in every epoch, but type "
                    f"'{self.type}' has none without events. List the edges: buckets: [0, 10, 20]"
                )
        else:
            if not 2 <= len(buckets) <= MAX_LABELS:
                raise ValueError(f"'buckets' has {len(buckets)} edges; expected 2 to {MAX_LABELS}")
            for edge in buckets:
                self._check_number("buckets", edge)
                if self.number is None and (edge != int(edge) or edge < 0):
                    raise ValueError(
                        f"'buckets' has the edge {edge:g}; expected integers from 0 for type "
                        f"'{self.type}'"
                    )
            if not all(low < high for low, high in pairwise(buckets)):
                raise ValueError("'buckets' is not sorted; expected ascending lower edges")
        found = _thresholds(self)
        if not all(low < high for low, high in pairwise(found)):
            raise ValueError(
                f"'buckets' are narrower than 1/{self.scale}, the resolution of numbers. Use "
                "fewer buckets, or a larger 'scale'"
            )

    def _check_number(self, key: str, number: float) -> None:
        most = MAX_NUMBER // self.unit
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not -most <= number <= most
        ):
            raise ValueError(f"'{key}' is {number!r}; expected a number from -{most} to {most}")

    @property
    def _is_number(self) -> bool:
        return self.number is not None or self.type in ("count", "days")

    @property
    def can_be_none(self) -> bool:
        """True if a window without events has no value at all, in contrast to 0."""
        return self.type in ("max", "last", "most", "lifecycle", "steps")

    @property
    def unit(self) -> int:
        return 1 if self.number is None else self.scale

    @property
    def answer(self) -> Answer:
        if self.mean is not None:
            return "mean"
        if isinstance(self.buckets, EqualBuckets):
            return "numbers"
        return "boolean" if self.type == "active" or self.at_least is not None else "labels"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the items 1, 2, ... of an answer in labels; () for other answers."""
        if self.answer != "labels":
            return ()
        if isinstance(self.buckets, tuple):
            return _bucket_labels(self, self.buckets)
        if self.label is not None:
            return (*self.values, OTHER)
        return self.steps if self.type == "steps" else LIFECYCLE

    def answer_of(self, value: int | None) -> int:
        """Return the answer for the value of a window.

        `value` is a number in `unit`s, or None without one. For labels, it is the answer itself.
        """
        if not self._is_number:
            return value or 0
        if self.mean is not None:
            low, high = decimal(self.mean.low) * self.unit, decimal(self.mean.high) * self.unit
            share = 0 if value is None else (value - low) / (high - low)
            return math.floor(min(max(share, Fraction(0)), Fraction(1)) * MEAN_UNIT)
        if value is None:
            return 0
        return bisect_right(_thresholds(self), value) + (self.answer != "boolean")

    def thresholds(self) -> tuple[int, ...]:
        """Return the smallest value of yes, or of each bucket but the first, in `unit`s."""
        return _thresholds(self)

    def to_json(self) -> dict[str, Any]:
        written: dict[str, Any] = {"type": self.type}
        if self.within != 1:
            written["within"] = self.within
        for key in ("event", "number", "label", "values", "steps", "at_least"):
            value = getattr(self, key)
            if value is not None and value != ():
                written[key] = list(value) if isinstance(value, tuple) else value
        if self.mean is not None:
            written["mean"] = {"low": self.mean.low, "high": self.mean.high}
        if isinstance(self.buckets, EqualBuckets):
            equal = self.buckets
            written["buckets"] = {"low": equal.low, "high": equal.high, "buckets": equal.count}
        elif self.buckets is not None:
            written["buckets"] = list(self.buckets)
        if self.scale != 1000:
            written["scale"] = self.scale
        return written

    @classmethod
    def from_json(cls, document: object) -> Measure:
        """Parse a JSON object; `event` is a name or a list of names. Raise `ValueError`."""
        keys = cls.__dataclass_fields__
        document = _object("a measure", document, keys)
        if "type" not in document:
            raise ValueError(
                f"'type' is missing; expected one of {', '.join(get_args(MeasureType))}"
            )
        given = dict(document)
        if isinstance(given.get("event"), str):
            given["event"] = [given["event"]]
        for key in ("event", "values", "steps"):
            given[key] = _names(key, given.get(key, []))
        for key in ("number", "label"):
            if given.get(key) is not None and not isinstance(given[key], str):
                raise ValueError(f"'{key}' is {given[key]!r}; expected the name of a column")
        if given.get("mean") is not None:
            mean = _object("'mean'", given["mean"], ("low", "high"))
            given["mean"] = MeanRange(_number(mean.get("low")), _number(mean.get("high")))
        buckets = given.get("buckets")
        if isinstance(buckets, Mapping):
            equal = _object("'buckets'", buckets, ("low", "high", "buckets"))
            low, high, count = (_number(equal.get(key)) for key in ("low", "high", "buckets"))
            check_numbers(low, high, None, count)
            given["buckets"] = EqualBuckets(low, high, count)
        elif buckets is not None:
            if not isinstance(buckets, list | tuple):
                raise ValueError(
                    f"'buckets' is {buckets!r}; expected a list of ascending edges, or "
                    "{low: 0, high: 100, buckets: 16}"
                )
            given["buckets"] = tuple(map(_number, buckets))
        given["at_least"] = _number(given.get("at_least"))
        return cls(**given)


@lru_cache(maxsize=1 << 10)
def _thresholds(measure: Measure) -> tuple[int, ...]:
    edges: Sequence[Fraction] = ()
    if measure.at_least is not None:
        edges = [decimal(measure.at_least)]
    elif isinstance(measure.buckets, EqualBuckets):
        low, high = decimal(measure.buckets.low), decimal(measure.buckets.high)
        count = measure.buckets.count
        edges = [low + (high - low) * index / count for index in range(1, count)]
    elif measure.buckets is not None:
        edges = list(map(decimal, measure.buckets[1:]))
    return tuple(math.ceil(edge * measure.unit) for edge in edges)


def _bucket_labels(measure: Measure, edges: tuple[float, ...]) -> tuple[str, ...]:
    if measure.number is not None:
        texts = list(map(number_text, edges))
        return (
            f"below {texts[1]}",
            *(f"{low} to below {high}" for low, high in pairwise(texts[1:])),
            f"{texts[-1]} and more",
        )
    firsts = [0, *map(int, edges[1:])]
    return (
        *(
            str(low) if low + 1 == high else f"{low} to {high - 1}"
            for low, high in pairwise(firsts)
        ),
        f"{firsts[-1]} and more",
    )


def scaled(number: float, scale: int) -> int:
    """Return a finite number times `scale`, rounded half to even, at most 2^53 in magnitude.

    >>> scaled(0.0125, 1000), scaled(-2.5, 1), scaled(1e300, 1000) == MAX_NUMBER
    (12, -2, True)
    """
    product = float(number) * scale
    if math.isnan(product):
        raise ValueError(f"got the number {number}; expected a finite number")
    return round(min(max(product, -float(MAX_NUMBER)), float(MAX_NUMBER)))


def _check_integer(key: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"'{key}' is {value!r}; expected an integer from {least} to {most:,}")


def _check_names(key: str, names: tuple[str, ...], most: int, *, in_results: bool = False) -> None:
    if len(names) > most:
        raise ValueError(f"'{key}' has {len(names)} names; expected at most {most}")
    for position, name in enumerate(names):
        if not name or name != name.strip():
            raise ValueError(
                f"'{key}' has the name {name!r}; expected text without spaces around it"
            )
        if name in names[:position]:
            raise ValueError(f"'{key}' has {name!r} twice. Remove one of them")
        if in_results and (name in _RESERVED or "," in name or "=" in name):
            raise ValueError(
                f"'{key}' has the name {name!r}; expected a name other than "
                f"{', '.join(_RESERVED)}, without ',' and '='"
            )


def _names(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"'{key}' is {value!r}; expected a list of names")
    return tuple(value)


def _number(value: Any) -> Any:
    """Return an integer for a float that is one, because JSON does not tell them apart."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _object(what: str, value: object, keys: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is {value!r}; expected the keys {', '.join(keys)}")
    unknown = [key for key in value if key not in keys]
    if unknown:
        raise ValueError(f"{what} has the unknown key {unknown[0]!r}; known: {', '.join(keys)}")
    return value
