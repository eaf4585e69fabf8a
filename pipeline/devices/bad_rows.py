"""What is wrong with rows, and the account that is kept of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError

SHOWN_BAD_ROWS = 10
_MOST_REASONS = 20
# What of a reason belongs to one row: quoted text, the line it contradicts, and guesses after it.
_OF_ONE_ROW = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_PLACE = re.compile(r"\b(line|row|event) [0-9@\[\]]+")
_GUESS = re.compile(r" \(partition [0-9]+\)|; did you mean .*|, whose [0-9,]+ labels .*")


def counted(count: int, noun: str = "row") -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class InputError(DpstreamError, ValueError):
    """Input that cannot be used: says which file, what is wrong and what to do."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True, order=True)
class BadRow:
    """A row that cannot be used, and why; the reason shows the row, or what of it is wrong.

    Attributes:
        line: the physical line it begins on, counted from 1; the number of a row or the offset of
            an event, where there are no lines.
        anonymous: whether it does not tell whose it is.
    """

    line: int
    reason: str
    anonymous: bool = False

    @property
    def kind(self) -> str:
        """The reason, without what belongs to this row alone.

        >>> BadRow(3, "value 'x' is not 0 or 1").kind
        'value ... is not 0 or 1'
        """
        kind = _OF_ONE_ROW.sub("...", _GUESS.sub("", self.reason))
        return _PLACE.sub("an earlier one", kind).removesuffix(": ...")


@dataclass(frozen=True, slots=True)
class BadRowReason:
    """How many rows are bad for one reason, and the first of them."""

    kind: str
    count: int
    first: BadRow


@dataclass(frozen=True, slots=True)
class BadRows:
    """How many rows of an input are bad, and the first of them in the order of the file.

    Attributes:
        anonymous: how many of them do not tell whose they are.
        reasons: they are bad for, in the order in which they were met; beyond a number of them,
            others are counted with the last one.
        place: what stands before the number of a row, where it is not the line of a file.
    """

    name: str
    total: int = 0
    first: tuple[BadRow, ...] = ()
    anonymous: int = 0
    reasons: tuple[BadRowReason, ...] = ()
    place: str = ""

    def plus(self, rows: Sequence[BadRow], untold: int = 0) -> BadRows:
        """This account with more rows in it, and the number of others that come after those.

        The others are bad for the reason of the last of the rows.
        """
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
            lines.append(f"... and {self.total - len(self.first):,} more; in all:")
            lines += [
                f"{counted(reason.count)}: {reason.kind} "
                f"(the first: {self.place or 'line '}{reason.first.line}: {reason.first.reason})"
                for reason in self.reasons
            ]
        return "\n".join(lines)


class BadRowsError(InputError):
    """Bad rows where none were allowed; ``bad_rows`` holds the account.

    The message does not say how to skip them where that cannot be.
    """

    def __init__(self, bad_rows: BadRows, *, skippable: bool = True) -> None:
        otherwise = ", or go on without them by --skip-bad-rows" if skippable else ""
        super().__init__(
            f"{bad_rows.name}: {counted(bad_rows.total, 'bad row')}; "
            f"correct them{otherwise}\n{bad_rows}"
        )
        self.bad_rows = bad_rows
