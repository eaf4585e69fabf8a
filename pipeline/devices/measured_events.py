"""Answers of measures for many users at once: those of `EventHistory` for each user.

The events of a user in an epoch form a *cell*. Measures reduce each cell to one amount, and add
amounts to a window when it reaches their epoch, and take them away when it leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import counted
from dpstream.pipeline.devices.tables import starts
from dpstream.pipeline.values.event_rows import EventDomain
from dpstream.randomizers.equal_buckets import decimal, number_text
from dpstream.randomizers.measures import MAX_NUMBER, MAX_STEPS, MEAN_UNIT, Measure

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.job_files import Job

Integers: TypeAlias = NDArray[np.int64]

_NONE: Final = np.iinfo(np.int64).min
"""Value of a window without a number, and epoch of an event that never happened."""
_NEVER: Final = np.iinfo(np.int64).max
_SAFE: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Amounts in order of epoch and user, at most one for each pair."""

    epochs: Integers
    users: Integers
    amounts: NDArray[Any]

    def at(self, epoch: int) -> tuple[Integers, NDArray[Any]]:
        first, stop = np.searchsorted(self.epochs, [epoch, epoch + 1])
        return self.users[first:stop], self.amounts[first:stop]

    def through(self, first: int, last: int) -> Iterator[tuple[int, Integers, NDArray[Any]]]:
        begin, end = np.searchsorted(self.epochs, [first, last + 1])
        for epoch in np.unique(self.epochs[begin:end]).tolist():
            yield epoch, *self.at(epoch)

    def later(self, epochs: int) -> Cells:
        return Cells(self.epochs + epochs, self.users, self.amounts)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events in order of epoch, user, time and row; all arrays have shape (events,).

    Attributes:
        count: Number of users.
        days: Calendar day of each event, counted from 1970.
        fields: Fields of each event as in `EventDomain`, shape (events, fields).
    """

    domain: EventDomain
    count: int
    epochs: Integers
    users: Integers
    moments: Integers
    days: Integers
    fields: Integers

    @classmethod
    def of(
        cls,
        domain: EventDomain,
        count: int,
        *,
        epochs: NDArray[np.integer],
        users: NDArray[np.integer],
        moments: Integers,
        days: Integers,
        fields: Integers,
    ) -> Events:
        order = np.argsort(moments, kind="stable")
        for column in (users, epochs):
            order = order[np.argsort(column[order], kind="stable")]
        sorted_columns = (column[order] for column in (epochs, users, moments, days, fields))
        return cls(domain, count, *(column.astype(np.int64) for column in sorted_columns))

    def answers(self, measure: Measure, last_epoch: int) -> Iterator[Integers]:
        """Yield the answer of every user at epochs 1, 2, ...: int64, shape (users,)."""
        chosen, amounts = self._counting(measure)
        epochs, users = self.epochs[chosen], self.users[chosen]
        within, count = measure.within, self.count
        match measure.type:
            case "steps":
                found = _steps(
                    *(measure, count, epochs, users, self.moments[chosen], amounts), last_epoch
                )
            case "lifecycle":
                found = _lifecycle(
                    _cells(epochs, users, amounts, np.minimum), within, count, last_epoch
                )
            case "most":
                found = _most_frequent(
                    *(len(measure.labels), count, epochs, users, amounts), within, last_epoch
                )
            case "max":
                cells = _cells(epochs, users, amounts, np.maximum)
                found = _largest(cells, within, count, last_epoch)
            case "last":
                cells = _last_cells(epochs, users, amounts)
                found = (
                    np.where(when > epoch - within, value, 0 if measure.label else _NONE)
                    for epoch, (value, when) in enumerate(latest(cells, count, last_epoch), 1)
                )
            case "days":
                found = _totals(*_days(epochs, users, self.days[chosen], within), count, last_epoch)
            case _:
                cells = _cells(epochs, users, amounts, np.add)
                found = _totals(cells, cells.later(within), count, last_epoch)
        for values in found:
            yield answers_of(measure, values)

    def latest_labels(self, column: str, last_epoch: int) -> Iterator[Integers]:
        """Yield each user's latest label in a column at epochs 1, 2, ...; 0 without a label."""
        labels = self.fields[:, self.domain.place_of(column)]
        there = np.flatnonzero(labels)
        cells = _last_cells(self.epochs[there], self.users[there], labels[there])
        for value, _ in latest(cells, self.count, last_epoch):
            yield value

    def firsts(self, events: tuple[str, ...]) -> tuple[Integers, Integers]:
        """Return epoch and moment of each user's first event; the largest integer without one."""
        chosen = np.flatnonzero(self._named(events))
        epochs, moments = np.full((2, self.count), _NEVER, np.int64)
        np.minimum.at(epochs, self.users[chosen], self.epochs[chosen])
        np.minimum.at(moments, self.users[chosen], self.moments[chosen])
        return epochs, moments

    def _named(self, events: tuple[str, ...]) -> NDArray[np.bool_]:
        if not events:
            return np.ones(len(self.epochs), np.bool_)
        return np.isin(self.fields[:, 0], [self.domain.names.index(name) for name in events])

    def _counting(self, measure: Measure) -> tuple[NDArray[np.intp], Integers]:
        counted = self._named(measure.steps or measure.event)
        if measure.number is not None:
            bits = self.fields[:, self.domain.place_of(measure.number, number=True)]
            numbers = np.ascontiguousarray(bits).view(np.float64)
            chosen = np.flatnonzero(counted & ~np.isnan(numbers))
            with np.errstate(over="ignore"):
                product = np.clip(numbers[chosen] * measure.scale, -MAX_NUMBER, MAX_NUMBER)
            return chosen, np.rint(product).astype(np.int64)
        if measure.label is not None:
            labels = self.fields[:, self.domain.place_of(measure.label)]
            chosen = np.flatnonzero(counted & (labels > 0))
            known = ("", *self.domain.declared[measure.label])
            numbers_of = {name: number for number, name in enumerate(measure.labels, 1)}
            others = len(measure.labels)
            table = np.array([*(numbers_of.get(name, others) for name in known), others])
            return chosen, table[labels[chosen]]
        chosen = np.flatnonzero(counted)
        if measure.steps:
            place = {self.domain.names.index(name): n for n, name in enumerate(measure.steps, 1)}
            steps = np.array([place.get(n, 0) for n in range(len(self.domain.names) + 1)])
            return chosen, steps[self.fields[chosen, 0]]
        return chosen, np.ones(len(chosen), np.int64)


