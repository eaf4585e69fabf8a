"""Histories of devices: their own events, reduced to what their measures need.

A history keeps small sums per epoch, and only of the epochs that a window can still contain. Its
answers are pure functions of the recorded events, in whatever order they arrive: an event for an
epoch that has ended counts in all later windows that contain its epoch. Histories are as secret as
the values of a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dpstream.randomizers.measures import LIFECYCLE, MAX_NUMBER, MAX_STEPS, Measure, scaled

DAY: Final = 86_400_000_000

_EMPTY: Final[Mapping[str, Any]] = {}
_NEW, _RETAINED, _RESURRECTED, _DORMANT = range(1, 1 + len(LIFECYCLE))


class EventHistory:
    """Events of one user, for measures, latest labels and first events.

    Args:
        measures: Measures to answer.
        latest: Columns of labels, with their declared labels, of which the latest is kept.
        firsts: Names of events, () for all, whose first event is kept.
        starts: First epoch of labels that count as undeclared in earlier epochs, by column.

    >>> weekly = Measure("active")
    >>> history = EventHistory([weekly])
    >>> history.record(3, moment=0)
    >>> history.close(3)
    >>> history.answer(weekly, 3)
    1
    """

    def __init__(
        self,
        measures: Iterable[Measure],
        latest: Mapping[str, Sequence[str]] = _EMPTY,
        firsts: Iterable[tuple[str, ...]] = (),
        starts: Mapping[str, Mapping[str, int]] = _EMPTY,
    ) -> None:
        self._tracks = {measure: _Track(measure) for measure in measures}
        self._latest = {
            column: _Latest(tuple(values), starts.get(column, _EMPTY))
            for column, values in latest.items()
        }
        self._firsts: dict[tuple[str, ...], tuple[int, int] | None] = dict.fromkeys(firsts)
        self._closed: int | None = None

    @property
    def closed(self) -> int | None:
        return self._closed

    def record(
        self,
        epoch: int,
        moment: int,
        event: str = "",
        numbers: Mapping[str, float] = _EMPTY,
        labels: Mapping[str, str] = _EMPTY,
        day: int | None = None,
    ) -> None:
        """Record an event of any epoch, open, closed, or before epoch 1.

        Args:
            epoch: Epoch of the event; events before epoch 1 are the history of epoch 1.
            moment: Time in microseconds since 1970, by which events are ordered.
            event: Name of the event, if measures distinguish events.
            numbers: Finite numbers by column; raises `ValueError` for other numbers.
            labels: Labels by column; an empty label is no label.
            day: Number of the calendar day; by default, the day in UTC, counted from 1970.
        """
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError(f"got the numbers {dict(numbers)}; expected finite numbers")
        day = moment // DAY if day is None else day
        for track in self._tracks.values():
            track.record(self._closed, epoch, moment, day, event, numbers, labels)
        for column, latest in self._latest.items():
            latest.record(self._closed, epoch, moment, labels.get(column, ""))
        for events, first in self._firsts.items():
            if (not events or event in events) and (first is None or (epoch, moment) < first):
                self._firsts[events] = (epoch, moment)

    def record_labels(self, epoch: int, moment: int, labels: Mapping[str, str]) -> None:
        """Record labels without an event: only `latest` depends on them; see `record`."""
        for column, latest in self._latest.items():
            latest.record(self._closed, epoch, moment, labels.get(column, ""))

    def close(self, epoch: int) -> None:
        """End all epochs up to an epoch, and delete what no later window contains."""
        if self._closed is not None and epoch < self._closed:
            raise ValueError(f"epoch {epoch} is already closed: the last is {self._closed}")
        self._closed = epoch
        for track in self._tracks.values():
            track.close(epoch)
        for latest in self._latest.values():
            latest.close(epoch)

    def answer(self, measure: Measure, epoch: int) -> int:
        self._check(epoch)
        return self._tracks[measure].answer(epoch)

    def latest(self, column: str, epoch: int) -> int:
        """Return the number of the latest label until the last closed epoch, from 1; 0 for none.

        Undeclared labels have the number after the declared ones.
        """
        self._check(epoch)
        return self._latest[column].value

    def first(self, events: tuple[str, ...], epoch: int) -> tuple[int, int] | None:
        self._check(epoch)
        first = self._firsts[events]
        return None if first is None or first[0] > epoch else first

    def _check(self, epoch: int) -> None:
        if epoch != self._closed:
            raise ValueError(
                f"epoch {epoch} has no answer: expected the last closed epoch, {self._closed}"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "closed": self._closed,
            "measures": [track.to_json() for track in self._tracks.values()],
            "latest": [latest.to_json() for latest in self._latest.values()],
            "firsts": [None if first is None else list(first) for first in self._firsts.values()],
        }

    def restore(self, document: Mapping[str, Any]) -> None:
        self._closed = document["closed"]
        for track, saved in zip(self._tracks.values(), document["measures"], strict=True):
            track.restore(saved)
        for latest, saved in zip(self._latest.values(), document["latest"], strict=True):
            latest.restore(saved)
        for events, first in zip(list(self._firsts), document["firsts"], strict=True):
            self._firsts[events] = None if first is None else (first[0], first[1])


@dataclass(slots=True)
class _Track:
    """Sums of one measure by epoch, in lists and integers that JSON can represent.

    Attributes:
        first: Epoch of the first event that counts.
        before: Latest epoch with an event, of those that no window contains any more.
    """

    measure: Measure
    cells: dict[int, Any] = field(default_factory=dict)
    first: int | None = None
    before: int | None = None

    def record(
        self,
        closed: int | None,
        epoch: int,
        moment: int,
        day: int,
        event: str,
        numbers: Mapping[str, float],
        labels: Mapping[str, str],
    ) -> None:
        measure = self.measure
        counted = measure.steps or measure.event
        if counted and event not in counted:
            return
        amount = 0
        if measure.number is not None:
            if measure.number not in numbers:
                return
            amount = scaled(numbers[measure.number], measure.scale)
        elif measure.label is not None:
            amount = label_number(labels.get(measure.label, ""), measure.values)
            if not amount:
                return
        elif measure.steps:
            amount = measure.steps.index(event) + 1
        self.first = epoch if self.first is None else min(self.first, epoch)
        if closed is not None and epoch <= closed - measure.within:
            self._leave(epoch)
        else:
            self.cells[epoch] = _added(measure, self.cells.get(epoch), moment, day, amount)

    def close(self, epoch: int) -> None:
        for left in [each for each in self.cells if each <= epoch - self.measure.within]:
            del self.cells[left]
            self._leave(left)

    def _leave(self, epoch: int) -> None:
        self.before = epoch if self.before is None else max(self.before, epoch)

    def answer(self, epoch: int) -> int:
        epochs = sorted(each for each in self.cells if each <= epoch)
        if self.measure.type == "lifecycle":
            return self._lifecycle(epoch, epochs)
        cells = [self.cells[each] for each in epochs]
        return self.measure.answer_of(_combined(self.measure, cells))

    def _lifecycle(self, epoch: int, epochs: list[int]) -> int:
        if self.first is None or self.first > epoch:
            return 0
        if not epochs:
            return _DORMANT
        if epoch - self.first < self.measure.within:
            return _NEW
        # Only the first epoch in the window can end a gap of more than a window.
        returned = self.before is not None and epochs[0] - self.before > self.measure.within
        return _RESURRECTED if returned else _RETAINED

    def to_json(self) -> dict[str, Any]:
        # Sums can exceed 2^53, which JavaScript's numbers do not represent.
        text = str if self.measure.type == "sum" else lambda cell: cell
        cells = [[epoch, text(self.cells[epoch])] for epoch in sorted(self.cells)]
        return {"cells": cells, "first": self.first, "before": self.before}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.cells = dict(saved["cells"])
        if self.measure.type == "sum":
            self.cells = {epoch: int(cell) for epoch, cell in self.cells.items()}
        self.first, self.before = saved["first"], saved["before"]


def _added(measure: Measure, cell: Any, moment: int, day: int, amount: int) -> Any:
    """Return an epoch's sum after one more event; `cell` is the sum before it, or None."""
    match measure.type:
        case "days":
            return sorted({*(cell or ()), day})
        case "sum":
            return (cell or 0) + amount
        case "max":
            return amount if cell is None else max(cell, amount)
        case "last":
            # Of events at the same time, the one recorded last counts.
            return [moment, amount] if cell is None or moment >= cell[0] else cell
        case "most":
            counts = [0] * len(measure.labels) if cell is None else list(cell)
            counts[amount - 1] += 1
            return counts
        case "steps":
            steps = {(moment, amount), *((time, step) for time, step in cell or ())}
            return [list(each) for each in sorted(steps)[:MAX_STEPS]]
    return (cell or 0) + 1


