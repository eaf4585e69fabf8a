"""Make up the events of an app for the example jobs: no real person is behind them.

``python -m experiments.prepare_app_events`` writes ``app-events.csv.gz`` and ``app-users.csv.gz``
to the folder of the demonstration, always with the same contents.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from random import Random

from dpstream.pipeline import demo

USERS = 2_000
WEEKS = 52
START = datetime(2024, 1, 1, tzinfo=UTC)
"""A Monday."""
EVENTS, ROSTER = "app-events.csv.gz", "app-users.csv.gz"

_PLATFORMS = {"android": 50, "ios": 30, "web": 14, "tv": 6}
_FREE_MINUTES, _PRO_MINUTES = 12.0, 25.0
_LONGER_IN_B = 1.5
_RETURNING = 0.04
"""Probability that a week of a break is the last one."""


@dataclass(frozen=True, slots=True)
class AppUser:
    """A user with everything that never changes.

    Attributes:
        first: First week with the app, from 0.
        leaving: Probability that a week of use is followed by a break.
    """

    name: str
    platform: str
    plan: str
    arm: str
    first: int
    leaving: float


def draw_users(random: Random) -> list[AppUser]:
    names = random.sample(range(100_000, 1_000_000), USERS)
    return [
        AppUser(
            name=f"u{name}",
            platform=random.choices([*_PLATFORMS], [*_PLATFORMS.values()])[0],
            plan="pro" if random.random() < 0.4 else "free",
            arm=random.choice("AB"),
            # Half of the users are there from the start.
            first=0 if random.random() < 0.5 else random.randrange(WEEKS),
            leaving=random.choice((0.01, 0.05, 0.5)),
        )
        for name in names
    ]


def rows_of(user: AppUser, random: Random) -> Iterator[tuple[datetime, str]]:
    """Yield the events of a user, each with its time and its row without the user."""
    minutes = _PRO_MINUTES if user.plan == "pro" else _FREE_MINUTES
    if user.plan == "pro" and user.arm == "B":
        minutes *= _LONGER_IN_B
    uses = True
    for week in range(user.first, WEEKS):
        if week > user.first:
            uses = random.random() >= (user.leaving if uses else 1 - _RETURNING)
        if not uses:
            continue
        for _ in range(random.choice((1, 1, 1, 2))):
            moment = START + timedelta(weeks=week, minutes=random.randrange(7 * 24 * 60 - 240))
            if random.random() < 0.4:
                yield moment, f"search,{user.platform},"
            lasted = min(random.expovariate(1 / minutes), 180.0)
            yield moment + timedelta(minutes=lasted), f"session_end,{user.platform},{lasted:.0f}"


def written(seed: int = 1) -> dict[str, bytes]:
    """Return the contents of both files, unpacked."""
    random = Random(seed)
    users = draw_users(random)
    rows = sorted(
        (moment, user.name, rest) for user in users for moment, rest in rows_of(user, random)
    )
    events = [f"{moment:%Y-%m-%dT%H:%MZ},{name},{rest}" for moment, name, rest in rows]
    roster = [f"{user.name},{user.platform},{user.plan},{user.arm}" for user in users]
    lines = {
        EVENTS: ["ts,user_id,event,os,duration", *events],
        ROSTER: ["user,os,plan,arm", *sorted(roster)],
    }
    return {name: "".join(f"{line}\n" for line in each).encode() for name, each in lines.items()}


def main(folder: Path) -> None:
    for name, data in written().items():
        packed = BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
            file.write(data)
        (folder / name).write_bytes(packed.getvalue())
        print(f"{folder / name}: {len(data):,} bytes, {len(packed.getvalue()):,} packed")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(demo.__file__).parent)
