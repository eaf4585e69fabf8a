"""Errors of noise tables, and redraws that exceed the capacity, are charged to delta.

Tables differ from their distributions, and redraws are distributed differently from first draws.
Both are counted during a horizon of the minimum number of contributors, run together or one at a
time, and compared with the charges of the calibration.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.protocols.protocol import Example, Law
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.accounting.shifted_noise import delta_of_tables
from dpstream.randomizers.accounting.table_distances import FOR_TABLES, check_tables
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.dummies import Dummies
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.noise_tables import NoiseTable
from dpstream.randomizers.normal_noise import NormalNoise
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from experiments.protocols.fragments import FragmentsLaw, FragmentsParameters
from experiments.protocols.hadamard import HadamardParameters
from tests.conformance.cases import CASES, Case

ITEMS = ("a", "b", "c")
# Sums in a different order can differ in the last digits.
ROUNDING = 1e-9


@dataclass
class Seen:
    """Draws or charges.

    Attributes:
        distance: Sum over all draws from tables of the total variation distance to their
            distributions.
        rooms: Number of draws of dummies that could have exceeded the capacity.
    """

    distance: float = 0.0
    rooms: float = 0.0


def with_dummies() -> Iterator[tuple[Case, Any]]:
    """Yield cases that rely on the shuffler, with and without shuffler dummies if possible.

    Sketches with rows are omitted: they are charged for one row's minimum number of contributors,
    while the actual number in a row is random.
    """
    for case in (*CASES, *MORE):
        if case.protocol.shuffling is not None and case.protocol.name != "count_mean_sketch":
            yield case, case.parameters
            if getattr(case.parameters, "dummies", "shuffle") != "shuffle":
                with suppress(ValueError):
                    yield case, replace(case.parameters, dummies="shuffle")


def example(name: str, last_epoch: int, minimum: int, parameters: Any) -> Case:
    shown = Example(parameters, last_epoch, minimum)
    return Case(
        replace(PROTOCOLS[name], examples=(shown,)), 0, lambda law, last_epoch: NotImplemented
    )


MORE = [
    example(name, 3, minimum, parameters)
    for name, minimum, parameters in (
        ("hadamard", 2, HadamardParameters(4.0, 0.1, ITEMS, rows=2)),
        (
            "shuffled_counts",
            2,
            ShuffledCountsParameters(4.0, 0.1, 2, 1, domain=ITEMS, cells="count_min"),
        ),
        ("shuffled_counts", 2, ShuffledCountsParameters(4.0, 0.1, domain=Bits(2))),
        ("shuffled_counts", 2, ShuffledCountsParameters(4.0, 0.1, 1, 1, domain=Bits(2))),
        ("shuffled_counts", 2, ShuffledCountsParameters(4.0, 0.1, dummies="negative_binomial")),
        ("shuffled_counts", 2, ShuffledCountsParameters(0.3, 1e-6, dummies="negative_binomial")),
        ("shuffled_counts", 2, ShuffledCountsParameters(1.0, 1e-6, 2, dummies="shuffle")),
        ("fragments", 1, FragmentsParameters(3.0, 0.1, ITEMS)),
    )
]
"""Cases with several epochs, several kinds of cells, and clustered dummies."""

PROTOCOLS_IN = ("dpstream.randomizers.", "experiments.protocols.")

every_kind = pytest.mark.parametrize(
    ("case", "parameters"),
    [
        pytest.param(case, requested, id=f"{number} {case} {getattr(requested, 'dummies', '')}")
        for number, (case, requested) in enumerate(with_dummies())
    ],
)


def charged(case: Case, parameters: Any) -> Seen:
    counted = [0j]

    def note(epsilon: float, distance: complex, draws: int) -> float:
        counted[0] += distance * draws
        return 0.0

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith(PROTOCOLS_IN):
                if getattr(module, "delta_of_tables", None) is delta_of_tables:
                    patch.setattr(module, "delta_of_tables", note)
                if name.endswith(("table_distances", "fragments.calibration")):
                    # Imaginary values mark charges for overflows.
                    patch.setattr(module, "REDRAW_PROBABILITY", 1j)
        case.protocol.calibrate(parameters, case.last_epoch, case.minimum)
    return Seen(counted[0].real, counted[0].imag)


@contextmanager
def watched() -> Iterator[Seen]:
    seen = Seen()
    table, normal = NoiseTable.draw, NormalNoise.draw
    most, capacity = Dummies.most, FragmentsLaw.capacity

    def draw(self: NoiseTable, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        seen.distance += self.distance * count
        return table(self, count, rng)

    def draw_normal(self: NormalNoise, rng: np.random.Generator) -> int:
        seen.distance += self.distance
        return normal(self, rng)

    def room(self: Dummies, contributors: int) -> int:
        seen.rooms += contributors > 0
        return most(self, contributors)

    def of_fragments(self: FragmentsLaw, epoch: int, contributors: int) -> int:
        seen.rooms += contributors > 0
        return capacity(self, epoch, contributors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseTable, "draw", draw)
        patch.setattr(NormalNoise, "draw", draw_normal)
        patch.setattr(Dummies, "most", room)
        patch.setattr(FragmentsLaw, "capacity", of_fragments)
        yield seen


def drawn(case: Case, law: Law, values: NDArray[np.integer], *, alone: bool) -> Seen:
    """Return the draws of contributors and of the stage over a horizon."""
    devices = values.shape[1]
    parts = [slice(each, each + 1) for each in range(devices)] if alone else [slice(devices)]
    populations = []
    for number, part in enumerate(parts):
        population = case.protocol.randomizer(law)
        population.enroll(part.stop - (part.start or 0), seeded_generator(1, number))
        populations.append((part, population))
    summed, of_stage = case.protocol.stage_sum(law), case.protocol.stage_dummies(law)
    with watched() as seen:
        for epoch, now in enumerate(values, 1):
            rng = seeded_generator(2, epoch)
            sent = [each.report(epoch, now[part], None, rng) for part, each in populations]
            if of_stage is not None:
                of_stage(epoch, rng)
            if summed is not None:
                summed.release(np.concatenate(list(map(written_out, sent))), None, rng)
    return seen


@every_kind
def test_sampling_errors_stay_within_the_charged_delta(case: Case, parameters: Any) -> None:
    law = case.law
    if parameters != case.parameters:
        law = case.protocol.calibrate(parameters, case.last_epoch, case.minimum)
    values = case.mixed_values(case.minimum)
    found = [drawn(case, law, values, alone=alone) for alone in (False, True)]
    if found == [Seen(), Seen()]:
        return
    paid = charged(case, parameters)
    for seen in found:
        assert 0 < seen.distance <= paid.distance * (1 + ROUNDING)
        assert seen.rooms <= paid.rooms


@every_kind
def test_noise_does_not_spend_the_delta_reserved_for_tables(case: Case, parameters: Any) -> None:
    spent: list[float] = []

    def noted(answer: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(answer)

        def answers(*values: Any, **named: Any) -> Any:
            spent.append(signature.bind(*values, **named).arguments["delta"])
            return answer(*values, **named)

        return answers

    with pytest.MonkeyPatch.context() as patch:
        for module in of_protocols():
            for name, answer in answers_for_a_delta(module):
                patch.setattr(module, name, noted(answer))
        law = case.protocol.calibrate(parameters, case.last_epoch, case.minimum)
        shuffling = case.protocol.shuffling
        if shuffling is not None and shuffling.stage_sum(law) is None:
            shuffling.epsilon_with(law, 1)
    if charged(case, parameters).distance > 0:
        # Fragments receives the used part of delta, and checks it itself.
        assert spent or case.protocol.name == "fragments"
        assert max(spent, default=0.0) <= parameters.delta * (1 - FOR_TABLES) * (1 + ROUNDING)


def of_protocols() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(PROTOCOLS_IN) and not name.startswith("dpstream.randomizers.accounting")
    ]


def answers_for_a_delta(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield a module's accounting functions with a delta, except the functions of tables."""
    for name, value in list(vars(module).items()):
        if inspect.isfunction(value) and value is not check_tables:
            of_accounting = value.__module__.startswith("dpstream.randomizers.accounting.")
            if of_accounting and "delta" in inspect.signature(value).parameters:
                yield name, value


def test_suite_covers_every_kind_of_dummy_messages() -> None:
    kinds = {getattr(parameters, "dummies", None) for _, parameters in with_dummies()}
    assert kinds >= {None, "poisson", "bernoulli", "negative_binomial", "shuffle"}
