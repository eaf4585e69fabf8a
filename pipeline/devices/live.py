"""Live input: rows as they arrive, and epochs that are closed by the clock.

Sans I/O: `LiveSource` receives bytes and the time, and returns events.

* Rows for the running epoch become changes. When the clock passes the end of the running epoch,
  this epoch is closed and the next epoch runs.
* A row for a later epoch is buffered until that epoch runs.
* A row for a closed epoch is late and cannot change that epoch. The row's value holds from the
  running epoch on, unless its user has a newer row. The values at a closing epoch are therefore
  those of a `ChangeLog` with the rows read so far.
* If users have sets of items, epochs are independent: a row adds an item to the running epoch, and
  late rows are not used. The sets at a closing epoch are those of an `ItemLog`.
* In jobs with measures, every row is an event of its own epoch. A late row enters its user's
  history, where later windows count it.
* A row before epoch 1 without a value lists its user.
* Unusable rows of any kind are skipped and counted. A source that stopped at an unusable row would
  reveal something about the row's contents.
* At the end of the input, epochs that have ended are closed. The running epoch stays open, so that
  a later run can close it if its changes are saved.
"""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from dpstream.pipeline.devices.bad_rows import BadRow, BadRows, InputError, counted
from dpstream.pipeline.devices.columns import Columns, Placing, columns_needed
from dpstream.pipeline.devices.duplicates import RowAction, row_action
from dpstream.pipeline.devices.json_records import Keys, parse_object, records_of
from dpstream.pipeline.devices.record_files import encoding_marked
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.rows import Records, RowCounts, Rows, parse_rows, read_records
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.values.times import EpochCalendar, microseconds, shown
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain

LINE_CAP = 1 << 20  # bytes of one line


@dataclass(frozen=True, slots=True)
class Change:
    """Value of a user from the running epoch on; it can equal the previous value."""

    epoch: int
    user: str
    value: int


@dataclass(frozen=True, slots=True)
class Held:
    """New items of a user in the running epoch, in addition to the user's earlier items."""

    epoch: int
    user: str
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Happened:
    """Event of a user at a time in microseconds, in the running epoch or an earlier one."""

    epoch: int
    user: str
    moment: int
    fields: list[int]


@dataclass(frozen=True, slots=True)
class Listed:
    user: str


@dataclass(frozen=True, slots=True)
class CloseEpoch:
    epoch: int


Event: TypeAlias = Change | Held | Happened | Listed | CloseEpoch


