"""Ranges, quantiles and heavy hitters through the real devices and the state of their aggregator.

Epsilon 1, delta 10^-6, minimum = n; everything that is left open is chosen by the calibration.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.cell_window import CellWindow
from dpstream.aggregators.count_min import CountMinAggregator
from dpstream.aggregators.quantiles import quantile
from dpstream.randomizers.count_min import CountMin, CountMinLaw, CountMinParameters
from dpstream.randomizers.count_min.calibration import calibrate
from dpstream.randomizers.item_domains import Bits, ItemDomain, Numbers, Points
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.row_errors import zipf_counts
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

RUNS = 20
RANGES = 2_000
SIZE, SIDE = 1024, 64


def law_of(domain: ItemDomain, users: int, messages: float | None = None) -> CountMinLaw:
    parameters = CountMinParameters(1.0, 1e-6, domain, messages_per_user=messages)
    return calibrate(parameters, last_epoch=1, minimum=users)


def window(law: CountMinLaw, items: NDArray[np.int64], run: int) -> tuple[CellWindow, float]:
    """What is received of users with these items, and how many messages each has sent."""
    devices, aggregator = CountMin(law), CountMinAggregator(law)
    rng = seeded_generator(70, run)
    devices.enrol(len(items), rng)
    reports = devices.report(1, items[:, None], None, rng)
    words, counts = (
        (reports, None) if isinstance(reports, np.ndarray) else (reports.values, reports.counts)
    )
    aggregator.add(1, words, counts)
    sent = len(words) if counts is None else int(counts.sum())
    found = aggregator.window([1], Attendance.constant(1, len(items)))
    assert found is not None
    return found, sent / len(items)


def skewed(users: int, size: int, run: int) -> NDArray[np.int64]:
    rng = seeded_generator(71, run)
    shares = rng.beta(1.5, 4.0, users)
    shares[::10] = rng.random(len(shares[::10]))
    return (shares * size).astype(np.int64)


@pytest.mark.parametrize("users", [100_000, 1_000_000])
def test_ranges_and_quantiles(users: int) -> None:
    law = law_of(Numbers(0, 1, SIZE), users)
    errors, ranks, messages = [], [], []
    for run in range(RUNS):
        values = skewed(users, SIZE, run)
        found, sent = window(law, values + 1, run)
        before = np.insert(np.cumsum(np.bincount(values, minlength=SIZE)), 0, 0)
        ends = np.sort(seeded_generator(72, run).integers(0, SIZE + 1, (RANGES, 2)), axis=1)
        starts, stops = ends[ends[:, 0] < ends[:, 1]].T
        assert found.estimates.tree is not None
        estimates = np.insert(np.cumsum(found.estimates.tree.values), 0, 0.0)
        errors.append(
            np.abs(estimates[stops] - estimates[starts] - (before[stops] - before[starts])).mean()
        )
        for share in np.arange(1, 10) / 10:
            value = quantile(found.estimates.tree, float(share)).value
            low, high = before[value] / users, before[value + 1] / users
            ranks.append(max(low - share, share - high, 0.0))
        messages.append(sent)
    print_table(
        f"{SIZE:,} values, {RUNS} runs",
        ["users", "messages a user", "range error", "rank error"],
        [
            [
                f"{users:,}",
                f"{np.mean(messages):.1f}",
                f"{np.mean(errors):.1f}",
                f"{np.mean(ranks):.6f}",
            ]
        ],
    )
    assert np.mean(errors) <= 22
    assert np.mean(ranks) <= 0.001


def test_boxes_err_as_predicted() -> None:
    users = 100_000
    law = law_of(Points((SIDE, SIDE)), users, messages=30)
    errors = []
    for run in range(RUNS):
        points = np.stack([skewed(users, SIDE, 2 * run), skewed(users, SIDE, 2 * run + 1)])
        items = np.ravel_multi_index(tuple(points), (SIDE, SIDE)).astype(np.int64) + 1
        found, sent = window(law, items, run)
        assert sent <= 30
        truth = np.zeros((SIDE, SIDE))
        np.add.at(truth, tuple(points), 1)
        for corner in seeded_generator(73, run).integers(0, SIDE, (50, 2)):
            ends = np.minimum(corner + 20, SIDE)
            box = found.estimates.box(corner.tolist(), ends.tolist())
            exact = truth[corner[0] : ends[0], corner[1] : ends[1]].sum()
            assert box.value is not None
            assert box.standard_deviation is not None
            errors.append((box.value - exact) / box.standard_deviation)
    # Boxes of a run overlap: the thousand are worth about a hundred.
    assert np.square(errors).mean() == pytest.approx(1.0, abs=0.5)
    assert abs(np.mean(errors)) < 0.5


def test_heavy_hitters_of_24_bits() -> None:
    users, bits, top = 1_000_000, 24, 32
    law = law_of(Bits(bits), users, messages=6.5)
    shares = zipf_counts(1 << bits, 1.0)
    cumulated = np.cumsum(shares)
    recalls, seconds, messages = [], [], []
    for run in range(RUNS):
        rng = seeded_generator(74, run)
        ranks = np.searchsorted(cumulated, rng.random(users) * cumulated[-1])
        # Which item has which rank: a permutation of the numbers by an odd factor.
        factor = int(rng.integers(0, 1 << (bits - 1))) * 2 + 1
        offset = int(rng.integers(0, 1 << bits))
        items = (ranks.astype(np.int64) * factor + offset) % (1 << bits) + 1
        found, sent = window(law, items, run)
        began = time.process_time()
        listed = found.estimates.top(top)
        seconds.append(time.process_time() - began)
        held, counts = np.unique(items, return_counts=True)
        most = held[np.argsort(-counts, kind="stable")[:top]]
        recalls.append(np.isin(most, listed.items).mean())
        messages.append(sent)
    print_table(
        f"a million users, {bits} bits, {RUNS} runs",
        ["recall@32", "messages a user", "seconds to decode"],
        [[f"{np.mean(recalls):.3f}", f"{np.mean(messages):.2f}", f"{np.mean(seconds):.2f}"]],
    )
    assert np.mean(recalls) >= 0.96
    assert np.mean(messages) <= 6.5
