"""Error per item of one-time queries in several protocols at the same epsilon.

Protocols without a trusted party are compared with the lower bound of local protocols, and with
count_min, which trusts the shuffler.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import Participation
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.accounting.best_spaces import best_space, relative_variance
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.count_min import CountMinParameters
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.projective_geometry import ProjectiveGeometryParameters
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.row_errors import zipf_counts
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesParameters
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

USERS, ITEMS = 100_000, 1024
LABELS = tuple(map(str, range(ITEMS)))
TRIALS = 8
# For 1,024 items per trial: six standard deviations of the mean squared error, and the same again
# for the correlation between errors of different items.
WITHIN = 12 / math.sqrt(2 * TRIALS * ITEMS)


def least_deviation(epsilon: float) -> float:
    """Return the minimum standard deviation of a rare item's estimate over all local protocols."""
    return math.sqrt(USERS * 4 * math.exp(epsilon)) / math.expm1(epsilon)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_error_of_a_single_item_matches_the_prediction(epsilon: float) -> None:
    requested: dict[str, Any] = {
        "projective_geometry": ProjectiveGeometryParameters(epsilon, LABELS),
        "hadamard_values": HadamardValuesParameters(epsilon, 0, LABELS),
        "count_min": CountMinParameters(epsilon, 1e-6, LABELS),
    }
    rows, measured, planned = [], {}, {}
    for name, parameters in requested.items():
        entry = PROTOCOLS[name]
        law = entry.calibrate(parameters, 1, USERS)
        assert entry.planning is not None
        forecast = entry.planning.forecast(law, parameters, 1)
        planned[name] = float(forecast.standard_errors(USERS)[0])
        measured[name] = math.sqrt(
            np.mean([squared_error(name, law, parameters, trial) for trial in range(TRIALS)])
        )
        trust = entry.randomizer(law).guarantee.trust
        rows.append(
            [
                name,
                "none"
                if trust.startswith("none")
                else (
                    "the shuffler, to add its dummies, to shuffle, and to keep its noise key "
                    "secret; it"
                ),
                f"{planned[name]:.1f}",
                f"{measured[name]:.1f}",
            ]
        )
    rows.append(["no local protocol", "none", f"{least_deviation(epsilon):.1f}", ""])
    print_table(
        f"{ITEMS:,} items, {USERS:,} users, Zipf 1.1, epsilon {epsilon:g}: RMSE of an item",
        ["protocol", "trusted", "predicted", "measured"],
        rows,
    )
    for name, error in measured.items():
        assert error == pytest.approx(planned[name], rel=WITHIN), name
    ours = measured["projective_geometry"]
    assert ours < (1 + WITHIN) * math.sqrt(1.05) * least_deviation(epsilon)
    assert measured["count_min"] < ours < measured["hadamard_values"]


def squared_error(name: str, law: Any, parameters: Any, trial: int) -> float:
    entry, rng = PROTOCOLS[name], seeded_generator(1, trial)
    shares = zipf_counts(ITEMS, 1.0)
    held = 1 + np.random.default_rng(trial).choice(ITEMS, USERS, p=shares)
    devices, aggregator = entry.randomizer(law), entry.aggregation.make(law, parameters)
    devices.enroll(USERS, rng)
    values = held if entry.values(parameters).slots is None else held[:, None]
    reports = devices.report(1, values, None, rng)
    if isinstance(reports, CountedMessages):
        aggregator.add(1, reports.values, reports.counts)
    else:
        aggregator.add(1, reports, None)
    estimate: Any = aggregator.estimate(1, Participation.constant(1, USERS))
    ground_truth = np.bincount(held, minlength=ITEMS + 1)[1:]
    return float(np.square(estimate.values - ground_truth).mean())


def test_variances_exceed_the_minimum_by_at_most_five_percent() -> None:
    """Variances of a rare item's estimate are computed, not measured."""
    sizes = (10, 100, 1024, 1 << 16, 1 << 20)
    rows = []
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        odds = optimal(1, epsilon)
        spaces = [best_space(items, odds) for items in sizes]
        least = least_deviation(epsilon) ** 2 / USERS
        ratios = [float(relative_variance(space, odds)) / least for space in spaces]
        assert max(ratios) <= 1.05
        rows.append(
            [
                f"{epsilon:g}",
                *(
                    f"{ratio:.3f} ({space.order}, {space.coordinates})"
                    for ratio, space in zip(ratios, spaces, strict=True)
                ),
            ]
        )
    print_table(
        "variance over the least of local protocols for large domains (q, t)",
        ["epsilon", *(f"{items:,} items" for items in sizes)],
        rows,
    )


def test_open_domain_lists_all_items_above_the_threshold() -> None:
    """Items have random numbers; false positives are counted, too."""
    users, many, trials = 300_000, 5_000, 4
    rows, missed, false, listed = [], 0, 0, 0
    for epsilon, bits in ((1.0, 24), (2.0, 48), (4.0, 24), (4.0, 61)):
        requested = ProjectiveGeometryParameters(epsilon, Bits(bits))
        entry = PROTOCOLS["projective_geometry"]
        law: Any = entry.calibrate(requested, 1, users)
        correct, errors, above = [], [], []
        for trial in range(trials):
            drawn, rng = np.random.default_rng(trial), seeded_generator(2, trial)
            numbers = drawn.permutation(np.unique(drawn.integers(1, 1 << bits, 2 * many)))[:many]
            held = drawn.choice(many, users, p=zipf_counts(many, 1.0))
            devices, aggregator = entry.randomizer(law), entry.aggregation.make(law, requested)
            devices.enroll(users, rng)
            words: Any = devices.report(1, numbers[held][:, None], None, rng)
            aggregator.add(1, words, None)
            found: Any = aggregator.estimate(1, Participation.constant(1, users))
            counts = np.bincount(held, minlength=many)
            items = dict(zip(found.items.tolist(), found.values.tolist(), strict=True))
            places = {int(number): place for place, number in enumerate(numbers)}
            right = [item for item in items if item in places]
            sure = numbers[counts > found.detection_threshold].tolist()
            missed += len(set(sure) - set(right))
            false += len(items) - len(right)
            listed += len(items)
            correct.append(len(right))
            above.append(found.detection_threshold)
            errors += [
                (items[item] - counts[places[item]]) / found.standard_error for item in right
            ]
        rows.append(
            [
                f"{epsilon:g}",
                f"{bits}",
                f"{np.mean(correct):.1f}",
                f"{np.mean(above):,.0f}",
                f"{np.sqrt(np.square(errors).mean()):.2f}",
            ]
        )
        assert np.abs(errors).max() < 6
    print_table(
        f"open domains, {users:,} users, {many:,} items of Zipf 1.1",
        ["epsilon", "bits", "found", "certain above", "RMSE / stated standard error"],
        rows,
    )
    assert missed == 0
    assert false <= 0.05 * listed
