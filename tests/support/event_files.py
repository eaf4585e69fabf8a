"""The same events written as files of different habits: names, separators, times, formats."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyarrow import parquet

START: Final = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    user: str
    time: datetime
    event: str
    os: str
    seconds: float | None


def made_events(
    users: int = 200, weeks: int = 12, *, seed: int = 1, rate: float = 0.4
) -> list[LoggedEvent]:
    """Draw events, sorted by time to the minute; only the event `leave` has seconds."""
    random = Random(seed)
    events = []
    for user in range(users):
        own = random.choice(("android", "android", "ios", "web"))
        for week in range(weeks):
            for _ in range(random.randrange(1, 4) if random.random() < rate else 0):
                moment = START + timedelta(weeks=week, minutes=random.randrange(7 * 24 * 60))
                event = random.choice(("open", "search", "leave"))
                seconds = round(random.expovariate(1 / 90), 1) if event == "leave" else None
                events.append(LoggedEvent(f"u{user:05}", moment, event, own, seconds))
    return sorted(events, key=lambda each: each.time)


TIMES: Final[Mapping[str, Any]] = {
    "zoned": lambda moment: moment.astimezone(ZoneInfo("Asia/Tokyo")).isoformat(),
    "mixed": lambda moment: moment.astimezone(
        ZoneInfo("America/Lima" if moment.minute % 2 else "UTC")
    ).isoformat(),
    "space": lambda moment: f"{moment:%Y-%m-%d %H:%M}",
    "utc": lambda moment: f"{moment:%Y-%m-%d %H:%M:%S} UTC",
    "seconds": lambda moment: str(int(moment.timestamp())),
    "milliseconds": lambda moment: str(1000 * int(moment.timestamp())),
    "german": lambda moment: f"{moment:%d.%m.%Y %H:%M}",
    "american": lambda moment: f"{moment:%m/%d/%Y %I:%M %p}",
    "apache": lambda moment: f"{moment:%d/%b/%Y:%H:%M:%S} +0000",
}
"""Ways to write a time to the minute."""

NAMES: Final = (
    ("user_id", "ts", "event", "os", "seconds"),
    ("uid", "when", "what", "os", "seconds"),
    ("customerId", "created_at", "action", "platform", "duration"),
    ("distinct_id", "eventTime", "type", "device_os", "Dauer"),
    ("Kunde", "Zeitpunkt", "event_name", "System", "Sekunden"),
)
"""Names of the columns user, time, event, os and seconds."""


def write_events(
    path: Path,
    events: list[LoggedEvent],
    *,
    names: tuple[str, ...] = NAMES[0],
    order: tuple[int, ...] = (0, 1, 2, 3, 4),
    times: str = "zoned",
    separator: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
    extra: tuple[str, ...] = (),
) -> Path:
    """Write events to a file whose suffix is its format; `extra` are lines at the end."""
    rows = [
        (
            *(each.user, TIMES[times](each.time), each.event, each.os),
            "" if each.seconds is None else str(each.seconds).replace(".", decimal),
        )
        for each in events
    ]
    columns = [names[at] for at in order]
    if path.suffix == ".parquet":
        table = {name: [row[at] for row in rows] for name, at in zip(columns, order, strict=True)}
        parquet.write_table(pa.table(table), path)
        return path
    if ".jsonl" in path.suffixes:
        lines = [
            json.dumps(
                {
                    name: float(row[at]) if at == 4 and row[at] else (row[at] or None)
                    for name, at in zip(columns, order, strict=True)
                }
            )
            for row in rows
        ]
    else:
        lines = [separator.join(row[at] for at in order) for row in [names, *rows]]
    data = "\n".join([*lines, *extra, ""]).encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
