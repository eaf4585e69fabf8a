"""Items over time in the shuffled model: the error of every item, for a budget of messages.

Beside what was worked out before there was an implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.attendance import Attendance
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

USERS = 100_000
EPOCHS = 64
ITEMS = tuple(map(str, range(10_000)))
DELTA = 1e-6


@dataclass(frozen=True)
class Setting:
    """A job, and what was worked out: a standard deviation for so many messages a user."""

    name: str
    messages: float
    reference: float


SETTINGS = [
    Setting("every epoch", 158, 62),
    Setting("every epoch", 438, 52),
]


def test_items_over_time() -> None:
    rows, found = [], []
    for setting in SETTINGS:
        entry = PROTOCOLS["shuffled_counts"]
        asked = ShuffledCountsParameters(
            1.0, DELTA, domain=ITEMS, messages_per_user=setting.messages
        )
        law: Any = entry.calibrate(asked, EPOCHS, USERS)
        assert entry.forecast is not None
        forecast = entry.forecast(law, asked, EPOCHS)
        planned = float(np.sqrt(np.square(forecast.standard_deviations(USERS)).mean()))
        measured, said, messages = run(entry, law, asked)
        found.append((setting, measured, said, planned))
        rows.append(
            [
                setting.name,
                f"{setting.messages:.0f}",
                f"{messages:.0f}",
                str(law.buckets),
                f"{setting.reference:.0f}",
                f"{planned:.1f}",
                f"{said:.1f}",
                f"{measured:.1f}",
            ]
        )
    print_table(
        f"{len(ITEMS):,} items, {USERS:,} users, {EPOCHS} epochs, two changes, RMSE of an item",
        [
            "job",
            "messages allowed",
            "sent",
            "buckets",
            "reference",
            "planned",
            "published",
            "measured",
        ],
        rows,
    )
    for setting, measured, said, planned in found:
        assert measured <= 1.03 * setting.reference, setting
        assert 0.95 <= measured / said <= 1.05, setting
        assert 0.95 <= measured / planned <= 1.05, setting


def run(entry: Any, law: Any, asked: Any) -> tuple[float, float, float]:
    """Root mean squares of errors and of what is said of them, and messages a user."""
    rng = seeded_generator(1)
    shares = 1 / np.arange(1, len(ITEMS) + 1) ** 1.1
    drawn = np.random.default_rng(1)
    first, second = 1 + drawn.choice(len(ITEMS), (2, USERS), p=shares / shares.sum())
    changing = drawn.integers(2, EPOCHS + 1, USERS)
    devices, aggregator = entry.randomizer(law), entry.aggregator(law, asked)
    devices.enrol(USERS, rng)
    attendance = Attendance.constant(EPOCHS, USERS)
    squares, said, messages = [], [], 0
    for epoch in range(1, EPOCHS + 1):
        now = np.where(epoch < changing, first, second)
        reports = devices.report(epoch, now, None, rng)
        if isinstance(reports, CountedWords):
            aggregator.add(epoch, reports.values, reports.counts)
            messages += reports.messages
        else:
            aggregator.add(epoch, reports, None)
            messages += len(reports)
        estimate = aggregator.estimate(epoch, attendance)
        truth = np.bincount(now, minlength=len(ITEMS) + 1)[1:]
        squares.append(np.square(estimate.values - truth).mean())
        said.append(estimate.standard_deviation**2)
    return float(np.sqrt(np.mean(squares))), float(np.sqrt(np.mean(said))), messages / USERS
