"""Differences between two jobs, in the keys of their job files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_problems import (
    shown,
)
from dpstream.pipeline.values.durations import Duration, parse_duration

_LENGTHS_OF_TIME = ("epochs.length", "shuffle.grace", "devices.late", "topics.retention")


def find_differences(old: Job, new: Job) -> dict[str, str]:
    """Return the changes that turn `old` into `new`: ``old -> new`` by key."""
    before, after = dict(_flat(old.to_json())), dict(_flat(new.to_json()))
    return {
        key: _difference(_in_words(key, before.get(key)), _in_words(key, after.get(key)))
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    }


def describe_difference(old: Job, new: Job) -> list[str]:
    return [f"{key}: {difference}" for key, difference in find_differences(old, new).items()]


def _difference(old: object, new: object) -> str:
    before, after = _shown_or_left_out(old), _shown_or_left_out(new)
    if not isinstance(old, list) or not isinstance(new, list) or before != after:
        return f"{before} -> {after}"
    # Long lists look the same when cut: show the items that only one of them has.
    earlier, later = set(map(_as_text, old)), set(map(_as_text, new))
    gone = [item for item in old if _as_text(item) not in later]
    come = [item for item in new if _as_text(item) not in earlier]
    parts = [f"without {shown(gone)}"] * bool(gone) + [f"with {shown(come)}"] * bool(come)
    return " and ".join(parts) or "in another order"


def _as_text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _shown_or_left_out(value: object) -> str:
    if isinstance(value, Duration):
        return value.in_words()
    return "left out" if value is None else shown(value)


def _in_words(key: str, value: object) -> object:
    return parse_duration(str(value)) if value and key in _LENGTHS_OF_TIME else value


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
