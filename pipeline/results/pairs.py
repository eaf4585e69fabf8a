"""Pairs of sums to divide or compare, from texts such as ``bus/car`` or ``os=ios,os=web``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from dpstream.pipeline.results.epoch_cells import Side
from dpstream.pipeline.values.boxes import QueryError
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.pipeline.values.value_domains import ValueDomain

Statistic: TypeAlias = Literal["share", "ratio", "difference"]
Unit: TypeAlias = Literal["percent", "number"]
"""Unit of differences: points of a percentage, or the unit of means and ratios."""

_SEPARATORS: Final[Mapping[Statistic, str]] = {"ratio": "/", "difference": ","}


@dataclass(frozen=True, slots=True)
class Pair:
    """Numerator and denominator, or two shares that are compared.

    Attributes:
        name: The pair as requested, such as "bus/car".
        unit: Unit of the difference.
    """

    name: str
    first: Side
    second: Side
    unit: Unit = "percent"


def measure_pairs(
    domain: PanelDomain,
    ratios: Sequence[str],
    differences: Sequence[str],
    declared: Mapping[str, tuple[str, str]],
) -> tuple[Pair, ...]:
    """Return the pairs of a job with measures.

    A ratio such as ``wau/mau`` stands for one ratio among all users and one in each group. A
    difference such as ``os=ios,os=web`` stands for one difference of each measure, or of the ratio.
    """
    quotients = {text: _quotients(domain, text, declared) for text in dict.fromkeys(ratios)}
    if not differences:
        return tuple(
            Pair(_named(text, group), Side(group, side.items), Side(group, side.whole))
            for text, sides in quotients.items()
            for group, side in sides.items()
        )
    found: list[Pair] = []
    for text in dict.fromkeys(differences):
        left, _, right = (part.strip() for part in text.partition(","))
        pairs = [
            Pair(f"{name}: {left},{right}", sides[left], sides[right], _unit(domain, sides[left]))
            for name, sides in (quotients or _by_measure(domain)).items()
            if left in sides and right in sides
        ]
        found += pairs or [_labels_pair(domain, text)]
    return tuple(found)


def _labels_pair(domain: PanelDomain, text: str) -> Pair:
    try:
        return parse_pair(text, "difference", domain)
    except QueryError as error:
        groups = dict.fromkeys(filter(None, (_group(row.attributes) for row in domain.rows)))
        if not groups:
            raise
        raise QueryError(
            f"--difference: got {text!r}; expected two of the groups {', '.join([*groups][:8])}"
        ) from error


def _named(name: str, group: str) -> str:
    return f"{name}: {group}" if group else name


def _group(attributes: Mapping[str, str]) -> str:
    return "&".join(f"{name}={value}" for name, value in attributes.items())


def _unit(domain: PanelDomain, side: Side) -> Unit:
    row = domain.rows[side.items[0] - 1]
    mean = domain.questions[row.question].answer == "mean"
    # The whole of a share is in the same question; a ratio divides by another.
    same = all(domain.rows[item - 1].question == row.question for item in side.whole)
    return "percent" if same and not mean else "number"


def _by_measure(domain: PanelDomain) -> dict[str, dict[str, Side]]:
    """Return the rows of each measure, or of each answer to it, by group; "" for all users."""
    found: dict[str, dict[str, Side]] = {}
    for number, row in enumerate(domain.rows, start=1):
        name = row.measure if row.value is None else f"{row.measure}={row.value}"
        group = _group(row.attributes)
        side = Side(group or name, (number,), _whole(domain, number))
        found.setdefault(name, {}).setdefault(group, side)
    return found


def _whole(domain: PanelDomain, number: int) -> tuple[int, ...]:
    """Return the rows whose sum is the number of users of a row's group; () if it is public."""
    row = domain.rows[number - 1]
    if not domain.questions[row.question].by:
        return ()
    about = row.question, row.groups, row.attributes
    return tuple(
        place
        for place, each in enumerate(domain.rows, start=1)
        if (each.question, each.groups, each.attributes) == about
    )


def _quotients(
    domain: PanelDomain, text: str, declared: Mapping[str, tuple[str, str]]
) -> dict[str, Side]:
    """Return the ratio of two measures in each group; the denominator is the `whole` of a side."""
    measures = _by_measure(domain)
    names = declared.get(text) or tuple(part.strip() for part in text.partition("/")[::2])
    top, bottom = (measures.get(name) for name in names)
    if top is not None and bottom is not None:
        return {
            group: Side(side.name, side.items, bottom[group].items)
            for group, side in top.items()
            if group in bottom
        }
    pair = parse_pair(text, "ratio", domain)
    return {"": Side(text, pair.first.items, pair.second.items)}


def parse_pair(text: str, statistic: Statistic, domain: ValueDomain) -> Pair:
    """Parse ``A/B`` or ``A,B``, where A and B are items, or sums such as ``X+Y``.

    Items may contain separators.
    """
    separator, option = _SEPARATORS[statistic], f"--{statistic}"
    problem = f"{option}: got {text!r}; expected two items, such as A{separator}B"
    parts = text.split(separator)
    for place in range(1, len(parts)):
        names = separator.join(parts[:place]), separator.join(parts[place:])
        try:
            first, second = (_sum(name.strip(), domain, option) for name in names)
        except QueryError as error:
            problem = str(error)
        else:
            unit = _unit(domain, first) if isinstance(domain, PanelDomain) else "percent"
            return Pair(text, first, second, unit)
    raise QueryError(problem)


def _sum(text: str, domain: ValueDomain, option: str) -> Side:
    try:
        items = domain.numbers_of([text], option)
    except QueryError:
        if "+" not in text:
            raise
        items = domain.numbers_of([each.strip() for each in text.split("+")], option)
    return side_of(domain, text, items)


def side_of(domain: ValueDomain, name: str, items: tuple[int, ...]) -> Side:
    """Return the sum of items, with what estimates the number of users in its group."""
    return Side(name, items, _whole(domain, items[0]) if isinstance(domain, PanelDomain) else ())
