"""Heavy hitters as in "Encode, Shuffle, Analyze Privacy Revisited", Section VII-A and Table I.

    python -m experiments.esa_heavy_hitters [--users N] [--no-sketch]

The paper's data about users of a browser are not public. As in the paper, each of 203,950,512 users
has one of 1,778,120 items, drawn from a power law p(x) ~ x^-1.35. A tenth of the users have one of
100 equally frequent heavy items instead.

For the central epsilons of Table I (delta 5e-10, neighbors by removal) the program prints the
losses of a report, the messages per user, and how many of the 10,000 most frequent items are among
the 10,000 largest estimates. It compares fragments with published and with exact odds, fragments
with published odds and 4, 16 and 256 reports, the sketch, and a curator. The sketch uses published
odds, which assume that messages of all rows hide each other. In fact, only messages of the same row
hide each other.

A job cannot have this many items. Instead of running devices, stages and an aggregator, the program
draws the number of messages in each cell from a binomial distribution.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting.amplification import amplified_epsilon, of_randomized_response
from dpstream.randomizers.pairwise_hash import PairwiseHash
from dpstream.randomizers.randomness import seeded_generator
from experiments.evaluation.curator import exact_deviation, published_deviation
from experiments.protocols.fragments.calibration import loss_of_report, published_loss

USERS: Final = 203_950_512
ITEMS: Final = 1_778_120
HEAVY: Final = 100
HEAVY_SHARE: Final = 0.1
EXPONENT: Final = 1.35
DELTA: Final = 5e-10
EPSILONS: Final = (0.0025, 0.01, 0.05, 0.25, 1.0)
REPORTS: Final = (4, 16, 256)
WANTED: Final = 10_000

ROWS, BUCKETS = 1 << 10, 1 << 16
"""Rows and buckets of the sketch, as in the paper."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Losses:
    """A row of Table I.

    Attributes:
        epsilon: Central epsilon.
        sigma: Standard deviation of a curator's Gaussian noise, as published.
        loss: Loss per bit, by the published formula.
        of_one: Loss per bit to an observer of one report per device, by reports per device.
        of_all: Loss per bit to an observer of all reports, by reports per device.
        messages: Mean number of messages per user, one for each bit that is 1.
        sketched: Mean number of messages per user for the sketch.
    """

    epsilon: float
    sigma: float
    loss: float
    of_one: dict[int, float]
    of_all: dict[int, float]
    messages: float
    sketched: float


def losses(epsilon: float, users: int = USERS, items: int = ITEMS) -> Losses:
    """Compute a row of Table I from the published formulas.

    >>> row = losses(1.0)
    >>> round(row.sigma, 2), round(row.loss, 2), round(row.of_one[4], 2), round(row.messages, 2)
    (4.66, 12.99, 11.38, 5.07)
    """
    loss = published_loss(epsilon, DELTA, users)
    reversed_ = 1 / (1 + math.exp(loss))
    parts = {reports: loss_of_report(loss, reports) for reports in REPORTS}
    return Losses(
        epsilon,
        published_deviation(epsilon, DELTA),
        loss,
        {reports: exposure(loss, part) for reports, part in parts.items()},
        {reports: exposure(loss, reports * part) for reports, part in parts.items()},
        reversed_ * (items - 1) + 1 - reversed_,
        reversed_ * (BUCKETS - 1) + 1 - reversed_,
    )


def exposure(backstop: float, seen: float) -> float:
    """Return the visible loss of a bit, ln((e^(b + f) + 1) / (e^b + e^f)) (Theorem IV.1)."""
    return float(np.logaddexp(backstop + seen, 0.0) - np.logaddexp(backstop, seen))


def exact_loss(epsilon: float, users: int) -> float:
    """Return the largest loss per bit for a central `epsilon`, with neighbors by removal."""
    low, high = published_loss(epsilon, DELTA, users), math.log(users)
    while high - low > 1e-3:
        middle = (low + high) / 2
        hidden = amplified_epsilon(of_randomized_response(middle, 2), users, DELTA)
        low, high = (middle, high) if hidden <= epsilon else (low, middle)
    return low


def histogram(users: int, items: int, rng: np.random.Generator) -> Counts:
    """Draw the number of users per item, shape (items,): power-law items, then heavy ones."""
    weights = np.arange(1, items - HEAVY + 1, dtype=np.float64) ** -EXPONENT
    shares = np.concatenate(
        [weights * ((1 - HEAVY_SHARE) / weights.sum()), np.full(HEAVY, HEAVY_SHARE / HEAVY)]
    )
    return rng.multinomial(users, shares)


def reversed_with(loss: float) -> float:
    """Return the probability that a bit is reversed, given odds of e^-loss."""
    return 1 / (1 + math.exp(loss))


def sent(ones: Counts, users: int, loss: float, rng: np.random.Generator) -> Counts:
    """Draw the number of ones in each cell after random flips; each user has one bit per cell."""
    reversed_ = reversed_with(loss)
    return rng.binomial(ones, 1 - reversed_) + rng.binomial(users - ones, reversed_)


def estimated(ones: Counts | NDArray[np.float64], users: int, loss: float) -> NDArray[np.float64]:
    """Estimate each cell's number of 1 bits before reversal."""
    reversed_ = reversed_with(loss)
    return np.asarray((ones - users * reversed_) / (1 - 2 * reversed_), np.float64)


