"""Continual counts in the shuffle model: real streams, and two sizes of user groups.

All messages except dummies are deterministic. The real devices compute them once; each trial adds
only the dummies that the devices would have sent, which is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.pipeline.demo import demo_change_log
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.cell_noise_law import dummies_in_cell
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsLaw, ShuffledCountsParameters
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

DELTA = 1e-6
STUDENT_SEEDS = 60
CROWDS = (100_000, 1_000_000)
CROWD_SEEDS = 600
CROWD_EPOCHS = 64
CROWD_CHANGES = 4


@dataclass(frozen=True, eq=False)
class Trials:
    """Errors and standard deviations of estimates, shape (seeds, epochs) each."""

    errors: NDArray[np.float64]
    deviations: NDArray[np.float64]

    @property
    def rmse(self) -> float:
        return root_mean_square(self.errors)

    @property
    def covered(self) -> float:
        """Fraction of 95 % confidence intervals that contain the ground truth."""
        return float((np.abs(self.errors) <= 1.96 * self.deviations).mean())

    @property
    def bias(self) -> float:
        """Root mean square over epochs of the error common to all trials, minus its noise."""
        means = self.errors.mean(axis=0)
        noise = self.errors.var(axis=0, ddof=1) / len(self.errors)
        return float(np.sqrt(max(0.0, (np.square(means) - noise).mean())))


@dataclass(frozen=True)
class Setting:
    """Job on the students' data, with its maximum error."""

    name: str
    parameters: Any
    most: float
    covers: bool = True


STUDENTS = [
    Setting("every epoch", ShuffledCountsParameters(1.0, DELTA), 58),
    Setting("boosted, k 4", ShuffledCountsParameters(1.0, DELTA, 4), 36),
    Setting("boosted, k 8", ShuffledCountsParameters(1.0, DELTA, 8), 41),
    Setting("every epoch, epsilon 4", ShuffledCountsParameters(4.0, DELTA), 17),
    Setting("boosted, k 4, epsilon 4", ShuffledCountsParameters(4.0, DELTA, 4), 12, covers=False),
]


def test_errors_on_student_data_are_below_the_maximum() -> None:
    rows, found = [], []
    log = load_change_log(demo_change_log(), last_epoch=170)
    streams = [values.astype(np.int8) for values in log.values_by_epoch()]
    for setting in STUDENTS:
        law = calibrated(setting.parameters, len(streams), len(log.users))
        trials = run(law, setting.parameters, streams, log.ground_truth(), STUDENT_SEEDS)
        planned = root_mean_square(deviations_planned(law, setting.parameters, len(log.users)))
        found.append((setting, trials, planned))
        rows.append(
            [
                setting.name,
                f"{setting.most:.0f}",
                f"{trials.rmse:.1f}",
                f"{planned:.1f}",
                f"{trials.bias:.1f}",
                f"{trials.covered:.1%}",
            ]
        )
    print_table(
        f"OULAD weeks: {len(log.users):,} students, minimum the same, delta {DELTA:g}, "
        f"{STUDENT_SEEDS} seeds",
        ["job", "at most", "RMSE", "planned noise", "bias", "coverage"],
        rows,
    )
    for setting, trials, planned in found:
        assert trials.rmse <= setting.most, setting
        if setting.covers:
            assert 0.93 <= trials.covered <= 0.97, setting
        # The noise is as planned; the remaining error is bias.
        noise = root_mean_square(trials.errors - trials.errors.mean(axis=0))
        assert 0.93 * planned <= noise <= 1.07 * planned, setting


CROWD_PARAMETERS = [
    ShuffledCountsParameters(1.0, DELTA),
    ShuffledCountsParameters(1.0, DELTA, CROWD_CHANGES),
]


