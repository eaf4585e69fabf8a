"""Learn the digits of MNIST by ldp_sgd: accuracy, epsilon and membership inference.

    python -m experiments.learn_mnist FOLDER [--seeds N] [--picture PNG]

FOLDER contains the four IDX files of MNIST, as .gz; examples are made as in `prepare_mnist`. Each
step uses 1,000, 2,000 or 4,000 of 60,000 devices with one report each, or 2,000 devices with two or
five reports each. The program prints, for each setting, the central epsilon (delta 1e-5), the
accuracy on all 10,000 digits of the test set, and the success of membership inference
(`evaluation.membership`).

With ``--picture``, each model is instead trained once, for longer, and is measured during training.
The picture shows the accuracy by central epsilon, up to 5 and beyond. It also shows the accuracy in
Table XII of "Encode, Shuffle, Analyze Privacy Revisited". That paper's model is a network of about
26,000 weights; the model here is linear, with 650 numbers.

Devices and aggregator run without the pipeline between them, which would not change any report.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.plots import INSTALL, PlotError, tidy
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.randomness import seeded_generator
from experiments.evaluation.membership import membership
from experiments.evaluation.plots import COLORS
from experiments.prepare_mnist import FEATURES, features, read_digits
from experiments.protocols.ldp_sgd import LdpSgd, LdpSgdLaw, LdpSgdParameters
from experiments.protocols.ldp_sgd.aggregator import LdpSgdAggregator, accuracy, losses
from experiments.protocols.ldp_sgd.calibration import calibrate
from experiments.protocols.ldp_sgd.labeled_examples import FEATURE_UNIT

CLASSES = 10
EPSILON = 1.9
"""Epsilon of a single report."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Training setup: groups of devices taking turns, reports per step, steps, learning rate."""

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

CURVES = (
    Setting(60, 1, 3_000),
    Setting(30, 1, 9_000),
    Setting(15, 1, 3_000),
    Setting(30, 2, 3_600, 1.5),
    Setting(30, 5, 1_080, 2.0),
)
PAPER = {(30, 1): (84.2, 88.9, 89.1), (30, 2): (85.8, 92.0, 93.0), (30, 5): (80.5, 91.2, 93.9)}
"""Accuracy (%) of the paper's network at `PAPER_EPSILONS`, by groups and reports (Table XII)."""
PAPER_EPSILONS = (5.0, 10.0, 18.0)


