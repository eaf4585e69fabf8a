"""Record which rows of an input are bad, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError

SHOWN_BAD_ROWS = 10
_MOST_REASONS = 20
# Parts of a reason that are specific to one row: quoted text, the contradicted line, suggestions.
_OF_ONE_ROW = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_PLACE = re.compile(r"\b(line|row|event) [0-9@\[\]]+")
_GUESS = re.compile(r" \(partition [0-9]+\)|; did you mean .*|, whose [0-9,]+ labels .*")


def counted(count: int, noun: str = "row") -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class InputError(DpstreamError, ValueError):
    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True, order=True)
class BadRow:
    """Row that cannot be used, with a reason that shows the row or its wrong part.

    `line` is the row's first physical line, counted from 1; in inputs without lines, it is the
    number of the row or the offset of the event. `anonymous` rows do not identify their user.
    """

    line: int
    reason: str
    anonymous: bool = False

    @property
    def kind(self) -> str:
        """Reason without the parts that are specific to this row.

        >>> BadRow(3, "value 'x' is not 0 or 1").kind
        'value ... is not 0 or 1'
        """
        kind = _OF_ONE_ROW.sub("...", _GUESS.sub("", self.reason))
        return _PLACE.sub("an earlier one", kind).removesuffix(": ...")


@dataclass(frozen=True, slots=True)
class BadRowReason:
    kind: str
    count: int
    first: BadRow


@dataclass(frozen=True, slots=True)
class BadRows:
    """Number of bad rows in an input, and the first bad rows in file order.

    Attributes:
        reasons: Reasons in order of appearance; those beyond a maximum number count under the last
            reason.
        place: Text before the number of a row, if that number is not a line number.
    """

    name: str
    total: int = 0
    first: tuple[BadRow, ...] = ()
    anonymous: int = 0
    reasons: tuple[BadRowReason, ...] = ()
    place: str = ""

    def plus(self, rows: Sequence[BadRow], untold: int = 0) -> BadRows:
        """Return a summary that also counts `rows`, and `untold` more rows for the last reason."""
        if not rows:
            return replace(self, total=self.total + untold)
        first = sorted((*self.first, *rows))[:SHOWN_BAD_ROWS]
        anonymous = self.anonymous + sum(row.anonymous for row in rows)
        return replace(
            self,
            total=self.total + len(rows) + untold,
            first=tuple(first),
            anonymous=anonymous,
            reasons=self._with_reasons(rows, untold),
        )

    def _with_reasons(self, rows: Iterable[BadRow], untold: int) -> tuple[BadRowReason, ...]:
        reasons = {reason.kind: reason for reason in self.reasons}
        kind = ""
        for row in rows:
            kind = row.kind
            if kind not in reasons and len(reasons) >= _MOST_REASONS:
                kind = next(reversed(reasons))
            known = reasons.get(kind, BadRowReason(kind, 0, row))
            reasons[kind] = BadRowReason(kind, known.count + 1, min(known.first, row))
        last = reasons[kind]
        reasons[kind] = replace(last, count=last.count + untold)
        return tuple(reasons.values())

    def __str__(self) -> str:
        lines = [f"{self.name}:{self.place}{row.line}: {row.reason}" for row in self.first]
        if self.total > len(self.first):
            lines.append(f"... and {self.total - len(self.first):,} more; by reason:")
            lines += [
                f"{counted(reason.count)}: {reason.kind} "
                f"(the first: {self.place or 'line '}{reason.first.line}: {reason.first.reason})"
                for reason in self.reasons
            ]
        return "\n".join(lines)


class BadRowsError(InputError):
    """Bad rows are not allowed here; the message mentions skipping only if that is possible."""

    def __init__(self, bad_rows: BadRows, *, skippable: bool = True) -> None:
        otherwise = " or skip them with --skip-bad-rows" if skippable else ""
        super().__init__(
            f"{bad_rows.name}: {counted(bad_rows.total, 'bad row')}; "
            f"correct them{otherwise}\n{bad_rows}"
        )
        self.bad_rows = bad_rows
