"""Print results: tables and sentences for users, JSON for programs.

* Tables fit 80 columns; colors are for terminals only.
* Progress and warnings go to standard error.
* Names and details come from topics and files, so control characters in all output are replaced.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from dpstream.pipeline.errors import one_line, printable, printable_json
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.values.times import iso as iso
from dpstream.randomizers.guarantee import WITHIN, Guarantee, format_loss

Columns: TypeAlias = Mapping[str, str | Callable[[Any], object]] | Sequence[str]

_UNLIMITED = 1 << 16
_BASES = {
    "exact": "exact, computed from the distribution that is sampled",
    "bound": "a proven upper bound",
}


def print_text(text: str = "", style: str = "", *, whole: bool = False) -> None:
    """Print a line of the result; with `whole`, lines (for example with a path) are not wrapped."""
    _console().print(Text(text, style), soft_wrap=whole)


def print_command(command: str) -> None:
    """Print a command or path to copy, unwrapped, on a line of its own."""
    _console().print(Text(f"  {command}"), soft_wrap=True)


def tell(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def silence(*libraries: str) -> None:
    """Mute libraries that repeat messages which are reported once elsewhere."""
    for name in libraries:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def print_line(line: str, *, flush: bool = False) -> None:
    """Print a line unchanged, such as a CSV row; on terminals, replace control characters."""
    print(printable(line) if sys.stdout.isatty() else line, flush=flush)


def print_lines(lines: Iterable[str]) -> None:
    terminal = sys.stdout.isatty()
    sys.stdout.writelines(f"{printable(line) if terminal else line}\n" for line in lines)


def print_json(value: object) -> None:
    print(printable_json(json_text(value, indent=2, ensure_ascii=False)))


def print_table(columns: Columns, rows: Iterable[Any]) -> None:
    _console().print(table_of(columns, rows))


def table_of(columns: Columns, rows: Iterable[Any]) -> RenderableType:
    """Return a printable table; numbers have thousands separators, and None becomes a dash.

    >>> from fractions import Fraction
    >>> Console().print(table_of({"of": str, ">above": "numerator"}, [Fraction(7_000, 3)]))
    of      above
    7000/3  7,000

    `columns` maps headers to an attribute name or a function of the row; if it is a sequence of
    headers, rows are sequences of cells. A column whose header starts with ``>`` is right-aligned;
    one whose header starts with ``=`` is for text to copy, and never wrapped.
    """
    if isinstance(columns, Mapping):
        getters = [attrgetter(each) if isinstance(each, str) else each for each in columns.values()]
        rows = ([get(row) for get in getters] for row in rows)
    return _WrittenTable(tuple(columns), tuple(tuple(map(_cell, row)) for row in rows))


def _cell(value: object) -> str:
    shown = number(value) if value is None or isinstance(value, int | float) else str(value)
    return one_line(shown)


class _WrittenTable:
    """A table of texts, one line per row.

    If no cell needs wrapping, lines are written directly: rich would take six times as long, a
    second for the status of two hundred jobs.
    """

    def __init__(self, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> None:
        self._columns = columns
        self._names = tuple(each.removeprefix(">").removeprefix("=").strip() for each in columns)
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = self._names
        widths = [max(map(cell_len, column)) for column in zip(names, *self._rows, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) > options.max_width:
            yield self._table()
            return
        for row, style in ((names, Style(bold=True)), *((row, None) for row in self._rows)):
            cells = []
            for name, text, width in zip(self._columns, row, widths, strict=True):
                cell = text.rstrip()
                room = " " * (width - cell_len(cell))
                cells.append(room + cell if name.startswith(">") else cell + room)
            yield Segment("  ".join(cells), style)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._table())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column, name in zip(self._columns, self._names, strict=True):
            table.add_column(
                name,
                justify="right" if column.startswith(">") else "left",
                overflow="fold",
                no_wrap=column.startswith("="),
            )
        for row in self._rows:
            table.add_row(*map(Text, row))
        return table


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print labels and texts, one pair per line; long texts wrap to the right of their label."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in pairs:
        grid.add_row(Text(f"  {label}"), Text(text))
    _console().print(grid)


def guarantee_pairs(guarantee: Guarantee) -> Iterable[tuple[str, str]]:
    loss = format_loss(guarantee.epsilon, guarantee.delta)
    yield "guarantee", f"{loss} for a user's {guarantee.spent_on}"
    if guarantee.rolling is not None:
        yield "at any time", f"{guarantee.rolling}: {WITHIN}"
    if guarantee.shuffled is not None:
        shuffled = guarantee.shuffled
        yield (
            "if shuffled",
            f"{format_loss(shuffled.epsilon, shuffled.delta)} for a user's {guarantee.spent_on}; "
            f"relies on {shuffled.trust}"
            + ("" if shuffled.one_window else ". For all others, the guarantee above"),
        )
    yield "neighbors", guarantee.neighbors
    yield "public", "when each user is enrolled, and who reports in which epoch"
    yield "trusted party", guarantee.trust
    basis = f"epsilon is {_BASES[guarantee.basis]}"
    if guarantee.stream_epsilon is not None:
        stream = _BASES["bound" if guarantee.unit == "epoch" else "exact"]
        basis = f"for one {guarantee.unit}, {basis}; for the whole stream, {stream}"
    yield "basis", basis


class PrintableConsole(Console):
    """A console that replaces control characters in texts, except in its own colors."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def console() -> Console:
    return _console()


def _console() -> Console:
    # Lines in a file or a pipe are for programs, too: do not wrap them.
    unlimited = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return PrintableConsole(highlight=False, width=_UNLIMITED if unlimited else None)


def number(value: float | None) -> str:
    """Format a number with thousands separators; small numbers have one decimal."""
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}"


def duration(seconds: float) -> str:
    """Format a duration in seconds, in its two largest units.

    >>> duration(0.42), duration(59), duration(3_725), duration(200_000)
    ('0.4 s', '59 s', '1 h 2 min', '2 d 7 h')
    """
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for unit, size, smaller, part in _UNITS:
        if seconds >= size:
            rest = int(seconds % size // part)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError


_UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1))


def instant(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def now() -> int:
    return time.time_ns() // 1_000_000


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "epoch"), plural(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