def examples_of(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the training set and the test set as rows of a class and features."""
    held, held_classes = read_digits(folder, "t10k")
    learned, classes = read_digits(folder, "train")
    mean = held.mean(axis=0)
    sets = ((learned, classes), (held, held_classes))
    learned_from, tested = (_whole(features(digits, mean), of) for digits, of in sets)
    return learned_from, tested


def _whole(rows: NDArray[np.float64], classes: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.column_stack([1 + classes, np.rint(FEATURE_UNIT * rows)]).astype(np.int64)


def learn(
    examples: NDArray[np.int64], setting: Setting, seed: int
) -> tuple[Guarantee, NDArray[np.float64]]:
    ((guarantee, model),) = learn_until(examples, setting, (setting.steps,), seed)
    return guarantee, model


def learn_until(
    examples: NDArray[np.int64], setting: Setting, stops: Sequence[int], seed: int
) -> Iterator[tuple[Guarantee, NDArray[np.float64]]]:
    """Yield the guarantee and the model after each of the given steps, in ascending order."""
    users, requested = len(examples), _parameters_of(setting)

    def law_of(steps: int) -> LdpSgdLaw:
        return calibrate(requested, steps, users // setting.groups)

    law = law_of(stops[-1])
    devices, aggregator = LdpSgd(law), LdpSgdAggregator(law)
    rng = seeded_generator(seed)
    devices.enroll(users, rng)
    groups = np.arange(users) % setting.groups
    for epoch in range(1, stops[-1] + 1):
        devices.take_model(aggregator.model(epoch - 1))
        at_turn = groups == epoch % setting.groups
        aggregator.add(epoch, devices.report(epoch, examples, at_turn, rng), None)
        if epoch in stops:
            # The guarantee if training stops here; draws of devices are the same for every horizon.
            yield LdpSgd(law_of(epoch)).guarantee, aggregator.model(epoch)


def _parameters_of(setting: Setting) -> LdpSgdParameters:
    return LdpSgdParameters(
        EPSILON,
        1e-5,
        FEATURES,
        CLASSES,
        rate=setting.rate,
        groups=setting.groups,
        reports=setting.reports,
    )


def rows(folder: Path, seeds: int) -> Iterator[str]:
    learned_from, tested = examples_of(folder)
    yield (
        f"{'devices':>7} {'reports':>7} {'steps':>5} {'epsilon':>7} {'alone':>6} {'accuracy':>17} "
        f"{'TPR-FPR':>8} {'by chance':>9} {'epsilon at least':>16}"
    )
    for setting in SETTINGS:
        found, memberships = [], []
        for seed in range(seeds):
            guarantee, model = learn(learned_from, setting, seed)
            found.append(100 * accuracy(model, tested, CLASSES))
            of_both = (losses(model, each, CLASSES) for each in (learned_from, tested))
            memberships.append(membership(*of_both))
        worst = max(memberships, key=lambda each: each.advantage)
        alone = EPSILON * setting.reports * -(-setting.steps // setting.groups)
        yield (
            f"{len(learned_from) // setting.groups:7,} {setting.reports:7} {setting.steps:5} "
            f"{guarantee.stream_epsilon:7.3f} "
            f"{alone:6.1f} {f'{min(found):.1f} to {max(found):.1f} %':>17} {worst.advantage:8.4f} "
            f"{worst.uncertainty:9.4f} {worst.epsilon:16.4f}"
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurement during training: central epsilon so far, accuracy (%), membership advantage."""

    steps: int
    epsilon: float
    accuracy: float
    advantage: float


def measured_until(
    learned_from: NDArray[np.int64],
    tested: NDArray[np.int64],
    setting: Setting,
    stops: Sequence[int],
) -> Iterator[Measured]:
    learned = learn_until(learned_from, setting, stops, seed=1)
    for steps, (guarantee, model) in zip(stops, learned, strict=True):
        assert guarantee.stream_epsilon is not None
        of_both = (losses(model, each, CLASSES) for each in (learned_from, tested))
        yield Measured(
            steps,
            guarantee.stream_epsilon,
            100 * accuracy(model, tested, CLASSES),
            membership(*of_both).advantage,
        )


def stops_of(setting: Setting) -> tuple[int, ...]:
    """Return step numbers that grow by a factor of 1.5, each after a full round of all groups."""
    turns = setting.steps // setting.groups
    found = {turns}
    while turns > 1:
        turns = int(turns / 1.5)
        found.add(max(1, turns))
    return tuple(setting.groups * each for each in sorted(found))


def draw_curves(found: dict[Setting, list[Measured]], users: int, path: Path) -> None:
    """Plot accuracy by central epsilon, compared with the paper's."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError(f"no plots without matplotlib: {INSTALL}") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for number, (setting, points) in enumerate(found.items()):
        label = f"{users // setting.groups:,} devices, {setting.reports} report(s) each"
        color, marker = COLORS[number], "osD^v"[number]
        x, y = [one.epsilon for one in points], [one.accuracy for one in points]
        axes.plot(x, y, color=color, marker=marker, markersize=4, label=label)
        if published := PAPER.get((setting.groups, setting.reports)):
            axes.plot(
                PAPER_EPSILONS,
                published,
                color=color,
                marker=marker,
                markersize=8,
                markerfacecolor="white",
                linestyle=":",
                label=f"the paper's neural network, {setting.reports * 2000:,} reports",
            )
    axes.set_xscale("log")
    axes.set_xticks([0.2, 0.5, 1, 2, 5, 10, 18], ["0.2", "0.5", "1", "2", "5", "10", "18"])
    axes.minorticks_off()
    axes.set_xlabel("central epsilon of all steps (delta 1e-5)")
    axes.set_ylabel("accuracy on the test set, %")
    axes.set_ylim(60, 100)
    axes.set_title(
        "MNIST, learned with ldp_sgd: a linear model of 650 numbers", loc="left", fontsize=11
    )
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    tidy(axes)
    figure.savefig(path, dpi=110)


def curve_rows(folder: Path, picture: Path) -> Iterator[str]:
    learned_from, tested = examples_of(folder)
    found: dict[Setting, list[Measured]] = {}
    headings = ("devices", "reports", " steps", "epsilon", "accuracy", " TPR-FPR")
    yield " ".join(headings)
    for setting in CURVES:
        found[setting] = []
        for one in measured_until(learned_from, tested, setting, stops_of(setting)):
            found[setting].append(one)
            yield (
                f"{len(learned_from) // setting.groups:7,} {setting.reports:7} {one.steps:6,} "
                f"{one.epsilon:7.3f} {one.accuracy:6.1f} % {one.advantage:8.4f}"
            )
    draw_curves(found, len(learned_from), picture)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn MNIST with ldp_sgd.")
    parser.add_argument("folder", type=Path, help="folder with the four IDX files, as .gz")
    parser.add_argument("--seeds", type=int, default=3, help="runs per setting (%(default)s)")
    parser.add_argument("--picture", type=Path, help="train for longer and plot to this PNG file")
    arguments = parser.parse_args()
    found = (
        rows(arguments.folder, arguments.seeds)
        if arguments.picture is None
        else curve_rows(arguments.folder, arguments.picture)
    )
    for row in found:
        print(row, flush=True)


if __name__ == "__main__":
    main()
