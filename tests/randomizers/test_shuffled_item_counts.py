"""Test shuffled item counts over time: messages of a device, and calibrated constants.

If the shuffler adds the dummies, devices send only real messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from dpstream.randomizers.accounting.item_streams import ItemReports
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import (
    ShuffledItemCounts,
    ShuffledItemCountsLaw,
)
from dpstream.randomizers.shuffled_counts.shuffled_item_counts.calibration import calibrate

DELTA = 1e-6
EPOCHS = 7
RNG = seeded_generator(0)
ITEMS = tuple("abc")
STAGE = CellNoiseLaw("shuffle", 100.0, 1)


def without_dummies(changes: int, boost: int, last_epoch: int = EPOCHS) -> ShuffledItemCountsLaw:
    """Use one bucket per item: i is the message about item i + 1, and i + 3 about leaving it."""
    left = STAGE if boost else None
    return ShuffledItemCountsLaw(last_epoch, 3, 1.0, DELTA, changes, boost, 3, STAGE, left)


def sent(law: ShuffledItemCountsLaw, items: Sequence[int]) -> list[Counter[int]]:
    device = ShuffledItemCounts(law)
    device.enroll(1, RNG)
    return [
        Counter(written_out(device.report(epoch, np.array([item]), None, RNG))[:, 0].tolist())
        for epoch, item in enumerate(items, 1)
    ]


@pytest.mark.parametrize(("changes", "boost"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_messages_of_two_streams_differ_by_at_most_the_assumed_shifts(
    changes: int, boost: int
) -> None:
    last_epoch = 3
    law = without_dummies(changes, boost, last_epoch)
    reports = ItemReports(last_epoch, changes, boost, 0.0)
    streams = [sent(law, items) for items in product(range(4), repeat=last_epoch)]
    # The assumed shifts, in descending order, are at least the actual shifts.
    bounds = [
        sorted((n for n, epochs in stated.items() for _ in range(epochs)), reverse=True)
        for stated in (reports.plus, reports.minus)
    ]
    for one, other in combinations(streams, 2):
        for more, less in ((one, other), (other, one)):
            for kind, bound in enumerate(bounds):
                shifts = sorted(
                    (
                        count
                        for mine, theirs in zip(more, less, strict=True)
                        for word, count in (mine - theirs).items()
                        if word // 3 == kind
                    ),
                    reverse=True,
                )
                assert len(shifts) <= len(bound)
                assert all(found <= stated for found, stated in zip(shifts, bound, strict=False))


def test_boost_is_rejected_if_items_share_buckets() -> None:
    law = without_dummies(2, 2)
    with pytest.raises(ValueError, match="boost is 2; expected 0 for items that share buckets"):
        replace(law, buckets=2)


def test_dummies_are_uniform_over_messages_of_each_kind() -> None:
    requested = ShuffledCountsParameters(1.0, DELTA, 2, 2, domain=ITEMS, cells="count_min")
    law = calibrate(requested, EPOCHS, minimum=500)
    devices = ShuffledItemCounts(law)
    devices.enroll(1_000, RNG)
    counts = np.bincount(
        written_out(devices.report(1, np.zeros(1_000, np.int64), None, RNG))[:, 0], minlength=6
    )
    assert law.left is not None
    means = 2 * np.repeat([law.held.mean, law.left.mean], 3)
    assert (np.abs(counts - means) < 8 * np.sqrt(means)).all()
    none_present = devices.report(2, np.ones(1_000, np.int64), np.zeros(1_000, np.bool_), RNG)
    assert len(written_out(none_present)) == 0


def test_table_errors_are_charged_for_the_actual_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[tuple[CellNoiseLaw, int]] = []
    monkeypatch.setattr(
        "dpstream.randomizers.shuffled_counts.shuffled_item_counts.calibration.check_tables",
        lambda epsilon, delta, cells: charged.extend(cells),
    )
    law = calibrate(ShuffledCountsParameters(1.0, 0.01, domain=ITEMS), EPOCHS, minimum=1000)
    ((noise, draws),) = charged
    assert noise.mean == pytest.approx(1000 * law.held.per_contributor(law.buckets))
    assert draws == len(law.noises) * EPOCHS


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        (
            {"max_changes": 2},
            ("a domain with 'max_changes' requires a cell for every item"),
        ),
        (
            {"max_changes": 2, "calibration": "rigorous"},
            ("a domain with 'max_changes' requires a cell for every item"),
        ),
        ({"dummies": "negative_binomial"}, "clusters"),
        ({"buckets": 12}, "prime"),
        (
            {"buckets": 7, "cells": "count_min"},
            "requires item labels with 'cells: balls_into_bins'",
        ),
        ({"cells": "hashes"}, "cells"),
        (
            {"domain": None, "buckets": 7},
            "'domain' is missing, but 'cells' and 'buckets' require it. Set 'domain', or",
        ),
        (
            {"domain": None, "cells": "count_min"},
            "'domain' is missing, but 'cells' and 'buckets' require it. Set 'domain', or",
        ),
    ],
)
def test_contradictory_parameters_are_rejected(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ShuffledCountsParameters(**{"epsilon": 1.0, "delta": DELTA, "domain": ITEMS, **parameters})


@pytest.mark.verify
def test_bucket_count_is_the_largest_within_the_message_limit() -> None:
    """The reference has 62 buckets for 10,000 items with 158 messages per user."""
    items = tuple(map(str, range(10_000)))

    def law(messages: float) -> ShuffledItemCountsLaw:
        requested = ShuffledCountsParameters(1.0, DELTA, messages_per_user=messages, domain=items)
        return calibrate(requested, 64, minimum=100_000)

    assert 150 < law(158).messages <= 158
    with pytest.raises(ValueError, match=r"allows 60: .*`dummies: shuffle`"):
        law(60)