def changes_of(
    values: Iterable[NDArray[Any]], before: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[Any]]:
    """Return the epochs, users and new values of all changes, by epoch and then by user.

    `values` are those of all users at epochs 1, 2, ..., and `before` those before epoch 1, both of
    shape (users,) or (users, questions). New values have the dtype of `before`.
    """
    now = before.copy()
    found = []
    for epoch, new in enumerate(values, 1):
        users = np.flatnonzero((new != now).reshape(len(now), -1).any(axis=1))
        now[users] = new[users]
        found.append((np.full(len(users), epoch, np.int32), users.astype(np.int32), now[users]))
    epochs, indices, changed = zip(*found, strict=True)
    return np.concatenate(epochs), np.concatenate(indices), np.concatenate(changed)


def answers_of(measure: Measure, values: NDArray[Any]) -> Integers:
    """Apply `Measure.answer_of` to values of windows; `_NONE` stands for None."""
    if measure.type == "active":
        return np.asarray(np.minimum(values, 1), np.int64)
    if measure.type == "sum":
        values = np.clip(values, -MAX_NUMBER, MAX_NUMBER).astype(np.int64)
    if measure.mean is not None:
        return _means(measure, values)
    if measure.at_least is None and measure.buckets is None:
        return values
    found = np.searchsorted(np.array(measure.thresholds(), np.int64), values, side="right")
    if measure.answer != "boolean":
        found = np.where(values == _NONE, 0, found + 1)
    return found.astype(np.int64)


