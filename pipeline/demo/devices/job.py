"""What the devices of the demonstration are asked, every quarter of a minute.

``python -m dpstream.pipeline.demo.devices.job`` prints the job file.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from dpstream.pipeline.results.known_digits import known_count
from dpstream.pipeline.stages.estimate_records import EstimateRecord

NAME: Final = "dark-mode"
EPOCH_SECONDS: Final = 15
EPOCHS: Final = 240
"""An hour."""
CHANGES: Final = 17
"""As many as a device of the fleet makes in that time; tests count them."""
DEVICES: Final = 10_000
COLLECTORS: Final = 2


def job_text(now: datetime) -> str:
    """The job file, of a calendar that begins with the next minute's quarter.

    >>> print(job_text(datetime(2026, 1, 1, 12, 0, 7, tzinfo=UTC)).splitlines()[3])
    epochs: {count: 240, start: "2026-01-01T12:00:00Z", length: PT15S}
    """
    second = now.second // EPOCH_SECONDS * EPOCH_SECONDS
    start = now.astimezone(UTC).replace(second=second, microsecond=0)
    return f"""\
name: {NAME}
protocol: value_stream
parameters: {{epsilon: 4, changes: {CHANGES}}}
epochs: {{count: {EPOCHS}, start: "{start:%Y-%m-%dT%H:%M:%SZ}", length: PT{EPOCH_SECONDS}S}}
shuffle: {{minimum: 100, grace: PT8S}}
devices: {{late: PT4S}}
"""


def have_it_on(record: EstimateRecord) -> str | None:
    """How many have it on, and no more than is known of them; None without an estimate."""
    estimate = record.headline
    if estimate is None or estimate.value is None:
        return None
    assert estimate.low is not None
    assert estimate.high is not None
    known = known_count(estimate.value, estimate.low, estimate.high, record.population)
    between = "" if known.may_be_none else f", between {known.low:,} and {known.high:,}"
    about, number = known.words
    return f"{about.lower()} {number} of {record.population:,} have it on{between}"


if __name__ == "__main__":
    print(job_text(datetime.now(UTC)), end="")
