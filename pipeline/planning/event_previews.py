"""Content of an event log before anything is reported: events, answers and changes per user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.measured_events import Events, Integers, changes_of
from dpstream.pipeline.jobs.job_files import Job
from dpstream.randomizers.equal_buckets import number_text
from dpstream.randomizers.measures import MEAN_UNIT, Measure

BUDGETS: Final = (1, 2, 4, 8, 16, 32)
"""Numbers of changes for which a preview shows the share of users within."""
ENOUGH: Final = 0.9
"""Share of users within `max_changes` from which a preview recommends it."""
MOST_FLIPS: Final = 1 / 6
"""Changes per epoch above which a protocol without a change budget has smaller errors."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasurePreview:
    """Answers of a measure, over the epochs of an event log.

    Attributes:
        columns: Names of the columns of `answers`.
        answers: Users by answer, int64; or, float64, the mean of the number, and the users whose
            number is clamped to the highest; shape (epochs, columns).
        within: Share of users with at most each of `BUDGETS` changes. Of a mean, the
            changes are those of the bit that a device compares with its threshold; or, if `summed`,
            the length of the number's path in ranges, from the lowest number on.
        flips: Mean number of changes per user.
        summed: True if devices send numbers for the shuffler to sum.
    """

    name: str
    measure: Measure
    columns: tuple[str, ...]
    answers: NDArray[Any]
    within: tuple[float, ...]
    flips: float
    summed: bool = False

    def advice(self, max_changes: int | None) -> str:
        epochs = len(self.answers)
        if self.summed and self.within[-1] < ENOUGH:
            return (
                f"{number_text(round(self.flips, 1))} changes per user in {epochs} epochs: "
                f"max_changes: {epochs}, one for each epoch, follows all users without delay"
            )
        if self.measure.answer == "mean" and not self.summed and self.flips > epochs * MOST_FLIPS:
            often = (
                f"{number_text(round(self.flips, 1))} changes per user in {epochs} epochs, more "
                "than one in six"
            )
            if max_changes is None:
                return f"{often}; the job's protocol has no limit of changes"
            return (
                f"{often}: intervals of a mean will miss it. Set 'protocol: sampled_panels', which "
                "has no limit of changes"
            )
        # One is never enough: a spell of activity is two changes.
        shares = dict(zip(BUDGETS, self.within, strict=True))
        enough = next((budget for budget in BUDGETS[1:] if shares[budget] >= ENOUGH), None)
        if enough is None:
            return f"fewer than {ENOUGH:.0%} of the users have at most {BUDGETS[-1]} changes"
        covers = f"max_changes: {enough} covers {shares[enough]:.0%} of the users"
        if max_changes is None or enough == max_changes:
            return covers
        if max_changes in shares:
            return f"{covers}; the job's {max_changes} covers {shares[max_changes]:.0%}"
        return f"{covers}; the job has {max_changes}"

    def to_json(self) -> dict[str, Any]:
        return {
            "measure": self.name,
            "answers": [dict(zip(self.columns, row, strict=True)) for row in self.answers.tolist()],
            "users_within_changes": dict(zip(map(str, BUDGETS), self.within, strict=True)),
            "changes_per_user": self.flips,
        }


def preview_measures(
    job: Job, events: Events, last_epoch: int, generator: np.random.Generator
) -> list[MeasurePreview]:
    """Return a preview of each measure; `generator` draws the thresholds of means."""
    found = []
    for name, measure in (job.measures or {}).items():
        columns = _columns(measure)
        answers = np.array(
            [_counted(measure, each, len(columns)) for each in events.answers(measure, last_epoch)]
        )
        values: Iterator[NDArray[Any]] = events.answers(measure, last_epoch)
        summed = measure.answer == "mean" and job.trust == "shuffle"
        if summed:
            changes = path_lengths(values)
        else:
            if measure.answer == "mean":
                values = bits_of(values, generator.integers(0, MEAN_UNIT, events.count))
            _, users, _ = changes_of(values, np.zeros(events.count, np.int64))
            changes = np.bincount(users, minlength=events.count)
        within = tuple(float((changes <= budget).mean()) for budget in BUDGETS)
        mean = float(changes.mean())
        found.append(MeasurePreview(name, measure, columns, answers, within, mean, summed))
    return found


def path_lengths(answers: Iterator[Integers]) -> NDArray[Any]:
    """Return the sum of each user's changes of a mean answer, in ranges; all begin at 0."""
    before: Integers | int = 0
    moved: Any = 0
    for answer in answers:
        moved, before = moved + np.abs(answer - before), answer
    return np.asarray(moved / MEAN_UNIT)


def bits_of(answers: Iterator[Integers], thresholds: Integers) -> Iterator[Integers]:
    """Yield 1 for users whose mean answer is above their threshold, which is below 2^32."""
    for answer in answers:
        yield (answer > thresholds).astype(np.int64)


def events_by_epoch(events: Events, last_epoch: int) -> list[int]:
    counts = np.bincount(np.clip(events.epochs, 0, last_epoch), minlength=last_epoch + 1)
    return [int(count) for count in counts[1:]]


def _columns(measure: Measure) -> tuple[str, ...]:
    match measure.answer:
        case "boolean":
            return ("yes",)
        case "mean":
            assert measure.mean is not None
            return "mean", f"{number_text(measure.mean.high)} and more"
        case "numbers":
            return tuple(f"bucket {number}" for number in range(1, len(measure.thresholds()) + 2))
    return ("none", *measure.labels) if measure.can_be_none else measure.labels


def _counted(measure: Measure, answers: Integers, columns: int) -> NDArray[Any]:
    if measure.mean is not None:
        width = measure.mean.high - measure.mean.low
        mean = measure.mean.low + width * float(answers.mean()) / MEAN_UNIT
        # Many clamped numbers mean that `high` is too low.
        return np.array([mean, float(np.count_nonzero(answers == MEAN_UNIT))])
    # Without 'none', only the answers from 1 are shown.
    first = 0 if measure.answer == "labels" and measure.can_be_none else 1
    return np.bincount(answers, minlength=first + columns)[first:]