def _combined(measure: Measure, cells: Sequence[Any]) -> Any:
    """Return the value of a window, an integer or None, from the sums of its epochs in order."""
    match measure.type:
        case "active":
            return int(bool(cells))
        case "count":
            return sum(cells)
        case "days":
            return len(set().union(*cells))
        case "sum":
            return min(max(sum(cells), -MAX_NUMBER), MAX_NUMBER)
        case "max":
            return max(cells, default=None)
        case "last":
            return cells[-1][1] if cells else None
        case "most":
            counts = [sum(column) for column in zip(*cells, strict=True)]
            return counts.index(max(counts)) + 1 if counts else None
    reached = 0
    for _, step in (each for cell in cells for each in cell):
        reached += step == reached + 1
    return reached


@dataclass(slots=True)
class _Latest:
    labels: tuple[str, ...]
    starts: Mapping[str, int]
    closed: list[int] | None = None
    open: dict[int, list[int]] = field(default_factory=dict)

    @property
    def value(self) -> int:
        return 0 if self.closed is None else self.closed[1]

    def record(self, closed: int | None, epoch: int, moment: int, label: str) -> None:
        number = label_number(label, self.labels)
        if not number:
            return
        if epoch < self.starts.get(label, epoch):
            number = len(self.labels) + 1
        if closed is not None and epoch <= closed:
            self.closed = _later(self.closed, [moment, number])
        else:
            self.open[epoch] = _later(self.open.get(epoch), [moment, number])

    def close(self, epoch: int) -> None:
        for ended in sorted(each for each in self.open if each <= epoch):
            self.closed = _later(self.closed, self.open.pop(ended))

    def to_json(self) -> dict[str, Any]:
        return {"closed": self.closed, "open": [[e, self.open[e]] for e in sorted(self.open)]}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.closed, self.open = saved["closed"], dict(saved["open"])


def _later(one: list[int] | None, other: list[int]) -> list[int]:
    return other if one is None or other[0] >= one[0] else one


def label_number(label: str, values: Sequence[str]) -> int:
    """Return the number of a label among `values` from 1, the next number, or 0 if it is empty.

    >>> [label_number(label, ["web", "ios"]) for label in ("ios", "tv", "")]
    [2, 3, 0]
    """
    if not label:
        return 0
    return values.index(label) + 1 if label in values else len(values) + 1