def fragments(
    ground_truth: Counts, users: int, loss: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Estimate the user counts of all items from a message for each bit that is 1."""
    return estimated(sent(ground_truth, users, loss, rng), users, loss)


def reports(
    ground_truth: Counts, users: int, loss: float, number: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Estimate the number of users with every item from `number` reports per permanent bit."""
    of_report, behind = loss_of_report(loss, number), sent(ground_truth, users, loss, rng)
    # A bit's reports are independent and identically distributed, like reports of more bits.
    received = sent(number * behind, number * users, of_report, rng) / number
    return estimated(estimated(received, users, of_report), users, loss)


def sketches(
    ground_truth: Counts, losses_of: list[float], rng: np.random.Generator
) -> list[NDArray[np.float64]]:
    """Estimate all counts from a count-mean sketch; each user draws one row for all losses."""
    users, items = int(ground_truth.sum()), np.arange(1, len(ground_truth) + 1)
    held = np.repeat(np.arange(len(ground_truth), dtype=np.int32), ground_truth)
    rng.shuffle(held)
    ends = np.cumsum(rng.multinomial(users, np.full(ROWS, 1 / ROWS)))
    inside = [np.zeros(len(ground_truth)) for _ in losses_of]
    for row, of_row in enumerate(np.split(held, ends[:-1])):
        buckets = PairwiseHash.of(f"sketch of {len(ground_truth)}, row {row}").buckets(
            items, BUCKETS
        )
        ones = np.bincount(buckets[of_row], minlength=BUCKETS).astype(np.int64)
        for total, loss in zip(inside, losses_of, strict=True):
            total += sent(ones, len(of_row), loss, rng)[buckets]
    return [
        BUCKETS / (BUCKETS - 1) * (estimated(total, users, loss) - users / BUCKETS)
        for total, loss in zip(inside, losses_of, strict=True)
    ]


def found(estimates: NDArray[np.float64], ground_truth: Counts, target: int) -> tuple[int, float]:
    """Return how many of the top `target` items are among the largest estimates, and the RMSE."""
    most = np.argsort(-ground_truth, kind="stable")[:target]
    largest = np.argsort(-estimates, kind="stable")[:target]
    error = math.sqrt(float(np.square(estimates - ground_truth).mean()))
    return len(np.intersect1d(most, largest)), error


def rows(users: int, items: int, target: int, *, with_sketch: bool) -> Iterator[str]:
    table = [losses(epsilon, users, items) for epsilon in EPSILONS]
    yield (
        f"{'epsilon':>7} {'sigma':>9} {'loss':>6} {'to one of 4, 16, 256':>20} {'to all':>19} "
        f"{'messages':>12} {'of sketch':>9}"
    )
    for row in table:
        ones, alls = (
            " ".join(f"{each:5.2f}" for each in losses_.values())
            for losses_ in (row.of_one, row.of_all)
        )
        yield (
            f"{row.epsilon:7g} {row.sigma:9.2f} {row.loss:6.3f} {ones:>20} {alls:>19} "
            f"{row.messages:12,.2f} {row.sketched:9,.2f}"
        )
    rng = seeded_generator(1)
    ground_truth = histogram(users, items, rng)
    last = int(np.sort(ground_truth)[-target])
    yield f"{users:,} users, {items:,} items; item {target:,} has {last:,} users"
    yield f"{'epsilon':>7} {'':30} {'loss':>6} {f'of {target:,}':>10} {'RMSE':>10}"
    sketched = (
        sketches(ground_truth, [row.loss for row in table], seeded_generator(2))
        if with_sketch
        else []
    )
    for place, row in enumerate(table):
        exact = exact_loss(row.epsilon, users)
        deviations = row.sigma, exact_deviation(row.epsilon, DELTA)
        measured = {
            "fragments, published": (row.loss, fragments(ground_truth, users, row.loss, rng)),
            **{
                f"the same, {each} reports": (
                    row.loss,
                    reports(ground_truth, users, row.loss, each, rng),
                )
                for each in REPORTS
            },
            "fragments, exact": (exact, fragments(ground_truth, users, exact, rng)),
            **({"sketch": (row.loss, sketched[place])} if with_sketch else {}),
            **{
                name: (math.nan, ground_truth + rng.normal(0, deviation, items))
                for name, deviation in zip(
                    ("curator as published", "curator, exact"), deviations, strict=True
                )
            },
        }
        for name, (loss, estimates) in measured.items():
            number, error = found(estimates, ground_truth, target)
            shown = "" if math.isnan(loss) else f"{loss:6.3f}"
            yield f"{row.epsilon:7g} {name:30} {shown:>6} {number:10,} {error:10,.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the heavy hitters of section VII-A.")
    parser.add_argument("--users", type=int, default=USERS, help="(%(default)s)")
    parser.add_argument("--items", type=int, default=ITEMS, help="(%(default)s)")
    parser.add_argument("--wanted", dest="target", type=int, default=WANTED, help="(%(default)s)")
    parser.add_argument("--no-sketch", action="store_true", help="skip the sketch (takes minutes)")
    chosen = parser.parse_args()
    for row in rows(chosen.users, chosen.items, chosen.target, with_sketch=not chosen.no_sketch):
        print(row, flush=True)


if __name__ == "__main__":
    main()
