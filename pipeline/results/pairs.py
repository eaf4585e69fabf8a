"""Pairs of sums to divide or compare, from texts such as ``bus/car`` or ``os=ios,os=web``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.epoch_cells import Side
from dpstream.pipeline.results.measure_rows import rows_of
from dpstream.pipeline.values.boxes import QueryError
from dpstream.pipeline.values.panels import PanelDomain

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


Sides: TypeAlias = Mapping[str, Mapping[str, Side]]
"""Rows by the name of the measure (or of an answer to it) and by group; "" for all users."""


def measure_sides(job: DeployedJob) -> Sides:
    """Return all rows of a job with measures; {} for another job."""
    found: dict[str, dict[str, Side]] = {}
    for row in rows_of(job) if job.domain.kind == "items" else ():
        name = row.measure if row.value is None else f"{row.measure}={row.value}"
        group = group_text(row.attributes)
        side = Side(group or name, row.items, row.whole)
        found.setdefault(name, {}).setdefault(group, side)
    return found


def asked_sides(job: DeployedJob) -> Sides:
    """Return `measure_sides` without the rows for the answer no."""
    sides = measure_sides(job)
    return {
        name: groups
        for name, groups in sides.items()
        if not (name.endswith("=no") and name.removesuffix("=no") in sides)
    }


def group_text(attributes: Mapping[str, str]) -> str:
    return "&".join(f"{name}={value}" for name, value in attributes.items())


def measure_pairs(
    job: DeployedJob,
    ratios: Sequence[str],
    differences: Sequence[str],
    declared: Mapping[str, tuple[str, str]],
) -> tuple[Pair, ...]:
    """Return the pairs of any job, in the order of the requests.

    In a job with measures, a ratio such as ``wau/mau`` stands for one ratio among all users and one
    in each group. A difference such as ``os=ios,os=web`` stands for one difference of each measure,
    or of the ratio.
    """
    measures = measure_sides(job)
    quotients = {text: _quotients(job, measures, text, declared) for text in dict.fromkeys(ratios)}
    if not differences:
        return tuple(
            Pair(f"{text}: {group}" if group else text, top, bottom)
            for text, sides in quotients.items()
            for group, (top, bottom) in sides.items()
        )
    compared: Sides = asked_sides(job)
    if quotients:
        compared = {
            text: {
                group: Side(group, top.items, bottom.items)
                for group, (top, bottom) in sides.items()
            }
            for text, sides in quotients.items()
        }
    found: list[Pair] = []
    for text in dict.fromkeys(differences):
        left, _, right = (part.strip() for part in text.partition(","))
        unit: Unit | None = "number" if quotients else None
        pairs = [
            Pair(
                f"{name}: {left},{right}",
                sides[left],
                sides[right],
                unit or _unit(job, sides[left]),
            )
            for name, sides in compared.items()
            if left in sides and right in sides
        ]
        found += pairs or [_labels_pair(job, measures, text)]
    return tuple(found)


def _labels_pair(job: DeployedJob, measures: Sides, text: str) -> Pair:
    try:
        return parse_pair(job, measures, text, "difference")
    except QueryError as error:
        groups = dict.fromkeys(group for sides in measures.values() for group in sides if group)
        if not groups:
            raise
        raise QueryError(
            f"--difference: got {text!r}; expected two of the groups {', '.join([*groups][:8])}"
        ) from error


def _unit(job: DeployedJob, side: Side) -> Unit:
    if not isinstance(job.domain, PanelDomain):
        return "percent"
    question = job.domain.questions[job.domain.rows[side.items[0] - 1].question]
    return "number" if question.answer == "mean" else "percent"


def _quotients(
    job: DeployedJob, measures: Sides, text: str, declared: Mapping[str, tuple[str, str]]
) -> Mapping[str, tuple[Side, Side]]:
    names = declared.get(text) or tuple(part.strip() for part in text.partition("/")[::2])
    top, bottom = (measures.get(name) for name in names)
    if top is not None and bottom is not None:
        return {group: (side, bottom[group]) for group, side in top.items() if group in bottom}
    pair = parse_pair(job, measures, text, "ratio")
    return {"": (pair.first, pair.second)}


def parse_pair(job: DeployedJob, measures: Sides, text: str, statistic: Statistic) -> Pair:
    """Parse ``A/B`` or ``A,B`` of items, rows or sums such as ``X+Y``; items may contain these."""
    separator, option = _SEPARATORS[statistic], f"--{statistic}"
    problem = f"{option}: got {text!r}; expected two items, such as A{separator}B"
    labels = {
        f"{name}: {group.replace('&', ', ')}" if group else name: side
        for name, sides in measures.items()
        for group, side in sides.items()
    }
    parts = text.split(separator)
    for place in range(1, len(parts)):
        names = separator.join(parts[:place]), separator.join(parts[place:])
        try:
            first, second = (_sum(job, labels, name.strip(), option) for name in names)
        except QueryError as error:
            problem = str(error)
        else:
            return Pair(text, first, second, _unit(job, first))
    raise QueryError(problem)


def _sum(job: DeployedJob, labels: Mapping[str, Side], text: str, option: str) -> Side:
    names = [text]
    if text not in labels:
        try:
            return Side(text, job.domain.numbers_of([text], option))
        except QueryError:
            if "+" not in text:
                raise
            names = [each.strip() for each in text.split("+")]
    sides = [
        labels[name] if name in labels else Side(name, job.domain.numbers_of([name], option))
        for name in names
    ]
    items, wholes = (
        [item for each in part for item in each]
        for part in ([side.items for side in sides], [side.whole for side in sides])
    )
    return Side(text, tuple(dict.fromkeys(items)), tuple(dict.fromkeys(wholes)))
