"""Heavy hitters of a domain too large to list: recall of the top 32 items over 20 runs.

Each of a million users has a 24-bit number; frequencies follow Zipf's law with exponent 1.1, and
the frequent numbers are random. Epsilon is 1 and delta 1e-6, with at most 6.5 messages per user.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.prefix_search import heavy_items
from dpstream.randomizers.accounting.prefix_levels import PrefixPlan, plan_prefixes
from dpstream.randomizers.cell_codes.prefixes import PrefixCells
from dpstream.randomizers.randomness import seeded_generator
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

USERS = 1_000_000
BITS = 24
TOP = 32
RUNS = 20
EXPONENT = 1.1
LEAST_RECALL = 0.96
MOST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Run:
    recall: float
    covered: float
    error: float
    deviation: float
    found: float
    seconds: float


def run(plan: PrefixPlan, seed: int, cumulative: NDArray[np.float64]) -> Run:
    rng = seeded_generator(seed)
    placed = rng.permutation(1 << BITS) + 1
    items = placed[np.searchsorted(cumulative, rng.random(USERS))]
    code = PrefixCells(plan.levels, seed=f"verify {seed}")
    cells = np.bincount(code.encode(items).ravel(), minlength=code.cells)
    cells += rng.poisson(plan.noise_mean, code.cells)

    started = time.perf_counter()
    answer = heavy_items(code, cells, plan.noise_mean, plan.noise_mean, USERS, TOP)
    return measured(answer, np.bincount(items), time.perf_counter() - started)


def measured(answer: HeavyHitters, counts: NDArray[np.int64], seconds: float) -> Run:
    ground_truth = np.argsort(-counts, kind="stable")[:TOP]
    values, lows, highs = answer.intervals
    held = counts[answer.items]
    above = np.flatnonzero(counts > answer.detection_threshold)
    return Run(
        recall=float(np.isin(ground_truth, answer.items).mean()),
        covered=float(((lows <= held) & (held <= highs)).mean()),
        error=float(np.median(np.abs(values - held))),
        deviation=answer.standard_error,
        found=float(np.isin(above, answer.items).mean()),
        seconds=seconds,
    )


@pytest.mark.parametrize("messages", [4.5, 6.5])
def test_search_recall_matches_the_plan(messages: float) -> None:
    plan = plan_prefixes(BITS, USERS, 1.0, 1e-6, messages)
    cumulative = np.cumsum(np.arange(1, (1 << BITS) + 1) ** -EXPONENT)
    cumulative /= cumulative[-1]
    runs = [run(plan, seed, cumulative) for seed in range(RUNS)]
    mean = {
        name: float(np.mean([getattr(one, name) for one in runs]))
        for name in ("recall", "covered", "error", "deviation", "found", "seconds")
    }
    print_table(
        f"{len(plan.levels)} levels, {plan.messages_per_user:.2f} messages a user, "
        f"{[(level.length, level.buckets) for level in plan.levels]}, "
        f"predicted: counts from {plan.smallest_found:.0f}, sd {plan.standard_error:.0f}",
        list(mean),
        [[f"{value:.4g}" for value in mean.values()]],
    )
    assert plan.messages_per_user <= messages
    assert mean["recall"] >= LEAST_RECALL
    assert mean["covered"] >= 0.93
    assert mean["found"] >= 0.95
    assert max(one.seconds for one in runs) < MOST_SECONDS
