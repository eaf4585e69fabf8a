"""Find out what the columns of an input are, by their names and contents.

Everything here is computed from the values of users, without noise: it is for the operator of the
input, who has these values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import InputError, counted
from dpstream.pipeline.devices.columns import is_text
from dpstream.pipeline.devices.record_files import open_all_columns
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, UNIX_MILLISECONDS, InputFormat
from dpstream.pipeline.values.numeric_values import number_of
from dpstream.pipeline.values.time_texts import TimeReader
from dpstream.pipeline.values.times import shown

SAMPLE: Final = 20_000
"""Number of rows from which the meaning of columns is derived."""
MOST_LABELS: Final = 24
"""Maximum number of different values, in the sample, of a column that can be an attribute."""
_MOST_EVENTS: Final = 256
_MOST_CODES: Final = 1 << 16
FEWEST_NUMBERS: Final = 13
"""Minimum number of different texts of a column of numbers."""
_SHARE: Final = 0.9
_TIMES_TRIED: Final = 1_000

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "user": (
        *("user", "userid", "uid", "username", "distinctid", "anonymousid", "visitorid"),
        *("customerid", "customer", "clientid", "memberid", "member", "accountid", "account"),
        *("playerid", "player", "studentid", "student", "patientid", "patient", "subscriberid"),
        *("personid", "person", "installationid", "deviceid", "device", "client", "visitor"),
        *("who", "login", "email", "kunde", "nutzer", "id", "name"),
    ),
    "time": (
        *("time", "timestamp", "ts", "eventtime", "eventtimestamp", "occurredat", "datetime"),
        *("createdat", "created", "receivedat", "at", "when", "date", "day", "moment", "t"),
        *("zeit", "zeitpunkt", "datum"),
    ),
    "event": (
        *("event", "eventname", "eventtype", "action", "activity", "what", "verb", "operation"),
        *("type", "kind", "name"),
    ),
    "value": ("value", "state", "status"),
}
_NO_NUMBERS: Final = re.compile(r"(^|[_.\W])(id|uuid|code|zip|plz|phone|version|year)$|Id$", re.I)
_PATTERNS: Final = (
    *("%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S.%f UTC", "%Y-%m-%d %H:%M:%S %z", "%Y%m%d"),
    *("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M"),
    *("%d.%m.%Y", "%d/%m/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%d/%m/%Y", "%m/%d/%Y %H:%M:%S"),
    *("%m/%d/%Y %H:%M", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M %p", "%m/%d/%Y", "%d-%m-%Y"),
    *("%d-%m-%Y %H:%M:%S", "%d-%m-%Y %H:%M", "%d/%b/%Y:%H:%M:%S %z", "%d %b %Y %H:%M:%S"),
    *("%a, %d %b %Y %H:%M:%S %z", "%Y%m%d%H%M%S"),
)
# Times outside are numbers or mistakes: the years 1990 to 2100, in microseconds.
_EARLIEST, _LATEST = 631_152_000_000_000, 4_102_444_800_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LabelColumn:
    """A column with few different texts.

    Attributes:
        users: Number of users by their latest label, descending; empty texts are left out.
        several: Share of the users with several labels.
    """

    name: str
    users: Mapping[str, int]
    several: float


@dataclass(frozen=True, slots=True, eq=False)
class NumberColumn:
    """A column with numbers.

    Attributes:
        numbers: One for each usable row, float64; NaN for empty and other texts.
        events: Names of the events that have numbers; () if all have, or if there are no events.
    """

    name: str
    numbers: NDArray[np.float64]
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class InputProfile:
    """Meaning of an input's columns, and its usable rows.

    Attributes:
        input_format: The format to read the input with; names columns only if that is needed.
        places: Text on each used column: its use, name, and why it has this use.
        unused: Names of the other columns.
        bad: Number of rows without a user or time, or of another width.
        users: Number of different users.
        user_indices: User of each usable row, int32.
        moments: Time of each usable row in microseconds since 1970, or its epoch; int64.
        has_times: False if rows have epochs.
        zoneless: Number of times without a time zone.
        events: Number of rows by name of the event, descending; empty without such a column.
        event_codes: Position in `event_names` of each row's event, int32.
        value: Column of the values of a change log, if the input is one.
        texts: Number of rows by text in this column, descending.
        value_codes: Code of the value of each row, int32.
    """

    name: str
    input_format: InputFormat
    places: tuple[tuple[str, str, str], ...]
    unused: tuple[str, ...]
    warnings: tuple[str, ...]
    bad: int
    users: int
    user_indices: NDArray[np.int32]
    moments: NDArray[np.int64]
    has_times: bool
    zoneless: int
    events: Mapping[str, int]
    labels: tuple[LabelColumn, ...]
    numbers: tuple[NumberColumn, ...]
    event_codes: NDArray[np.int32]
    event_names: tuple[str, ...]
    value: str | None
    texts: Mapping[str, int]
    value_codes: NDArray[np.int32]

    def of_events(self, names: Collection[str]) -> NDArray[np.bool_]:
        wanted = [at for at, name in enumerate(self.event_names) if name in names]
        return np.isin(self.event_codes, wanted)


@dataclass(frozen=True, slots=True)
class _Roles:
    """Positions of columns by their use; -1 without such a column."""

    user: int
    time: int
    has_times: bool
    event: int
    value: int
    labels: tuple[int, ...]
    numbers: tuple[int, ...]
    input_format: InputFormat
    why: Mapping[int, str]


def profile_input(name: str, input_format: InputFormat = AS_IT_IS) -> InputProfile:
    """Read a whole input, and find out what its columns are.

    What `input_format` states is taken as given. Raises `InputError` if the file cannot be read, or
    has no users or no times.
    """
    with open_all_columns(name, input_format) as file:
        if len(set(file.names)) < len(file.names):
            twice = next(each for each, count in Counter(file.names).items() if count > 1)
            raise InputError(f"{name}: column {shown(twice)} occurs twice. Rename one of them")
        batches = file.batches
        first: list[tuple[list[list[str]], int]] = []
        while sum(len(rows) for rows, _ in first) < SAMPLE and (batch := next(batches, None)):
            first.append(batch)
        sample = [row for rows, _ in first for row in rows][:SAMPLE]
        if not sample:
            raise InputError(f"{name}: no usable rows below the header")
        if file.input_format.encoding is None and _other_encoding(sample):
            return profile_input(name, input_format.with_changes({"encoding": "cp1252"}))
        columns = _Sample(name, file.names, sample, file.input_format)
        return _read(columns.roles(), columns, chain(first, batches), file.warnings)


def _other_encoding(sample: Sequence[Sequence[str]]) -> bool:
    texts = [text for text in chain.from_iterable(sample) if not text.isascii()]
    return bool(texts) and not any(map(is_text, texts))


class _Sample:
    """The first rows of an input, by column."""

    def __init__(
        self, name: str, names: tuple[str, ...], rows: list[list[str]], input_format: InputFormat
    ) -> None:
        self.name, self.names, self.input_format = name, names, input_format
        self.columns = [[row[at].strip() for row in rows] for at in range(len(names))]
        self.distinct = [Counter(filter(None, column)) for column in self.columns]

    def roles(self) -> _Roles:
        stated = self.input_format.columns
        why: dict[int, str] = {}
        epoch = self._stated(stated.epoch, why)
        if epoch < 0 and stated.time is None:
            epoch = next(self._named("epoch", ("epoch",), self._is_epoch), -1)
            why |= {epoch: "by its name"} if epoch >= 0 else {}
        time, time_format = (epoch, None) if epoch >= 0 else self._time(why)
        user = self._stated(stated.user, why)
        if user < 0:
            user = self._user(time, why)
        taken = {user, time}
        value = self._stated(stated.value, why)
        if value < 0:
            names = _NAMES["value"] if epoch >= 0 else ("value",)
            named = self._named("value", names, lambda at: at not in taken)
            value = next(named, -1)
            why |= {value: "by its name"} if value >= 0 else {}
        taken |= {value}
        decimal = self._decimal(taken)
        numbers = tuple(
            at for at in range(len(self.names)) if at not in taken and self._is_number(at, decimal)
        )
        event = -1 if value >= 0 else self._event(taken | set(numbers), why)
        labels = tuple(
            at
            for at in range(len(self.names))
            if at not in {*taken, *numbers, event} and 2 <= len(self.distinct[at]) <= MOST_LABELS
        )
        changes: dict[str, Any] = {} if time_format is None else {"time_format": time_format}
        if decimal is not None and (numbers or value >= 0):
            changes["decimal"] = decimal
        found = {"user": user, "epoch" if epoch >= 0 else "time": time, "value": value}
        found |= {"event": event}
        called = {
            role: self.names[at]
            for role, at in found.items()
            if at >= 0 and self.names[at].casefold() != role
        }
        if called:
            changes["columns"] = called
        return _Roles(
            user,
            time,
            epoch < 0,
            event,
            value,
            labels,
            numbers,
            self.input_format.with_changes(changes),
            why,
        )

    def _stated(self, name: str | None, why: dict[int, str]) -> int:
        if name is None:
            return -1
        for at, each in enumerate(self.names):
            if each.casefold() == name.strip().casefold():
                why[at] = "as stated"
                return at
        raise InputError(
            f"{self.name}: no column {shown(name)}; expected one of: {', '.join(self.names)}"
        )

    def _named(self, role: str, names: Sequence[str], fits: Callable[[int], bool]) -> Iterator[int]:
        plain = [re.sub(r"[^a-z0-9]", "", each.casefold()) for each in self.names]
        inner = [
            re.sub(r"[^a-z0-9]", "", each.casefold().rpartition(".")[2]) for each in self.names
        ]
        for known in names:
            for at in range(len(self.names)):
                if known in (plain[at], inner[at]) and fits(at):
                    yield at

    def _is_epoch(self, at: int) -> bool:
        return all(re.fullmatch("[+-]?[0-9]{1,9}", text) for text in self.distinct[at])

    def _time(self, why: dict[int, str]) -> tuple[int, str | None]:
        stated = self._stated(self.input_format.columns.time, why)
        named = [] if stated >= 0 else [*self._named("time", _NAMES["time"], lambda at: True)]
        named += [
            at for at, each in enumerate(self.names) if re.search(r"time|date|_(at|on)$|Zeit", each)
        ]
        rest = range(len(self.names))
        for at in [stated] if stated >= 0 else dict.fromkeys([*named, *rest]):
            if (found := self._time_format(at)) is not None:
                text, pattern = found
                by = why.get(at) or ("by its name" if at in named else "by its content")
                why[at] = f"{by}; {text}"
                return at, pattern
        hint = ""
        for at in ([stated] if stated >= 0 else named)[:1]:
            example = next(iter(self.distinct[at]), "")
            hint = (
                f". Column {self.names[at]} has times such as {shown(example)}: state their "
                "format, such as --time-format '%d.%m.%Y %H:%M'"
            )
        raise InputError(
            f"{self.name}: no column of times was found; columns: {', '.join(self.names)}. To "
            f"name it, use --column time=NAME{hint}"
        )

    def _time_format(self, at: int) -> tuple[str, str | None] | None:
        """Return the kind of a column's times, and the format to state in a job file, if any."""
        texts = [text for text in self.columns[at] if text]
        texts = texts[:: max(1, len(texts) // _TIMES_TRIED)]
        few = texts[:: max(1, len(texts) // 20)]
        stated = self.input_format.time_format
        shares = {
            each: _plausible(each, texts) / len(texts)
            for each in ([stated] if stated else (None, UNIX_MILLISECONDS, *_PATTERNS))
            # A few texts exclude most formats.
            if 2 * _plausible(each, few) > len(few)
        }
        if max(shares.values(), default=0.0) < _SHARE:
            return None
        pattern = max(shares, key=shares.__getitem__)
        if pattern is None:
            numbers = sum(not math.isnan(number_of(text)) for text in texts)
            return ("unix seconds" if 2 * numbers > len(texts) else "ISO 8601"), None
        tied = [
            each for each, share in shares.items() if each != pattern and share == shares[pattern]
        ]
        also = f" (or {tied[0]}: state --time-format)" if tied else ""
        return (
            "unix milliseconds" if pattern == UNIX_MILLISECONDS else f"{pattern}{also}"
        ), pattern

    def _user(self, time: int, why: dict[int, str]) -> int:
        rows = len(self.columns[0])

        def filled(at: int) -> bool:
            return at != time and self.distinct[at].total() >= _SHARE * rows

        for at in self._named("user", _NAMES["user"], filled):
            # A different text in every row identifies rows, not users.
            if len(self.distinct[at]) < rows or rows < 3 or "user" in self.names[at].casefold():
                why[at] = "by its name"
                return at
        usual = [
            at
            for at in range(len(self.names))
            if filled(at) and 1 < len(self.distinct[at]) < rows and not self._is_fraction(at)
        ]
        if not usual:
            raise InputError(
                f"{self.name}: no column of users was found; columns: {', '.join(self.names)}. "
                "To name it, use --column user=NAME"
            )
        found = max(usual, key=lambda at: len(self.distinct[at]))
        why[found] = "the column with the most values that recur"
        return found

    def _event(self, taken: set[int], why: dict[int, str]) -> int:
        stated = self._stated(getattr(self.input_format.columns, "event", None), why)
        if stated >= 0:
            return stated
        fits = self._named(
            "event",
            _NAMES["event"],
            lambda at: at not in taken and 1 <= len(self.distinct[at]) <= _MOST_EVENTS,
        )
        found = next(fits, -1)
        if found >= 0:
            why[found] = "by its name"
        return found

    def _is_fraction(self, at: int) -> bool:
        return any("." in text and not math.isnan(number_of(text)) for text in self.distinct[at])

    def _is_number(self, at: int, decimal: str | None) -> bool:
        texts = self.distinct[at]
        if _NO_NUMBERS.search(self.names[at]) or len(texts) < FEWEST_NUMBERS:
            return False
        good = sum(math.isfinite(number_in(text, decimal)) for text in texts)
        # Integers that never recur are keys.
        rows = texts.total()
        is_key = len(texts) == rows and rows > 100 and not self._is_fraction(at) and decimal is None
        return good >= 0.95 * len(texts) and not is_key

    def _decimal(self, taken: set[int]) -> str | None:
        if self.input_format.decimal is not None:
            return self.input_format.decimal
        texts = [
            text
            for at, each in enumerate(self.distinct)
            if at not in taken - {-1}
            for text in islice(each, 1_000)
        ]
        commas = sum(bool(re.fullmatch(r"[+-]?[0-9]+,[0-9]+", text)) for text in texts)
        points = sum(bool(re.fullmatch(r"[+-]?[0-9]+\.[0-9]+", text)) for text in texts)
        return "," if commas > points else None


def _plausible(pattern: str | None, texts: Sequence[str]) -> int:
    times = TimeReader(pattern).parse(texts)
    within = (times.moments >= _EARLIEST) & (times.moments <= _LATEST)
    return int(np.count_nonzero(within)) - sum(bool(within[index]) for index in times.problems)


def number_in(text: str, decimal: str | None) -> float:
    return number_of(text.replace(".", "").replace(",", ".") if decimal == "," else text)


class _Codes:
    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self._batches: list[NDArray[np.int32]] = []

    def add(self, texts: Sequence[str]) -> None:
        known = self.texts
        codes = [known.setdefault(text, len(known)) for text in texts]
        self._batches.append(np.array(codes, np.int32))

    @property
    def codes(self) -> NDArray[np.int32]:
        return np.concatenate(self._batches)


def _read(
    roles: _Roles,
    sample: _Sample,
    batches: Iterator[tuple[list[list[str]], int]],
    warnings: tuple[str, ...],
) -> InputProfile:
    reader = RowReader(input_format=_of_times(roles.input_format))
    users, events, values = _Codes(), _Codes(), _Codes()
    labels = {at: _Codes() for at in roles.labels}
    numbers: dict[int, list[NDArray[np.float64]]] = {at: [] for at in roles.numbers}
    moments, bad, zoneless = [], 0, 0
    decimal = roles.input_format.decimal
    for rows, unusable in batches:
        bad += unusable
        placed, problems, without_zone = _placed(reader, [row[roles.time] for row in rows], roles)
        problems |= {at for at, row in enumerate(rows) if not row[roles.user].strip()}
        bad, zoneless = bad + len(problems), zoneless + without_zone
        good = [row for at, row in enumerate(rows) if at not in problems]
        kept = np.ones(len(rows), np.bool_)
        kept[list(problems)] = False
        moments.append(placed[kept])
        users.add([row[roles.user] for row in good])
        events.add([row[roles.event].strip() if roles.event >= 0 else "" for row in good])
        values.add([row[roles.value].strip() if roles.value >= 0 else "" for row in good])
        for at, codes in labels.items():
            # A column with more labels is no attribute, so its further labels count as one.
            codes.add([row[at].strip() if len(codes.texts) < _MOST_CODES else "" for row in good])
        for at, found in numbers.items():
            texts = (number_in(row[at], decimal) for row in good)
            found.append(np.fromiter(texts, np.float64, len(good)))
    if not len(users.texts):
        raise InputError(
            f"{sample.name}: no usable rows: {counted(bad, 'row')} without user or time"
        )
    indices, names = users.codes, sample.names
    by_event = _counts(events.codes, list(events.texts)) if roles.event >= 0 else {}
    label_columns = [
        _label_column(names[at], codes, indices, len(users.texts)) for at, codes in labels.items()
    ]
    number_columns = []
    for at, found in numbers.items():
        column = np.concatenate(found)
        filled = np.isfinite(column)
        having = _counts(events.codes[filled], list(events.texts)) if roles.event >= 0 else {}
        only = tuple(having) if 0 < len(having) < len(by_event) else ()
        number_columns.append(NumberColumn(names[at], np.where(filled, column, np.nan), only))
    used = {roles.user, roles.time, roles.event, roles.value, *roles.labels, *roles.numbers}
    places = {"user": roles.user, "time" if roles.has_times else "epoch": roles.time}
    places |= {"event": roles.event, "value": roles.value}
    return InputProfile(
        name=sample.name,
        input_format=roles.input_format,
        places=tuple(
            (role, names[at], roles.why.get(at, "")) for role, at in places.items() if at >= 0
        ),
        unused=tuple(each for at, each in enumerate(names) if at not in used),
        warnings=warnings,
        bad=bad,
        users=len(users.texts),
        user_indices=indices,
        moments=np.concatenate(moments),
        has_times=roles.has_times,
        zoneless=zoneless,
        events=by_event,
        labels=tuple(each for each in label_columns if 2 <= len(each.users) <= 4 * MOST_LABELS),
        numbers=tuple(number_columns),
        value=None if roles.value < 0 else names[roles.value],
        texts=_counts(values.codes, list(values.texts)),
        value_codes=values.codes,
        event_codes=events.codes,
        event_names=tuple(events.texts),
    )


def _of_times(input_format: InputFormat) -> InputFormat:
    stated = {key: getattr(input_format, key) for key in ("time_format", "timezone")}
    return AS_IT_IS.with_changes({key: each for key, each in stated.items() if each is not None})


def _placed(
    reader: RowReader, texts: Sequence[str], roles: _Roles
) -> tuple[NDArray[np.int64], set[int], int]:
    if roles.has_times:
        times = reader.times(texts)
        return times.moments, set(times.problems), times.zoneless
    numbers = [
        int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", text) else None for text in texts
    ]
    problems = {at for at, number in enumerate(numbers) if number is None}
    return np.array([number or 0 for number in numbers], np.int64), problems, 0


def _counts(codes: NDArray[np.int32], texts: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(codes, minlength=len(texts)) if len(texts) else np.zeros(0, np.int64)
    order = np.argsort(-counts, kind="stable").tolist()
    return {texts[at]: int(counts[at]) for at in order if texts[at] and counts[at]}


def _label_column(
    name: str, codes: _Codes, users: NDArray[np.int32], population: int
) -> LabelColumn:
    texts = list(codes.texts)
    filled = codes.codes != codes.texts.get("", -1)
    own, found = users[filled], codes.codes[filled]
    latest = np.full(population, -1, np.int32)
    latest[own] = found
    pairs = np.unique(own.astype(np.int64) * len(texts) + found)
    per_user = np.bincount(pairs // len(texts), minlength=population)
    having = int(np.count_nonzero(per_user))
    several = np.count_nonzero(per_user > 1) / having if having else 0.0
    return LabelColumn(name, _counts(latest[latest >= 0], texts), float(several))