@pytest.mark.parametrize("parameters", CROWD_PARAMETERS, ids=["every-epoch", "boosted"])
def test_errors_do_not_grow_with_the_number_of_users(parameters: Any) -> None:
    measured = []
    for users in CROWDS:
        streams = crowd(users)
        ground_truth = np.array([int(values.sum()) for values in streams])
        law = calibrated(parameters, CROWD_EPOCHS, users)
        measured.append(run(law, parameters, streams, ground_truth, CROWD_SEEDS))
    print_table(
        f"{type(parameters).__name__}, changes {parameters.max_changes}: {CROWD_SEEDS} seeds, "
        f"{CROWD_EPOCHS} epochs",
        ["users", "RMSE", "coverage"],
        [
            [f"{users:,}", f"{trials.rmse:.2f}", f"{trials.covered:.2%}"]
            for users, trials in zip(CROWDS, measured, strict=True)
        ],
    )
    small, large = (trials.rmse for trials in measured)
    assert 0.95 <= large / small <= 1.05
    assert all(0.94 <= trials.covered <= 0.96 for trials in measured)


@cache
def crowd(users: int) -> list[NDArray[np.int8]]:
    """Return values by epoch; each user changes up to four times at random epochs."""
    rng = np.random.default_rng(users)
    flips = np.zeros((CROWD_EPOCHS, users), np.int8)
    for _ in range(CROWD_CHANGES):
        flips[rng.integers(0, CROWD_EPOCHS, users), np.arange(users)] ^= 1
    return list(np.bitwise_xor.accumulate(flips, axis=0))


def calibrated(parameters: Any, last_epoch: int, users: int) -> Any:
    return protocol_of(parameters).calibrate(parameters, last_epoch, users)


def deviations_planned(law: Any, parameters: Any, users: int) -> NDArray[np.float64]:
    forecast = protocol_of(parameters).planning.forecast(law, parameters, law.last_epoch)
    planned: NDArray[np.float64] = forecast.standard_errors(users)
    return planned


def protocol_of(parameters: Any) -> Any:
    (found,) = (each for each in PROTOCOLS.values() if each.parameters is type(parameters))
    return found


def run(
    law: ShuffledCountsLaw,
    parameters: Any,
    streams: list[NDArray[np.int8]],
    ground_truth: NDArray[np.int64],
    seeds: int,
) -> Trials:
    """Run trials with all users present at every epoch."""
    protocol, users = protocol_of(parameters), len(streams[0])
    rng = seeded_generator(0)
    sent = reports_of(protocol.randomizer(law), streams, rng)
    drawn = seeded_generator(0)
    real = [
        table_of(law, reports) - dummies(law, epoch, users, drawn)
        for epoch, reports in enumerate(sent, 1)
    ]
    assert [messages.min() for messages in real] >= [0] * len(real)
    # Randomness is repeated, so that trials differ only in dummies.
    again = seeded_generator(1)
    for epoch, reports in enumerate(
        reports_of(protocol.randomizer(law), streams, seeded_generator(1)), 1
    ):
        expected = real[epoch - 1] + dummies(law, epoch, users, again)
        assert (table_of(law, reports) == expected).all()
    participation = Participation.constant(len(streams), users)
    errors, deviations = np.empty((2, seeds, len(streams)))
    for seed in range(seeds):
        rng = seeded_generator(2, seed)
        aggregator = protocol.aggregation.make(law, parameters)
        for epoch, messages in enumerate(real, 1):
            reports = CountedMessages.of_cells(
                messages + dummies(law, epoch, users, rng), law.message_format.dtype
            )
            aggregator.add(epoch, reports.values, reports.counts)
            estimate = aggregator.estimate(epoch, participation)
            errors[seed, epoch - 1] = estimate.value - ground_truth[epoch - 1]
            deviations[seed, epoch - 1] = estimate.standard_error
    return Trials(errors, deviations)


def reports_of(
    devices: Any, streams: list[NDArray[np.int8]], rng: np.random.Generator
) -> Iterable[CountedMessages]:
    devices.enroll(len(streams[0]), rng)
    for epoch, values in enumerate(streams, 1):
        yield devices.report(epoch, values, None, rng)


def table_of(law: Any, reports: CountedMessages) -> NDArray[np.int64]:
    table = np.zeros(law.message_format.distinct, np.int64)
    table[reports.values[:, 0]] = reports.counts
    return table


def dummies(
    law: ShuffledCountsLaw, epoch: int, users: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    return np.array([dummies_in_cell(law.noise.of_contributors(1), users, rng)], np.int64)


def root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(values).mean()))
