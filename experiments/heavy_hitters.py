"""Compare the heavy hitters that several protocols find in an item log.

    python -m experiments.heavy_hitters LOG [--epsilon 1] [--seed 1]

LOG is the output of `prepare_words` or `prepare_retail --items 1`: a user has one item. Real
devices and aggregators run without topics between them. For each protocol the program prints the
number of items found, how many found items any user has, how many of the top 32 items are found,
and the root mean squared error over the top 32 or, in searches, over found items.

A search, the Bucket mechanism and sparse recovery list the items that they find. For protocols that
estimate every item, an item counts as found if its count is above 0 at simultaneous 95 % confidence
over the whole domain.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.count_min import CountMinParameters
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.projective_geometry import ProjectiveGeometryParameters
from dpstream.randomizers.randomness import seeded_generator
from experiments.preparation import labels_path, read_plain
from experiments.protocols.measurements import (
    BucketLaw,
    BucketParameters,
    Calibration,
    JlHhParameters,
    SparseRecoveryLaw,
    SparseRecoveryParameters,
)
from experiments.protocols.measurements.aggregator import most_named

DELTA: Final = 1e-6
BITS: Final = 24
"""Number of bits of the numbers by which a search identifies items."""

_SPREAD: Final = 0x9E3779B1
_TOGETHER: Final = 20_000

Columns = tuple[str, int, int, int, float | None]
"""Protocol, found items, found items of any user, found top items, RMSE."""


@dataclass(frozen=True, slots=True)
class Holders:
    """The item of each user (int64, from 1 on), and the labels of all items."""

    held: NDArray[np.int64]
    labels: tuple[str, ...]

    @classmethod
    def read(cls, log: Path) -> Holders:
        """Read an item log of one epoch, with its label file next to it."""
        labels = tuple(labels_path(log).read_text("utf-8").splitlines())
        numbers = {label: number for number, label in enumerate(labels, 1)}
        lines = read_plain(log).decode("utf-8").splitlines()[1:]
        return cls(np.array([numbers[line.split(",", 2)[2]] for line in lines]), labels)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of users per item, shape (items + 1,); 0 for item 0."""
        return np.bincount(self.held, minlength=len(self.labels) + 1)


def requested(labels: tuple[str, ...], epsilon: float) -> Iterator[tuple[str, str, Any]]:
    yield "count_min, prefixes", "count_min", CountMinParameters(epsilon, DELTA, Bits(BITS))
    yield "count_min", "count_min", CountMinParameters(epsilon, DELTA, labels)
    yield (
        "projective_geometry",
        "projective_geometry",
        ProjectiveGeometryParameters(epsilon, labels),
    )
    prefixes = ProjectiveGeometryParameters(epsilon, Bits(BITS))
    yield "projective_geometry, prefixes", "projective_geometry", prefixes
    kinds: tuple[Calibration, ...] = ("sampled", "published", "replacement")
    for calibration in kinds:
        parameters = JlHhParameters(epsilon, labels, DELTA, calibration=calibration)
        yield f"jl_hh, {calibration}", "jl_hh", parameters
    for calibration in kinds[:2]:
        bucket = BucketParameters(epsilon, labels, DELTA, calibration=calibration)
        yield f"bucket, {calibration}", "bucket", bucket
        sketch = SparseRecoveryParameters(epsilon, labels, DELTA, calibration=calibration)
        yield f"sparse_recovery, {calibration}", "sparse_recovery", sketch


def compare(name: str, protocol: str, parameters: Any, holders: Holders, seed: int) -> Columns:
    entry, users = PROTOCOLS[protocol], len(holders.held)
    law = entry.calibrate(parameters, 1, users)
    aggregator, rng = entry.aggregation.make(law, parameters), seeded_generator(seed)
    spread = _spread(len(holders.labels)) if isinstance(parameters.domain, Bits) else None
    for start in range(0, users, _TOGETHER):
        values = holders.held[start : start + _TOGETHER]
        devices = entry.randomizer(law)
        devices.enroll(len(values), rng)
        sent = values if spread is None else spread[values]
        words = devices.report(1, sent[:, None], None, rng)
        if isinstance(words, CountedMessages):
            aggregator.add(1, words.values, words.counts.astype(np.uint32))
        else:
            aggregator.add(1, words, None)
    everybody, counts = Participation.constant(1, users), holders.counts
    estimate: Any = aggregator.estimate(1, everybody)
    most = np.argsort(-counts, kind="stable")[:FOUND]
    if spread is None and isinstance(estimate, HeavyHitters):
        # Only part of a large domain is published; the aggregator has all estimates.
        known_of_all: Any = aggregator
        estimate = known_of_all.window([1], everybody).estimates.listed()
    if spread is not None:
        numbers = {int(number): item for item, number in enumerate(spread)}
        found = np.array([numbers.get(item, 0) for item in estimate.items.tolist()], np.int64)
        known = np.isin(found, most)
        errors = estimate.values[known] - counts[found[known]]
    else:
        found = _claimed(aggregator, estimate)
        errors = estimate.values[most - 1] - counts[most]
    held = int((counts[found] > 0).sum())
    among = int(np.isin(most, found).sum())
    error = float(np.sqrt(np.square(errors).mean())) if len(errors) else None
    return name, len(found), held, among, error


def _spread(items: int) -> NDArray[np.int64]:
    """Return a distinct number of `BITS` bits for each item, and 0 for no item."""
    return np.append(0, 1 + np.arange(1, items + 1) * _SPREAD % (1 << BITS)).astype(np.int64)


def _claimed(aggregator: Any, estimate: Any) -> NDArray[np.int64]:
    law = aggregator.law
    if isinstance(law, BucketLaw):
        item, votes = most_named(aggregator.named(1))
        return np.array([item] if 2 * votes > law.trials else [], np.int64)
    if isinstance(law, SparseRecoveryLaw):
        return np.asarray(aggregator.recovered(1), np.int64)
    return np.flatnonzero(estimate.values > estimate.simultaneous_half_width) + 1


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.heavy_hitters",
        description="Compare how many of the most frequent items protocols find.",
    )
    parser.add_argument("log", metavar="LOG", type=Path, help="an item log, .csv.gz")
    parser.add_argument("--epsilon", type=float, default=1.0, help="epsilon of every protocol (1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all noise (1)")
    chosen = parser.parse_args(arguments)
    holders = Holders.read(chosen.log)
    print("protocol | found | found, with users | of the top 32 | RMSE, users", flush=True)
    for name, protocol, parameters in requested(holders.labels, chosen.epsilon):
        _, found, held, among, error = compare(name, protocol, parameters, holders, chosen.seed)
        shown = "-" if error is None else f"{error:,.0f}"
        print(f"{name} | {found:,} | {held:,} | {among} | {shown}", flush=True)


if __name__ == "__main__":
    main()