def _means(measure: Measure, values: Integers) -> Integers:
    assert measure.mean is not None
    low, high = decimal(measure.mean.low) * measure.unit, decimal(measure.mean.high) * measure.unit
    parts = math.lcm(low.denominator, high.denominator)
    first, width = int(low * parts), int((high - low) * parts)
    least, most = math.ceil(low), math.floor(high)
    # The exact products can need more than 64 bits.
    is_small = width < 1 << 31 and max(abs(first), abs(first + width)) < _SAFE
    within = np.clip(values, least, most).astype(np.int64 if is_small else object)
    shares = ((within * parts - first) * MEAN_UNIT // width).astype(np.int64)
    shares[values > most] = MEAN_UNIT
    shares[values < least] = 0
    return np.asarray(shares, np.int64)


def latest(cells: Cells, count: int, last_epoch: int) -> Iterator[tuple[NDArray[Any], Integers]]:
    """Yield, at epochs 1, 2, ..., each user's latest amount (0 without any) and its epoch."""
    amounts = np.zeros(count, cells.amounts.dtype)
    epochs = np.full(count, _NONE, np.int64)
    for epoch, users, now in cells.through(_NONE, 0):
        amounts[users], epochs[users] = now, epoch
    for epoch in range(1, last_epoch + 1):
        users, now = cells.at(epoch)
        amounts[users], epochs[users] = now, epoch
        yield amounts, epochs


def _cells(epochs: Integers, users: Integers, amounts: Integers, reduce: np.ufunc) -> Cells:
    """Reduce the amounts of each epoch and user, in the order of `Events`."""
    first = np.flatnonzero(starts(epochs) | starts(users))
    if reduce is np.add and len(amounts) and int(np.abs(amounts).max()) * len(amounts) >= _SAFE:
        # Sums are exact: integers of Python have any length.
        amounts = amounts.astype(object)
    reduced = reduce.reduceat(amounts, first) if len(first) else amounts
    return Cells(epochs[first], users[first], reduced)


def _last_cells(epochs: Integers, users: Integers, amounts: Integers) -> Cells:
    is_last = np.roll(starts(epochs) | starts(users), -1)
    return Cells(epochs[is_last], users[is_last], amounts[is_last])


def _totals(entering: Cells, leaving: Cells, count: int, last_epoch: int) -> Iterator[NDArray[Any]]:
    """Yield the sum of the entered amounts that have not left, shape (count,), at each epoch."""
    totals = np.zeros(count, entering.amounts.dtype)
    for cells, sign in ((entering, 1), (leaving, -1)):
        stop = np.searchsorted(cells.epochs, 1)
        np.add.at(totals, cells.users[:stop], sign * cells.amounts[:stop])
    for epoch in range(1, last_epoch + 1):
        users, amounts = entering.at(epoch)
        totals[users] += amounts
        users, amounts = leaving.at(epoch)
        totals[users] -= amounts
        yield totals


def _days(epochs: Integers, users: Integers, days: Integers, within: int) -> tuple[Cells, Cells]:
    """Return the numbers of days that enter and leave a user's window, at each epoch."""
    order = np.lexsort((epochs, days, users))
    epochs, users, days = epochs[order], users[order], days[order]
    is_new = starts(users) | starts(days)
    # A day stays in the window while its events are at most a window apart.
    begins = is_new | (np.diff(epochs, prepend=epochs[:1]) > within)
    ends = np.roll(begins, -1)
    ones = np.ones(len(epochs), np.int64)
    found = []
    for when, chosen in ((epochs, begins), (epochs + within, ends)):
        sort = np.lexsort((users[chosen], when[chosen]))
        found.append(_cells(when[chosen][sort], users[chosen][sort], ones[chosen], np.add))
    return found[0], found[1]


def _largest(cells: Cells, within: int, count: int, last_epoch: int) -> Iterator[Integers]:
    for epoch in range(1, last_epoch + 1):
        largest = np.full(count, _NONE, np.int64)
        for _, users, amounts in cells.through(epoch - within + 1, epoch):
            largest[users] = np.maximum(largest[users], amounts)
        yield largest


def _most_frequent(
    labels: int,
    count: int,
    epochs: Integers,
    users: Integers,
    amounts: Integers,
    within: int,
    last_epoch: int,
) -> Iterator[Integers]:
    places = users * labels + amounts - 1
    order = np.lexsort((places, epochs))
    ones = np.ones(len(order), np.int64)
    cells = _cells(epochs[order], places[order], ones, np.add)
    for totals in _totals(cells, cells.later(within), count * labels, last_epoch):
        by_label = totals.reshape(count, labels)
        # Of equal counts, `argmax` selects the first: the label declared first.
        yield np.where(by_label.any(axis=1), by_label.argmax(axis=1) + 1, 0)


def _lifecycle(cells: Cells, within: int, count: int, last_epoch: int) -> Iterator[Integers]:
    first = np.full(count, _NEVER, np.int64)
    newest, back = np.full((2, count), -(1 << 40), np.int64)

    def note(epoch: int, users: Integers) -> None:
        returned = users[(first[users] != _NEVER) & (epoch - newest[users] > within)]
        back[returned] = epoch
        newest[users] = epoch
        first[users] = np.minimum(first[users], epoch)

    for epoch, users, _ in cells.through(_NONE, 0):
        note(epoch, users)
    for epoch in range(1, last_epoch + 1):
        note(epoch, cells.at(epoch)[0])
        conditions = [
            first == _NEVER,
            epoch - newest >= within,
            epoch - first < within,
            epoch - back < within,
        ]
        yield np.select(conditions, [0, 4, 1, 3], 2)


def _steps(
    measure: Measure,
    count: int,
    epochs: Integers,
    users: Integers,
    moments: Integers,
    steps: Integers,
    last_epoch: int,
) -> Iterator[Integers]:
    order = np.lexsort((steps, moments, epochs, users))
    epochs, users, moments, steps = (column[order] for column in (epochs, users, moments, steps))
    distinct = starts(users) | starts(epochs) | starts(moments) | starts(steps)
    epochs, users, steps = epochs[distinct], users[distinct], steps[distinct]
    begins = np.flatnonzero(starts(users) | starts(epochs))
    rank = np.arange(len(users)) - np.repeat(begins, np.diff(begins, append=len(users)))
    kept = rank < MAX_STEPS
    epochs, users, steps = epochs[kept], users[kept], steps[kept]

    # In an epoch, only its first first step counts: it reaches every later step earliest.
    ones = np.flatnonzero(steps == 1)
    ones = ones[starts(users[ones]) | starts(epochs[ones])]
    reached = np.full((len(measure.steps), len(ones)), _NEVER, np.int64)
    here = ones
    for step in range(1, len(measure.steps) + 1):
        there = np.flatnonzero(here < len(users))
        reached[step - 1, there] = epochs[here[there]]
        following = np.append(np.flatnonzero(steps == step + 1), len(users))
        here = following[np.searchsorted(following, here).clip(max=len(following) - 1)]
        others = users[here.clip(max=len(users) - 1)] != users[ones] if len(users) else here < 0
        here = np.where(others, len(users), here)
    sort = np.lexsort((users[ones], epochs[ones]))
    cells = Cells(epochs[ones][sort], users[ones][sort], sort)
    for epoch in range(1, last_epoch + 1):
        begun = np.full(count, -1, np.int64)
        for _, who, what in reversed(list(cells.through(epoch - measure.within + 1, epoch))):
            begun[who] = what
        answers = np.zeros(count, np.int64)
        active = np.flatnonzero(begun >= 0)
        answers[active] = (reached[:, begun[active]] <= epoch).sum(axis=0)
        yield answers


class ClampedNumbers:
    """Numbers of users at the ends of the range of a mean, for the operator of a producer alone.

    Numbers at the low end are counted only if it differs from 0, which is the sum of no events.
    """

    def __init__(self, job: Job) -> None:
        self._means = [
            (place, question.name, question.measure.mean)
            for place, question in enumerate(job.questions)
            if question.measure.mean is not None
        ]
        self._ends = np.zeros((len(self._means), 2), np.int64)
        self._total = 0

    def counting(self, values: Iterable[Integers]) -> Iterator[Integers]:
        for now in values:
            self.add(now)
            yield now

    def add(self, values: Integers) -> None:
        """Count the values of an epoch, shape (users, questions); other shapes have no means."""
        self._total += len(values) if self._means else 0
        for row, (place, *_) in enumerate(self._means):
            answers = values[:, place]
            self._ends[row] += [np.count_nonzero(answers == end) for end in (0, MEAN_UNIT)]

    def warnings(self) -> Iterator[str]:
        for (_, name, ends), (low, high) in zip(self._means, self._ends.tolist(), strict=True):
            for count, end, beyond in ((low, ends.low, "less"), (high, ends.high, "more")):
                if count and end:
                    text = number_text(end)
                    yield (
                        f"measure {name}: {counted(count, 'number')} of {self._total:,} "
                        f"({100 * count / self._total:.2g} %) {'is' if count == 1 else 'are'} "
                        f"{text} or {beyond} and count as {text}. This stays on this machine"
                    )
