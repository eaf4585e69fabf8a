"""Make a change log of active users of Ask Ubuntu, week by week.

    python -m experiments.prepare_askubuntu SOURCE OUT

SOURCE is ``sx-askubuntu-a2q.txt.gz`` from the Stanford Large Network Dataset Collection (SNAP),
https://snap.stanford.edu/data/sx-askubuntu.html. A line ``SRC DST UNIX_TIME`` means that user SRC
answered a question of user DST. The content of Stack Exchange is licensed under CC BY-SA 3.0.

* Every number that occurs as SRC or DST is a user; users are renumbered from 1, in the same order.
* Weeks have seven days, and the first one starts with the first event (8 January 2009, 16:20 UTC).
* A user is *active* in the week in which the user answers a question or has one answered, and in
  the 11 weeks after it. The value of a week is 1 if the user is active.

The log has 137,517 users and 374 weeks; at most 12,824 users are active at a time. 79.5 % change
at most twice, 91.8 % at most four times and 98.0 % at most eight times. Only changes are written,
by week and then by user, and nothing after the last week. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.measured_events import Events, changes_of
from dpstream.pipeline.values.event_rows import EventDomain
from dpstream.randomizers.measures import Measure
from experiments.preparation import Row, write_change_log

WEEK = 7 * 24 * 3600
ACTIVE = Measure("active", within=12)


def read_events(path: Path) -> NDArray[np.int64]:
    """Return columns SRC, DST and UNIX_TIME, shape (events, 3), from a plain or gzip file."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    numbers = np.array(text.split(), np.int64)
    if not len(numbers) or len(numbers) != 3 * len(text.splitlines()):
        raise ValueError(f"{path}: expected a file of lines SRC DST UNIX_TIME")
    return numbers.reshape(-1, 3)


def weekly_changes(events: NDArray[np.int64]) -> list[Row]:
    """Return the change log for events from `read_events`, by week and then by user."""
    times = np.repeat(events[:, 2], 2)
    weeks = (times - times.min()) // WEEK + 1
    ids, users = np.unique(events[:, :2].ravel(), return_inverse=True)
    nothing = np.zeros((len(times), 0), np.int64)
    log = Events.of(
        EventDomain([], [], {}),
        len(ids),
        epochs=weeks,
        users=users,
        moments=times,
        days=weeks,
        fields=nothing,
    )
    answers = log.answers(ACTIVE, int(weeks.max()))
    changed, who, values = changes_of(answers, np.zeros(len(ids), np.int8))
    return list(zip((who + 1).tolist(), changed.tolist(), values.tolist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.prepare_askubuntu",
        description="Make a change log of active users on Ask Ubuntu, week by week.",
        epilog="Get SOURCE, sx-askubuntu-a2q.txt.gz, from\n"
        "https://snap.stanford.edu/data/sx-askubuntu.html",
        # Keeps URLs and commands on one line, for copying.
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", type=Path, help="sx-askubuntu-a2q.txt.gz")
    parser.add_argument("out", metavar="OUT", type=Path, help="the change log to write, .csv.gz")
    options = parser.parse_args(arguments)
    try:
        rows = weekly_changes(read_events(options.source))
        write_change_log(rows, options.out)
    except OSError as error:
        parser.exit(1, f"{error.filename or options.source}: {error.strerror or error}\n")
    except (ValueError, EOFError) as error:
        parser.exit(1, f"{error}\n")
    print(f"{options.out}: {len(rows):,} rows, {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
