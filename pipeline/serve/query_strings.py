"""Parse and validate the API's query strings, which can contain any text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from dpstream.pipeline.serve.views import MOST_SERIES

Word = TypeVar("Word", bound=str)

LARGEST = 1 << 53
"""Largest integer up to which all of JavaScript's integers are exact."""
_SHOWN = 40


class InvalidQueryError(ValueError):
    """A query is invalid; the message states what is valid."""


def whole(query: Mapping[str, str], name: str, least: int = 0, most: int = LARGEST) -> int | None:
    """Return the integer `name`, or None if missing; raise `InvalidQueryError` if invalid.

    >>> whole({"from": "12"}, "from"), whole({}, "from")
    (12, None)
    """
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST))):
        raise InvalidQueryError(
            f"{name}: got {text[:_SHOWN]!a}; expected an integer from {least:,} to {most:,}"
        )
    if not least <= int(text) <= most:
        raise InvalidQueryError(f"{name}: got {text}; expected {least:,} to {most:,}")
    return int(text)


def epoch_range(query: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the first and the last requested epoch; each is None if it is missing.

    >>> epoch_range({"from": "3", "to": "7"}), epoch_range({})
    ((3, 7), (None, None))
    """
    first, last = whole(query, "from"), whole(query, "to")
    if first is not None and last is not None and last < first:
        raise InvalidQueryError(f"'to' is {last}; expected at least {first}, the value of 'from'")
    return first, last


def series_ids(query: Mapping[str, str]) -> tuple[str, ...]:
    ids = tuple(dict.fromkeys(filter(None, query.get("series", "").split(","))))
    if len(ids) > MOST_SERIES:
        raise InvalidQueryError(f"series: got {len(ids):,} ids; expected at most {MOST_SERIES}")
    return ids


def one_of(query: Mapping[str, str], name: str, *allowed: Word) -> Word:
    """Return the value of `name` if it is allowed; the first allowed value is the default."""
    word = query.get(name) or allowed[0]
    if word not in allowed:
        raise InvalidQueryError(f"{name}: got {word[:_SHOWN]!a}; expected {' or '.join(allowed)}")
    return word
