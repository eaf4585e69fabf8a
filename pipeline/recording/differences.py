"""Compare two jobs by epoch: whether their integers are equal, and how their estimates differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Published
from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.plots import new_figure, save_figure, tidy
from dpstream.pipeline.results.coverage import EpochResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class IncomparableError(DpstreamError):
    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the results of two jobs at an epoch.

    Attributes:
        only: 0 if only the first job has the epoch, 1 if only the second job has it, else None.
        integers: Names of differing fields: window_status, contributors, population, counts.
        estimates: True if anything in the published estimates differs.
        deviations: Largest difference between two estimates of the same item, in units of the
            smaller of the two standard errors; None if no item has estimates in both jobs.
        item: Item with that difference, numbered from 1; None without items.
        unmatched: Number of items with an estimate in only one job.
    """

    epoch: int
    only: int | None = None
    integers: tuple[str, ...] = ()
    estimates: bool = False
    deviations: float | None = None
    item: int | None = None
    unmatched: int = 0

    @property
    def differs(self) -> bool:
        return self.only is not None or bool(self.integers) or self.estimates


def check_comparable(one: DeployedJob, other: DeployedJob) -> None:
    problem = f"jobs {one.name} and {other.name} cannot be compared"
    if one.protocol != other.protocol:
        raise IncomparableError(
            f"{problem}: their protocols are {one.protocol} and {other.protocol}; choose two "
            "jobs with the same protocol"
        )
    # Jobs of one fingerprint count the same, also if one of them has named more values.
    if one.fingerprint != other.fingerprint and one.domain.identity != other.domain.identity:
        raise IncomparableError(
            f"{problem}: they count different values; choose two jobs with the same domain"
        )


def differences(one: Iterable[EpochResult], other: Iterable[EpochResult]) -> Iterator[Difference]:
    """Compare two jobs epoch by epoch, as streams; the epochs of each job must increase."""
    left, right = iter(one), iter(other)
    first, second = next(left, None), next(right, None)
    while first is not None or second is not None:
        if second is None or (first is not None and first.epoch < second.epoch):
            assert first is not None
            yield Difference(first.epoch, only=0)
            first = next(left, None)
        elif first is None or second.epoch < first.epoch:
            yield Difference(second.epoch, only=1)
            second = next(right, None)
        else:
            yield compare(first, second)
            first, second = next(left, None), next(right, None)


def compare(one: EpochResult, other: EpochResult) -> Difference:
    """Return the difference between two results of the same epoch.

    >>> from dpstream.aggregators.estimate import Estimate
    >>> from dpstream.topics.manifests import WindowStatus
    >>> def result(value: float) -> EpochResult:
    ...     estimate = Estimate(value, 20.0, value - 39.2, value + 39.2, 100, 100)
    ...     return EpochResult(3, WindowStatus.RELEASED, 100, 100, b"counts", estimate)
    >>> compare(result(50.0), result(75.0)).deviations
    1.25
    """
    integers = ("window_status", "contributors", "population", "counts")
    deviations, item, unmatched = _largest(one.estimate, other.estimate)
    return Difference(
        epoch=one.epoch,
        integers=tuple(name for name in integers if getattr(one, name) != getattr(other, name)),
        estimates=_json(one.estimate) != _json(other.estimate),
        deviations=deviations,
        item=item,
        unmatched=unmatched,
    )


def _largest(
    one: Published | None, other: Published | None
) -> tuple[float | None, int | None, int]:
    """Return the fields `deviations`, `item` and `unmatched` of a `Difference`."""
    (items, values), (others, their_values) = _by_item(one), _by_item(other)
    both, here, there = np.intersect1d(items, others, assume_unique=True, return_indices=True)
    unmatched = len(items) + len(others) - 2 * len(both)
    deviations = [
        each.standard_error or 0.0 for each in (one, other) if each is not None and len(both)
    ]
    if not deviations:
        return None, None, unmatched
    gaps = np.abs(values[here] - their_values[there])
    at = int(gaps.argmax())
    gap, deviation = float(gaps[at]), min(deviations)
    if gap == 0:
        return 0.0, None, unmatched
    single = one is not None and one.single is not None
    return gap / deviation if deviation else None, None if single else int(both[at]), unmatched


def _by_item(published: Published | None) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if published is None:
        return np.zeros(0, np.int64), np.zeros(0)
    return published.numbers, published.intervals[0]


def _json(published: Published | None) -> object:
    return None if published is None else published.to_json()


_BLUE, _VERMILION = "#0072B2", "#D55E00"


def write_differences(names: Sequence[str], pairs: Sequence[Difference], path: Path) -> None:
    save_figure(draw_differences(names, pairs), path)


def draw_differences(names: Sequence[str], pairs: Sequence[Difference]) -> Figure:
    figure = new_figure(10, 4.5)
    axes = figure.add_subplot()
    deviations = [np.nan if each.deviations is None else each.deviations for each in pairs]
    axes.plot(
        [each.epoch for each in pairs],
        deviations,
        color=_BLUE,
        linewidth=1.6,
        marker=".",
        label="largest difference between estimates",
    )
    marked = [each.epoch for each in pairs if each.integers or each.only is not None]
    if marked:
        axes.plot(
            marked,
            np.zeros(len(marked)),
            "|",
            color=_VERMILION,
            transform=axes.get_xaxis_transform(),
            label="other integers, or only in one job",
        )
    axes.set_title(f"{' and '.join(names)}: comparison of estimates", loc="left", fontsize=11)
    axes.set_xlabel("epoch")
    axes.set_ylabel("standard deviations")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    tidy(axes)
    axes.legend(loc="best", frameon=False)
    return figure
