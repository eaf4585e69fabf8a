"""Learns the digits of MNIST by ldp_sgd: how accurate, for which epsilon, and who is told.

    python -m pipeline.simulation.experiments.learn_mnist FOLDER [--seeds N]

FOLDER holds the four idx files of MNIST, as .gz; examples are those of `prepare_mnist`. For steps
of 1,000, 2,000 and 4,000 of 60,000 devices with one report each, and of 2,000 with one, two and
five, it prints the central epsilon (delta 1e-5), the accuracy on all 10,000 digits of the test set,
and how well it can be told from the model who was learnt from (`pipeline.simulation.membership`).
Devices and aggregator run without the pipeline in between, which changes no report.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregators.linear_models import accuracy, losses
from pipeline.protocols.protocol import LearningAggregator, LearningDevices
from pipeline.protocols.registry import PROTOCOLS
from pipeline.simulation.experiments.prepare_mnist import FEATURES, features, read_digits
from pipeline.simulation.membership import membership
from randomizers.counted_words import written_out
from randomizers.guarantee import Guarantee
from randomizers.labelled_examples import FEATURE_UNIT
from randomizers.randomness import seeded_generator

CLASSES = 10
EPSILON = 1.9
"""Of a report by itself."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to learn.

    Attributes:
        groups: that take turns.
        reports: of a device in a step.
        steps: how many.
        rate: of a step.
    """

    groups: int
    reports: int
    steps: int
    rate: float = 1.0


SETTINGS = (
    Setting(60, 1, 600),
    Setting(30, 1, 300),
    Setting(30, 1, 900),
    Setting(15, 1, 150),
    Setting(15, 1, 450),
    Setting(30, 2, 300, 1.5),
    Setting(30, 5, 300, 2.0),
)


def examples_of(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What is learnt from, and the test set, both as `ExampleDomain` has them."""
    held, held_classes = read_digits(folder, "t10k")
    learnt, classes = read_digits(folder, "train")
    mean = held.mean(axis=0)
    sets = ((learnt, classes), (held, held_classes))
    learnt_from, tested = (_whole(features(digits, mean), of) for digits, of in sets)
    return learnt_from, tested


def _whole(rows: NDArray[np.float64], classes: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.column_stack([1 + classes, np.rint(FEATURE_UNIT * rows)]).astype(np.int64)


def learn(
    examples: NDArray[np.int64], setting: Setting, seed: int
) -> tuple[Guarantee, NDArray[np.float64]]:
    """What is promised, and the model after the last step."""
    users, protocol = len(examples), PROTOCOLS["ldp_sgd"]
    asked = protocol.parameters(
        EPSILON,
        1e-5,
        FEATURES,
        CLASSES,
        rate=setting.rate,
        groups=setting.groups,
        reports=setting.reports,
    )
    law = protocol.calibrate(asked, setting.steps, users // setting.groups)
    devices, aggregator = protocol.randomizer(law), protocol.aggregator(law, asked)
    assert isinstance(devices, LearningDevices)
    assert isinstance(aggregator, LearningAggregator)
    rng = seeded_generator(seed)
    devices.enrol(users, rng)
    groups = np.arange(users) % setting.groups
    for epoch in range(1, setting.steps + 1):
        devices.take_model(aggregator.model(epoch - 1))
        at_turn = groups == epoch % setting.groups
        aggregator.add(epoch, written_out(devices.report(epoch, examples, at_turn, rng)), None)
    return devices.guarantee, aggregator.model(setting.steps)


def rows(folder: Path, seeds: int) -> Iterator[str]:
    """The table, line by line."""
    learnt_from, tested = examples_of(folder)
    yield (
        f"{'devices':>7} {'reports':>7} {'steps':>5} {'epsilon':>7} {'alone':>6} {'accuracy':>17} "
        f"{'TPR-FPR':>8} {'by chance':>9} {'epsilon at least':>16}"
    )
    for setting in SETTINGS:
        found, told = [], []
        for seed in range(seeds):
            guarantee, model = learn(learnt_from, setting, seed)
            found.append(100 * accuracy(model, tested, CLASSES))
            of_both = (losses(model, each, CLASSES) for each in (learnt_from, tested))
            told.append(membership(*of_both))
        worst = max(told, key=lambda each: each.advantage)
        alone = EPSILON * setting.reports * -(-setting.steps // setting.groups)
        yield (
            f"{len(learnt_from) // setting.groups:7,} {setting.reports:7} {setting.steps:5} "
            f"{guarantee.stream_epsilon:7.3f} "
            f"{alone:6.1f} {f'{min(found):.1f} to {max(found):.1f} %':>17} {worst.advantage:8.4f} "
            f"{worst.uncertainty:9.4f} {worst.epsilon:16.4f}"
        )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Learn MNIST by ldp_sgd.")
    parser.add_argument("folder", type=Path, help="with the four idx files, as .gz")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each setting (%(default)s)")
    arguments = parser.parse_args()
    for row in rows(arguments.folder, arguments.seeds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
