"""Jobs of every kind for the live page, with artificial estimates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpstream.aggregators.crowd_estimates import SUPPRESSED, CrowdEstimate, CrowdEstimates
from dpstream.aggregators.estimate import GAP, Estimate
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.level_estimates import LevelEstimates
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.measure_rows import rows_of

COUNT = (
    "name: count\nprotocol: future_rand\nparameters: {epsilon: 2, max_changes: 2}\n"
    "epochs: {count: 12}\ntopics: {partitions: 2}\n"
)
MODES = (
    "name: modes\nprotocol: hadamard_values\n"
    "parameters: {epsilon: 8, max_changes: 1, domain: [walk, 'bus, or tram', car]}\n"
    "epochs: {count: 12, start: 2024-01-01, length: P1D}\n"
    "population: town\nbudget: {epsilon: 20}\n"
)
HOURS = (
    "name: hours\nprotocol: range_values\n"
    "parameters: {epsilon: 8, max_changes: 1, low: 0, high: 80, buckets: 8}\n"
    "epochs: {count: 12}\n"
)
WORDS = (
    "name: words\nprotocol: count_min\n"
    "parameters: {epsilon: 1, delta: 1e-6, domain: {bits: 24}, items: 1}\n"
    "epochs: {count: 12}\nshuffle: {minimum: 40000}\n"
)
FRUIT = (
    "name: fruit\nprotocol: fragments\n"
    "parameters: {epsilon: 1, delta: 1e-4, domain: [fig, kiwi], PARAMETERS}\n"
    "epochs: {count: 6}\nshuffle: {minimum: 2000}\n"
)

MEASURED = """
name: app
title: Active users
epochs: {count: 12, start: 2026-06-01, length: P1W}
parameters: {epsilon: 4}
measures:
  wau: {type: active}
  mau: {type: active, within: 4}
  minutes: {type: sum, number: duration, mean: {low: 0, high: 60}}
attributes:
  platform: {values: [ios, android, web], public: true}
  plan: {values: [free, pro], public: true}
by: [platform, [platform, plan]]
ratios: {stickiness: {numerator: wau, denominator: mau}}
"""
CELLS = """
name: retention
epochs: {count: 12, start: 2026-06-01, length: P1W}
trust: shuffle
parameters: {epsilon: 1, delta: 1.0e-6}
shuffle: {minimum: 50000}
measures: {used: {type: active, event: search}}
attributes: {plan: {values: [free, pro]}}
by: [plan]
"""


def count(value: float | None, *flags: str) -> Estimate:
    if value is None:
        return Estimate(None, None, None, None, 0, 100, flags)
    return Estimate(value, 5.0, value - 9.8, value + 9.8, 80, 100, flags)


def gap(value: float) -> Estimate:
    """Return a count whose epoch has a gap."""
    return count(value, GAP)


def items(*values: float, flags: tuple[str, ...] = ()) -> ItemEstimates:
    return ItemEstimates(np.array(values, np.float64), 5.0, 9.8, 80, 100, flags)


def numbers(*values: float) -> LevelEstimates:
    return LevelEstimates.of_values(items(*values))


def found(**values: float) -> HeavyHitters:
    """Return the most frequent items, largest first; ``i17=40.0`` is item 17."""
    return HeavyHitters(
        np.array([int(name[1:]) for name in values], np.int64),
        np.array(list(values.values()), np.float64),
        5.0, 9.8, 30.0, 80, 100,
    )  # fmt: skip


def panels(job: DeployedJob, values: Mapping[str, float], *flags: str) -> PanelEstimates:
    """Return estimates of a job's rows by label: 0 if missing, suppressed if NaN.

    Standard errors are 10 users or, for means, 0.5; half of 1,000 users are in each group.
    """
    rows = rows_of(job)
    numbers = np.array([values.get(row.label, 0.0) for row in rows])
    assert set(values) <= {row.label for row in rows}
    deviations = np.array([0.5 if row.measure == "minutes" else 10.0 for row in rows])
    sizes = np.array([500.0 if row.attributes else 1_000.0 for row in rows])
    heads = sizes.astype(np.int64) // 2
    deviations[np.isnan(numbers)] = np.nan
    return PanelEstimates(numbers, deviations, sizes, heads, 900, 1_000, flags)


def crowds(*sizes_and_items: tuple[float, ...] | None) -> CrowdEstimates:
    """Return the size and item counts of each crowd; None for a suppressed crowd."""
    found = tuple(
        None if each is None else CrowdEstimate(50, count(each[0]), items(*each[1:]))
        for each in sizes_and_items
    )
    flags = (SUPPRESSED,) if None in found else ()
    return CrowdEstimates(found, 2, 80, 100, flags)
