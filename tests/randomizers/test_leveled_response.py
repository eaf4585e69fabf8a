"""Sampled response with levels: words, draws, exact privacy, and constants."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpstream.pipeline.conformance.laws.sampled_response import ExactLeveledResponse
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.cell_codes.codes import CellCode
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import (
    AnswerSets,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.calibration import (
    calibrate_any,
    calibrate_numbers,
    epsilon_if_shuffled,
    epsilon_of_any_if_shuffled,
    expected_share,
)
from dpstream.randomizers.sampled_response.leveled_response import (
    LeveledResponse,
    LeveledResponseLaw,
)
from dpstream.randomizers.set_systems import Subsets

TREE = Levels(8, (2, 4)), (Subsets(2, 1), Subsets(8, 1))
PREFIXES = (
    PrefixCells((PrefixLevel(1, 2), PrefixLevel(3, 4)), "example"),
    (PointSpace(2, 3), PointSpace(2, 3)),
)


def law_of(
    code: CellCode, systems: tuple[AnswerSets, ...], epsilon: float, last_epoch: int, slots: int = 1
) -> LeveledResponseLaw:
    cells = code.nodes[1:] if isinstance(code, Levels) else (2, 4)
    return LeveledResponseLaw(
        code,
        tuple(
            SampledResponseLaw(
                last_epoch,
                epsilon,
                optimal(1, epsilon, system.block, system.outside),
                system,
                count,
                isinstance(code, Levels),
                slots,
            )
            for system, count in zip(systems, cells, strict=True)
        ),
    )


def devices_of(law: LeveledResponseLaw, count: int, seed: int = 0) -> LeveledResponse:
    devices = LeveledResponse(law)
    devices.enroll(count, seeded_generator(seed))
    return devices


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(("code", "systems"), [TREE, PREFIXES], ids=["tree", "prefixes"])
def test_maximum_loss_over_all_pairs_of_streams_is_epsilon(
    code: CellCode, systems: tuple[AnswerSets, ...], epsilon: float
) -> None:
    law = law_of(code, systems, epsilon, 2)
    exact = ExactLeveledResponse(law, 2)
    views = [exact.views(stream) for stream in product(range(9), repeat=2)]
    assert all(sum(one.values()) == 1 for one in views)
    worst = max(max(one[view] / two[view] for view in one) for one in views for two in views)
    assert math.log(worst) == pytest.approx(epsilon, abs=1e-12)
    assert math.log(worst) <= LeveledResponse(law).guarantee.epsilon <= epsilon


@pytest.mark.parametrize(("code", "systems"), [TREE, PREFIXES], ids=["tree", "prefixes"])
@pytest.mark.parametrize("stream", [(3, 8), (0, 1)])
def test_answers_follow_the_exact_distribution(
    code: CellCode, systems: tuple[AnswerSets, ...], stream: tuple[int, int]
) -> None:
    law, users = law_of(code, systems, 1.0, 2), 60_000
    devices, rng = devices_of(law, users, 1), seeded_generator(2)
    expected = ExactLeveledResponse(law, 2).views(stream)
    seen: Counter[tuple[tuple[tuple[int, ...], ...], ...]] = Counter()
    for epoch, value in enumerate(stream, 1):
        sent = devices.report(epoch, np.full(users, value), None, rng)
        for word, count in zip(*np.unique(sent, return_counts=True), strict=True):
            seen[tuple(((int(word),),) if each == epoch else () for each in (1, 2))] = int(count)
    assert set(seen) <= set(expected)
    chi_square = sum(
        (seen[view] - users * float(p)) ** 2 / (users * float(p)) for view, p in expected.items()
    )
    assert chi_square < len(expected) + 6 * math.sqrt(2 * len(expected))


def test_levels_are_drawn_again_in_every_horizon_and_phases_are_kept() -> None:
    law = law_of(*TREE, 4.0, 2)
    first = devices_of(law, 10_000, 1)
    assert first.lasting == ("phase",)
    assert set(first.state_arrays()) == {"phase"}
    words = first.report(1, np.ones(10_000, np.int64), None, seeded_generator(2))[:, 0]
    renewed = LeveledResponse(law)
    renewed.enroll(10_000, seeded_generator(3), first.state_arrays())
    again = renewed.report(1, np.ones(10_000, np.int64), None, seeded_generator(4))[:, 0]
    assert (renewed.due(1) == first.due(1)).all()
    same = float(((words < 2) == (again < 2)).mean())
    assert abs(same - 0.5) < 6 * 0.5 / math.sqrt(5_000)


def test_answers_are_divided_evenly_among_levels_regardless_of_values() -> None:
    law = law_of(*TREE, 2.0, 1)
    for value in (0, 1, 8):
        sent = devices_of(law, 40_000).report(1, np.full(40_000, value), None, seeded_generator(5))
        assert abs(float((sent < 2).mean()) - 0.5) < 6 * 0.5 / 200


def test_answer_about_a_set_of_items_is_about_a_random_slot() -> None:
    law = law_of(*PREFIXES, 4.0, 1, slots=2)
    exact, users = ExactLeveledResponse(law, 1), 60_000
    assert LeveledResponse(law).guarantee.basis == "bound"
    sent = devices_of(law, users).report(
        1, np.tile([[0, 5]], (users, 1)), None, seeded_generator(6)
    )[:, 0]
    expected = [users * float(exact.views(((0, 5),))[(((word,),),)]) for word in range(14)]
    counts = np.bincount(sent, minlength=14)
    assert float(((counts - expected) ** 2 / expected).sum()) < 13 + 6 * math.sqrt(26)


@pytest.mark.parametrize(("code", "systems"), [TREE, PREFIXES], ids=["tree", "prefixes"])
def test_constants_round_trip_through_json(code: CellCode, systems: tuple[AnswerSets, ...]) -> None:
    law = law_of(code, systems, 2.0, 5)
    assert LeveledResponseLaw.from_json(law.to_json()) == law
    assert law.message_format.distinct == sum(system.points for system in systems)


def test_inconsistent_constants_are_rejected() -> None:
    law = law_of(*TREE, 2.0, 5)
    coarse, fine = law.levels
    two_answers = replace(fine, flips=optimal(2, 2.0, 1, 7))
    for levels, why in (
        ((fine,), "got 1 levels; expected 2"),
        ((fine, coarse, coarse), "got 3 levels"),
        ((fine, fine), "levels have 16 cells; expected 10"),
        ((coarse, two_answers), "expected one answer"),
        ((coarse, replace(fine, last_epoch=6)), "expected the same 'last_epoch'"),
    ):
        with pytest.raises(ValueError, match=why):
            LeveledResponseLaw(law.code, levels)


def numbers(**others: Any) -> SampledResponseParameters:
    return SampledResponseParameters(1.0, **{"low": 0, "high": 80, "buckets": 8, **others})


def test_numeric_bounds_are_floats_and_the_expected_share_is_that_of_one_bucket() -> None:
    parameters = numbers(initial=5)
    assert (parameters.low, parameters.high, parameters.initial) == (0.0, 80.0, 5.0)
    assert expected_share(parameters) == 1 / 8
    assert isinstance(calibrate_any(parameters, 4), LeveledResponseLaw)
    assert isinstance(calibrate_any(SampledResponseParameters(1.0), 4), SampledResponseLaw)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"low": None}, "'low' is missing; numbers require"),
        ({"high": None, "buckets": None}, "'high' is missing"),
        ({"domain": ("a", "b")}, "'domain' is set together with 'buckets'"),
        (
            {"low": None, "high": None, "buckets": None, "domain": ("a", "b"), "initial": 3},
            "'initial' applies to numbers only",
        ),
        ({"reports": 2}, "'reports' is 2; expected 1 with numbers"),
        ({"share": 0.3}, "'share' applies only to yes or no"),
        ({"complete": True}, "'complete' requires a domain"),
        ({"buckets": 12}, "expected a power of two, such as 8 or 16"),
        ({"buckets": 8192}, "expected an integer from 2 to 4,096"),
        ({"low": 80}, "expected a number above 'low', 80"),
        ({"low": True}, "'low' is True; expected a number"),
        ({"initial": 80}, "expected at least 0 and below 80"),
    ],
)
def test_invalid_parameters_of_numbers_are_rejected(parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        numbers(**parameters)


@pytest.mark.parametrize(
    ("buckets", "epsilon", "nodes"),
    [
        (2, 1.0, (2,)),
        (16, 2.9, (4, 16)),
        (16, 3.0, (16,)),
        (32, 3.0, (2, 8, 32)),
        (4096, 1.0, (4, 16, 64, 256, 1024, 4096)),
    ],
)
def test_tree_of_levels_has_four_children_per_node_down_to_the_buckets(
    buckets: int, epsilon: float, nodes: tuple[int, ...]
) -> None:
    law = calibrate_numbers(epsilon, buckets, 52)
    assert tuple(level.items for level in law.levels) == nodes
    for level in law.levels:
        assert level.complete
        assert isinstance(level.sets, Subsets if level.items <= 20 else PointSpace)
        assert level.loss <= epsilon


def test_answer_is_hidden_among_the_answers_of_its_level() -> None:
    """The crowd of a level is the number of its answers, except with half of delta."""
    single, several = calibrate_numbers(1.0, 4, 12), calibrate_numbers(1.0, 64, 12)
    delta = 1e-6
    assert epsilon_of_any_if_shuffled(single, 900, delta) == epsilon_if_shuffled(
        single.levels[0], 900, delta
    )
    found = epsilon_of_any_if_shuffled(several, 900, delta)
    expected = {
        crowd: max(epsilon_if_shuffled(level, crowd, delta / 2) for level in several.levels)
        for crowd in (900, 300, 230)
    }
    assert expected[900] < expected[300] < found <= expected[230] <= 1
    assert stats.binom.cdf(228, 899, 1 / 3) < delta / 2


def test_shuffling_few_answers_does_not_reduce_the_loss() -> None:
    law = calibrate_numbers(2.0, 64, 12)
    assert epsilon_of_any_if_shuffled(law, 1, 1e-6) == pytest.approx(law.loss)


def test_answering_about_all_levels_or_a_level_chosen_by_value_loses_more() -> None:
    law = law_of(*TREE, 1.0, 1)
    exact = ExactLeveledResponse(law, 1)
    cells = law.cells_of(np.arange(1, 9)).tolist()
    by_level = [
        [level.sent([cell]) for level, cell in zip(exact.levels, row, strict=True)] for row in cells
    ]

    def loss(views: list[dict[tuple[int, ...], Fraction]]) -> float:
        seen = {view for one in views for view in one}
        if any(view not in one for one in views for view in seen):
            return math.inf
        return max(math.log(max(one[v] / two[v] for v in seen)) for one in views for two in views)

    every = [
        {(*one, *two): p * q for one, p in up.items() for two, q in down.items()}
        for up, down in by_level
    ]
    assert loss(every) == pytest.approx(2.0, abs=1e-12)
    chosen = [
        {(item % 2, *point): p for point, p in row[item % 2].items()}
        for item, row in enumerate(by_level)
    ]
    assert loss(chosen) == math.inf