class LiveSource:
    r"""Turn bytes and clock readings into events.

    Rows are as for `load_change_log`: CSV with a header, or JSON with one object per line. The
    first object determines the keys. Rows with neither epoch nor time belong to the running epoch.

    Args:
        first_epoch: First epoch to close; epochs that have already ended are closed immediately.
        last_epoch: Epoch after which the source is finished.
        lateness: Time for which an epoch still accepts its rows after it has ended by the clock.
        hold: Maximum number of buffered rows for later epochs; more are dropped and counted.
        input_format: Format of the rows; by default, JSON if the first line is an object, else CSV.

    Attributes:
        deadline: Closing time of the running epoch; None when the source is finished.

    >>> from datetime import UTC
    >>> from dpstream.pipeline.values.durations import parse_duration
    >>> noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    >>> source = LiveSource(EpochCalendar(noon, parse_duration("PT1M")), first_epoch=1)
    >>> source.receive(b"user,value\nann,1\n", noon)
    [Change(epoch=1, user='ann', value=1)]
    >>> source.tick(source.deadline)
    [CloseEpoch(epoch=1)]
    """

    def __init__(
        self,
        calendar: EpochCalendar,
        first_epoch: int,
        *,
        last_epoch: int | None = None,
        domain: ValueDomain = BOOLEAN,
        name: str = "standard input",
        lateness: timedelta = timedelta(),
        hold: int = 1_000_000,
        input_format: InputFormat = AS_IT_IS,
    ) -> None:
        self.epoch = first_epoch
        self.deadline: datetime | None = None
        self.bad_rows = BadRows(name)
        self._calendar = calendar
        self._last_epoch = last_epoch
        self._domain = domain
        self._reader = RowReader(domain, calendar, input_format)
        if input_format.format == "parquet":
            raise InputError(
                f"{name}: got format parquet; live rows must be CSV or JSON lines. Pass a "
                "Parquet file with --input FILE"
            )
        if domain.slots is not None and input_format.duplicates not in (None, "first"):
            raise InputError(
                f"{name}: 'duplicates' is {input_format.duplicates}, but of live rows, a user's "
                "first items always count. Remove 'duplicates'"
            )
        self._encoding = input_format.encoding
        self._decoder: codecs.IncrementalDecoder | None = None
        self._said: list[str] = []
        self._begun = False
        self._counts = RowCounts()
        self._name = name
        self._lateness = lateness
        self._hold = hold

        self._columns: Columns | None = None
        self._json = input_format.format == "json"
        self._keys: Keys | None = None  # for JSON input
        self._partial = b""  # start of a line whose end is missing
        self._overlong = False  # True while the rest of a long line is dropped
        self._open: list[str] = []  # lines of a record without a closing quote yet
        self._lines = 0  # number of lines before `_open`
        self._received = 0  # number of rows
        self._newest: dict[str, tuple[int, int]] = {}  # position and value by user
        self._held: defaultdict[int, list[_LiveRow]] = defaultdict(list)
        self._holding = 0
        self._sets: defaultdict[str, set[int]] = defaultdict(set)
        self._late = self._outdated = self._dropped = self._after = self._excess = 0
        self._repeated = 0
        self._set_deadline()

    def tick(self, now: datetime) -> list[Event]:
        events: list[Event] = []
        while self.deadline is not None and now >= self.deadline:
            events.append(CloseEpoch(self.epoch))
            self.epoch += 1
            self._sets.clear()
            self._set_deadline()
            held = self._held.pop(self.epoch, [])
            self._holding -= len(held)
            events += self._apply(held)
        return events

    def receive(self, data: bytes, now: datetime) -> list[Event]:
        """Call `tick`, and process new bytes, which can start or end anywhere in a line.

        Raises `InputError` if the header is malformed, or longer than 1 MiB.
        """
        events = self.tick(now)
        data = self._as_utf8(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if self._overlong and lines:
            self._overlong = False
            self._lines += 1
            del lines[0]
        events += self._parse([line + b"\n" for line in lines], now, at_end=False)
        if self._overlong or len(self._partial) > LINE_CAP:
            self._drop_partial()
        return events

    def end(self, now: datetime) -> list[Event]:
        events = self.tick(now)
        last, self._partial = self._partial + self._as_utf8(b"", final=True), b""
        events += self._parse([last] if last else [], now, at_end=True)
        if self._columns is None:
            needed = f"the first line must contain {columns_needed(self._domain.fields)}"
            collected = "no line is a JSON object" if self._json else f"empty; {needed}"
            raise InputError(f"{self._name}: {collected}")
        return events

    def _as_utf8(self, data: bytes, *, final: bool = False) -> bytes:
        if not self._begun and data:
            self._begun = True
            marked, warning = encoding_marked(data[:4])
            self._encoding = marked or self._encoding
            self._said += warning
            if self._encoding not in (None, "utf-8"):
                self._decoder = codecs.getincrementaldecoder(self._encoding)("surrogateescape")
        if self._decoder is None:
            return data
        try:
            return self._decoder.decode(data, final).encode("utf-8", "surrogateescape")
        except UnicodeError as error:
            raise InputError(f"{self._name}: not {self._encoding} text: {error}") from None

    def warnings(self) -> tuple[str, ...]:
        unused = self._columns.unused if self._columns else ()
        counts = {
            f"after epoch {self._last_epoch}: not used": self._after,
            self._late_text: self._late,
            f"from users with more than {self._domain.slots} items: not used": self._excess,
            f"with another value for the same user and epoch or time: the "
            f"{self._reader.input_format.duplicates} counts": self._repeated,
            "older than an earlier row for the same user: not used": self._outdated,
            f"for later epochs, beyond the {self._hold:,} buffered: lost": self._dropped,
            "for later epochs: buffered, lost if the input ends here": self._holding,
        }
        collected = [*self._said]
        collected += [f"not used: column {', '.join(map(shown, unused))}"] if unused else []
        collected += [f"{counted(count)} {what}" for what, count in counts.items() if count]
        collected += self._counts.warnings(self._reader)
        if self.bad_rows.total:
            collected.append(f"{counted(self.bad_rows.total, 'bad row')} skipped")
        return tuple(f"{self._name}: {warning}" for warning in collected)

    @property
    def _late_text(self) -> str:
        if self._domain.fields is None:
            return "for closed epochs: too late to change them"
        return "for closed epochs: they count in later windows only"

    def _drop_partial(self) -> None:
        self._partial = b""
        if self._overlong:
            return
        reason = f"a line has more than {LINE_CAP:,} bytes"
        if self._columns is None:
            raise InputError(f"{self._name}:1: {reason}")
        self._skip([BadRow(self._lines + 1, reason, anonymous=True)])
        self._lines += len(self._open)
        self._open = []
        self._overlong = True

    def _set_deadline(self) -> None:
        over = self._last_epoch is not None and self.epoch > self._last_epoch
        end = None if over else self._calendar.start_of(self.epoch + 1)
        self.deadline = None if end is None else end + self._lateness

    def _parse(self, lines: list[bytes], now: datetime, *, at_end: bool) -> list[Event]:
        text = self._open + [line.decode("utf-8", "surrogateescape") for line in lines]
        if self._columns is None and text:
            text[0] = text[0].removeprefix("\ufeff")
            self._json = self._json or (
                self._reader.input_format.format is None and text[0][:1] == "{"
            )
        if self._json:
            return self._parse_json(text, now)
        if self._columns is None and text:
            self._columns = self._parse_header(text.pop(0))
            self._lines = 1
        if self._columns is None:
            return []
        # Only a record with an open quote continues into the sentinel line.
        sentinel = [] if at_end else [""]
        self._open, before = [], self._lines
        events: list[Event] = []
        separator = self._reader.input_format.separator
        for records in read_records([*text, *sentinel], before, separator):
            if records.broken and records.broken.last > before + len(text):
                self._open = text[records.broken.first - before - 1 :]
                records = Records(records.fields, records.lines)
            events += self._take(records, self._columns, now)
        self._lines = before + len(text) - len(self._open)
        return events

    def _parse_json(self, text: list[str], now: datetime) -> list[Event]:
        lines = list(enumerate(text, self._lines + 1))
        self._lines += len(text)
        while self._keys is None and lines:
            number, line = lines[0]
            try:
                first = parse_object(line) if line.strip() else None
            except ValueError as error:
                self._skip([BadRow(number, str(error), anonymous=True)])
                first = None
            if first is None:
                del lines[0]
                continue
            self._keys = Keys.of(
                *(first, self._reader.input_format),
                crowd=self._domain.column,
                fields=self._domain.fields,
                stamped=True,
                name=f"{self._name}:{number}",
            )
        if self._keys is None:
            return []
        self._columns = self._keys.columns
        return self._take(records_of(self._keys, lines), self._columns, now)

    def _parse_header(self, line: str) -> Columns:
        input_format = self._reader.input_format
        first = next(read_records([line], separator=input_format.separator))
        if first.broken:
            raise InputError(f"{self._name}:1: {first.broken.as_row().reason}")
        return Columns.of(
            self._name,
            first.fields[0],
            live=True,
            crowd=self._domain.column,
            fields=self._domain.fields,
            input_format=input_format,
        )

    def _take(self, records: Records, columns: Columns, now: datetime) -> list[Event]:
        self._reader.check_placing(self._name, columns.placing)
        rows, bad = parse_rows(records, columns, self._reader)
        self._counts = self._counts.plus(rows.counts)
        self._skip(bad)
        listed = [_LiveRow(line, user, 0, 0, None) for line, user in rows.listed]
        placed = self._placed(rows, columns, now)
        due: list[_LiveRow] = []
        for row in merge(listed, placed, key=_line_of):
            if self.deadline is None or (self._last_epoch and row.epoch > self._last_epoch):
                self._after += 1
            elif row.epoch <= self.epoch:
                self._late += 1 <= row.epoch < self.epoch
                due.append(row)
            elif self._holding < self._hold:
                self._held[row.epoch].append(row)
                self._holding += 1
            else:
                self._dropped += 1
        return self._apply(due)

    def _placed(self, rows: Rows, columns: Columns, now: datetime) -> Iterator[_LiveRow]:
        epochs, positions = rows.epochs.tolist(), rows.positions.tolist()
        if columns.placing is Placing.ARRIVAL:
            # A clock that is set back does not make a row late.
            epochs = [max(self.epoch, self._calendar.epoch_of(now))] * len(rows.users)
            positions = range(self._received, self._received + len(rows.users))
            if self._domain.fields is not None:
                positions = [microseconds(now)] * len(rows.users)
        self._received += len(rows.users)
        values = rows.values.tolist()
        return map(_LiveRow, rows.lines.tolist(), rows.users, epochs, positions, values)

    def _apply(self, rows: list[_LiveRow]) -> list[Event]:
        events: list[Event] = []
        for row in rows:
            if row.value is None:
                events.append(Listed(row.user))
            elif self._domain.fields is not None:
                assert isinstance(row.value, list)
                events.append(Happened(row.epoch, row.user, row.position, row.value))
            elif self._domain.slots is None:
                events += self._changed(row)
            elif row.epoch == self.epoch:
                events.append(self._holds(row, self._domain.slots))
        return events

    def _holds(self, row: _LiveRow, slots: int) -> Held:
        listed = row.value if isinstance(row.value, list) else [row.value]
        held = self._sets[row.user]
        new = [item for item in listed if item and item not in held]
        room = slots - len(held)
        self._excess += len(new) > room
        held.update(new[:room])
        return Held(self.epoch, row.user, tuple(new[:room]))

    def _changed(self, row: _LiveRow) -> Iterator[Change]:
        assert isinstance(row.value, int)
        rule, newest = self._reader.input_format.duplicates, self._newest.get(row.user)
        action = row_action(rule, newest, row.position, row.value)
        self._outdated += action is RowAction.OLDER
        self._repeated += action.by_rule
        if action.counts:
            self._newest[row.user] = (row.position, row.value)
            yield Change(self.epoch, row.user, row.value)
        elif action is RowAction.CONTRADICTS:
            reason = f"contradicts an earlier line for user {shown(row.user)}"
            self._skip([BadRow(row.line, reason)])

    def _skip(self, bad: Sequence[BadRow]) -> None:
        self.bad_rows = self.bad_rows.plus(bad)


class _LiveRow(NamedTuple):
    line: int
    user: str
    epoch: int
    position: int
    value: int | list[int] | None


_line_of = attrgetter("line")
