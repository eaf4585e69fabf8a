"""Sampled response: dealt phases, answers due, the number of answers, and exact privacy."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpstream.pipeline.conformance.laws.sampled_response import ExactSampledResponse, sets_of
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import (
    AnswerSets,
    SampledResponse,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.calibration import (
    calibrate,
    epsilon_if_shuffled,
    unit_variance,
)
from dpstream.randomizers.set_systems import Subsets


def law_of(epsilon: float, last_epoch: int, reports: int | None = None) -> SampledResponseLaw:
    return calibrate(SampledResponseParameters(epsilon, reports), last_epoch)


def devices_of(law: SampledResponseLaw, count: int, seed: int = 0) -> SampledResponse:
    devices = SampledResponse(law)
    devices.enroll(count, seeded_generator(seed))
    return devices


@pytest.mark.parametrize(
    ("epsilon", "reports", "gap", "flips"),
    [
        (1, 1, 0.462117157, 0.920673594),
        (1, 2, 0.300489182, 2.518740963),
        (2, 1, 0.761594156, 0.181015415),
        (2, 2, 0.614979459, 0.411026375),
        (4, 1, 0.964027580, 0.019005457),
        (4, 2, 0.930553325, 0.038707109),
        (4, 3, 0.870125970, 0.080198995),
        (4, 4, 0.770108832, 0.171537097),
    ],
)
def test_c_gap_and_variance_match_the_reference(
    epsilon: float, reports: int, gap: float, flips: float
) -> None:
    law = law_of(epsilon, 52, reports)
    assert law.c_gap == pytest.approx(gap, abs=1e-9)
    assert (law.c_gap**-2 - 1) / 4 == pytest.approx(flips, abs=1e-9)


@pytest.mark.parametrize(
    ("share", "thresholds"),
    [
        (0.5, (1.343, 2.69, 3.80)),
        (0.25, (1.451, 2.89, 4.03)),
        (0.1, (1.743, 3.42, 4.64)),
        (0.03, (2.229, 4.37, 5.67)),
        (0.01, (2.722, 5.36, 6.72)),
    ],
)
def test_number_of_answers_increases_at_the_reference_epsilons(
    share: float, thresholds: tuple[float, ...]
) -> None:
    for reports, threshold in enumerate(thresholds, start=1):
        for epsilon, best in ((threshold - 0.01, reports), (threshold + 0.01, reports + 1)):
            parameters = SampledResponseParameters(epsilon, share=share)
            assert calibrate(parameters, 1 << 18).reports == best


@pytest.mark.parametrize("epsilon", [1.2, 1.4, 1.7, 1.8])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_two_answers_are_more_accurate_than_one_exactly_if_the_proven_rule_holds(
    epsilon: float, share: float
) -> None:
    one, two = (unit_variance(law_of(epsilon, 52, reports), share) for reports in (1, 2))
    assert (two < one) == ((math.exp(epsilon) - 1) ** 2 > 2 / (share * (1 - share)))


@given(last_epoch=st.integers(1, 40), reports=st.integers(1, 8), users=st.integers(1, 200))
def test_each_device_answers_at_evenly_spread_epochs(
    last_epoch: int, reports: int, users: int
) -> None:
    reports = min(reports, last_epoch)
    devices = devices_of(law_of(1, last_epoch, reports), users)
    epochs = defaultdict(list)
    for epoch in range(1, last_epoch + 1):
        for device in devices.due(epoch).tolist():
            epochs[device].append(epoch)
    assert sorted(epochs) == list(range(users))
    for asked in epochs.values():
        assert len(asked) == reports
        gaps = np.diff([*asked, asked[0] + last_epoch])
        assert gaps.min() >= last_epoch // reports


@given(last_epoch=st.integers(1, 12), reports=st.integers(1, 8))
def test_each_flip_reverses_the_answer_at_the_same_position_in_time(
    last_epoch: int, reports: int
) -> None:
    reports = min(reports, last_epoch)
    devices = devices_of(law_of(1, last_epoch, reports), 60)
    answers: list[list[int]] = [[] for _ in range(60)]
    for epoch in range(1, last_epoch + 1):
        sent = devices.report(epoch, np.zeros(60, np.int8), None, seeded_generator(epoch))
        for device, (answer,) in zip(devices.due(epoch), sent.tolist(), strict=True):
            answers[device].append(answer)
    flips = np.array(answers) << np.arange(reports)
    assert flips.sum(axis=1).tolist() == devices.state_arrays()["flips"].tolist()


@pytest.mark.parametrize("users", [7, 12, 1_000])
def test_equally_many_devices_have_each_phase(users: int) -> None:
    phases = devices_of(law_of(1, 12), users).state_arrays()["phase"]
    counts = np.bincount(phases, minlength=12)
    assert set(counts.tolist()) <= {users // 12, -(-users // 12)}


def test_phases_are_uniform_over_all_balanced_assignments() -> None:
    law = law_of(1, 3)
    rng = seeded_generator(5)
    drawn: Counter[tuple[int, ...]] = Counter()
    for _ in range(9_000):
        devices = SampledResponse(law)
        devices.enroll(4, rng)
        drawn[tuple(devices.state_arrays()["phase"].tolist())] += 1
    # Two of four users share one of three phases: 3 * 4! / 2! assignments.
    assert len(drawn) == 36
    chi_square = sum((count - 250) ** 2 / 250 for count in drawn.values())
    assert chi_square < 35 + 6 * math.sqrt(70)


def test_later_devices_draw_uniform_phases() -> None:
    devices = devices_of(law_of(1, 4), 4)
    rng = seeded_generator(6)
    devices.enroll(2_000, rng)
    later = np.bincount(devices.state_arrays()["phase"][4:], minlength=4)
    assert np.abs(later - 500).max() < 6 * math.sqrt(500 * 0.75)
    assert len(set(later.tolist())) > 1


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(("last_epoch", "reports"), [(3, 1), (3, 2), (3, 3), (4, 1), (4, 3)])
def test_maximum_loss_over_all_pairs_of_streams_is_epsilon(
    epsilon: float, last_epoch: int, reports: int
) -> None:
    law = law_of(epsilon, last_epoch, reports)
    views = [dict(_views(law, stream)) for stream in product((0, 1), repeat=last_epoch)]
    worst = max(max(one[view] / two[view] for view in one) for one in views for two in views)
    assert math.log(worst) == pytest.approx(epsilon, abs=1e-12)
    assert math.log(worst) <= law.flips.loss <= epsilon


def test_loss_is_epsilon_for_users_whose_value_depends_on_their_first_answer() -> None:
    """All strategies of two answers: a first value, and a second one for each first answer."""
    for epsilon in (1.0, 2.0, 4.0):
        law = law_of(epsilon, 2, 2)
        outcomes = [
            {
                (first, second): law.flips.probability((first != x) + (second != y[first]))
                for first, second in product((0, 1), repeat=2)
            }
            for x in (0, 1)
            for y in product((0, 1), repeat=2)
        ]
        worst = max(one[key] / two[key] for one in outcomes for two in outcomes for key in one)
        assert len(outcomes) == 8
        assert math.log(worst) == pytest.approx(epsilon, abs=1e-12)


@pytest.mark.parametrize(("drawn", "follows"), [(4.0, True), (3.8, False), (8.0, False)])
def test_flips_follow_the_joint_mechanism(drawn: float, follows: bool) -> None:
    """The same test rejects a tenth more noise, and half the noise."""
    law = law_of(4, 6, 3)
    flips = devices_of(law_of(drawn, 6, 3), 60_000, 3).state_arrays()["flips"]
    counts = np.bincount(flips, minlength=8)
    expected = [60_000 * float(law.flips.probability(bits.bit_count())) for bits in range(8)]
    chi_square = sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True))
    assert (chi_square < 7 + 6 * math.sqrt(14)) == follows


def _views(
    law: SampledResponseLaw, stream: tuple[int, ...]
) -> Iterator[tuple[tuple[tuple[int, int], ...], Fraction]]:
    """Yield the pairs of epoch and answer that one device shows, and their probability."""
    for phase in range(law.last_epoch):
        epochs = [(phase + offset) % law.last_epoch for offset in law.offsets]
        for flips in product((0, 1), repeat=law.reports):
            seen = tuple((e, stream[e] ^ flip) for e, flip in zip(epochs, flips, strict=True))
            yield seen, law.flips.probability(sum(flips)) / law.last_epoch


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize(
    ("kept", "windows"), [(True, 1.0), (False, 2.0)], ids=["phases kept", "phases redrawn"]
)
def test_loss_within_any_window_of_two_horizons_has_the_expected_value(
    epsilon: float, kept: bool, windows: float
) -> None:
    """All streams of two horizons of three epochs that differ within three consecutive epochs.

    The enumeration uses nothing of the product but the probability that an answer is reversed. It
    shows why phases must be kept: drawn again, two answers can lie next to each other.
    """
    horizon, law = 3, law_of(epsilon, 3, 1)
    reversed_ = law.flips.probability(1)
    phases = [
        (one, other) for one in range(horizon) for other in ([one] if kept else range(horizon))
    ]
    seen: defaultdict[tuple[int, ...], dict[object, Fraction]] = defaultdict(dict)
    for stream in product((0, 1), repeat=2 * horizon):
        for one, other in phases:
            for flips in product((0, 1), repeat=2):
                asked = one, horizon + other
                answers = tuple(stream[e] ^ flip for e, flip in zip(asked, flips, strict=True))
                chance = reversed_ ** sum(flips) * (1 - reversed_) ** (2 - sum(flips))
                seen[stream][asked, answers] = Fraction(chance) / len(phases)
    worst = max(
        seen[one][view] / seen[other][view]
        for one, other in product(seen, repeat=2)
        for begin in range(horizon + 1)
        if one[:begin] + one[begin + horizon :] == other[:begin] + other[begin + horizon :]
        for view in seen[one]
    )
    assert math.log(worst) == pytest.approx(windows * epsilon, abs=1e-12)
    rolling = SampledResponse(law).rolling
    assert rolling is not None
    assert (rolling.epochs, rolling.epsilon) == (horizon, law.flips.loss)
    assert (math.log(worst) <= rolling.epsilon) == kept


def test_loss_of_several_answers_across_horizons_exceeds_epsilon() -> None:
    """Half of the answers of two horizons each: why no rolling guarantee is stated for them."""
    for epsilon, expected in ((1.0, 1.240), (2.0, 2.868), (4.0, 6.650)):
        law = law_of(epsilon, 4, 2)
        once = [sum(law.flips.probability(first + second) for second in (0, 1)) for first in (0, 1)]
        assert 2 * math.log(once[0] / once[1]) == pytest.approx(expected, abs=5e-4)
        assert SampledResponse(law).rolling is None


def labels(items: int) -> tuple[str, ...]:
    return tuple(map(str, range(items)))


def items_law(
    epsilon: float, items: int, last_epoch: int = 52, **others: Any
) -> SampledResponseLaw:
    return calibrate(SampledResponseParameters(epsilon, domain=labels(items), **others), last_epoch)


@pytest.mark.parametrize(
    ("items", "complete", "epsilon", "sets", "reports", "probabilities"),
    [
        (6, True, 1, Subsets(6, 2), 1, (0.576116885, 0.284776623)),
        (5, False, 1, Subsets(6, 2), 1, (0.576116885, 0.284776623)),
        (6, True, 2, Subsets(6, 1), 1, (0.596418003, 0.080716399)),
        (3, True, 2, Subsets(3, 1), 1, (0.786986042, 0.106506979)),
        (3, True, 4, Subsets(3, 1), 2, (0.904150522, 0.047924739)),
        (16, False, 1, Subsets(17, 5), 1, (0.531092644, 0.279306710)),
        (1_024, False, 1, PointSpace(3, 7), 1, (0.575781632, 0.332806061)),
        (1 << 20, False, 4, PointSpace(37, 5), 1, (0.602640765, 0.027026714)),
    ],
)
def test_mechanisms_for_items_match_the_reference(
    items: int,
    complete: bool,
    epsilon: float,
    sets: AnswerSets,
    reports: int,
    probabilities: tuple[float, float],
) -> None:
    law = items_law(epsilon, items, complete=complete)
    assert (law.sets, law.reports) == (sets, reports)
    assert tuple(map(float, law.probabilities)) == pytest.approx(probabilities, abs=1e-9)
    assert SampledResponseLaw.from_json(law.to_json()) == law


@pytest.mark.parametrize(
    ("items", "last_epoch", "expected"),
    [
        (16, 4, (2_359, 1_143, 503, 185)),
        (16, 52, (8_510, 4_130, 1_835, 718)),
        (1_024, 12, (4_353, 2_125, 943, 307)),
        (1 << 20, 52, (9_069, 4_428, 1_963, 642)),
    ],
)
def test_planned_errors_for_items_match_the_reference(
    items: int, last_epoch: int, expected: tuple[int, ...]
) -> None:
    found = [
        math.sqrt(1e5 * unit_variance(items_law(epsilon, items, last_epoch), 1 / items))
        for epsilon in (0.5, 1, 2, 4)
    ]
    assert [round(each) for each in found] == list(expected)


@pytest.mark.parametrize(
    ("items", "epsilon", "reports", "gain"), [(3, 4, 2, 0.78), (4, 4, 2, 0.85), (6, 4, 1, 1)]
)
def test_few_items_and_a_large_epsilon_allow_two_answers(
    items: int, epsilon: float, reports: int, gain: float
) -> None:
    best, single = (
        items_law(epsilon, items, 1_024, complete=True, reports=each) for each in (None, 1)
    )
    assert best.reports == reports
    ratio = unit_variance(best, 1 / items) / unit_variance(single, 1 / items)
    assert math.sqrt(ratio) == pytest.approx(gain, abs=0.005)


def set_law(sets: AnswerSets, epsilon: float, last_epoch: int, reports: int) -> SampledResponseLaw:
    flips = optimal(reports, epsilon, sets.block, sets.outside)
    return SampledResponseLaw(last_epoch, epsilon, flips, sets, sets.most_values - 1, False, 1)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(
    ("sets", "last_epoch", "reports", "values"),
    [
        (PointSpace(3, 2), 3, 1, 4),
        (PointSpace(3, 2), 3, 2, 4),
        (PointSpace(2, 3), 2, 1, 4),
        (PointSpace(2, 3), 2, 2, 4),
        (Subsets(4, 2), 3, 2, 4),
        (Subsets(3, 1), 3, 3, 3),
    ],
)
def test_loss_over_all_pairs_of_item_streams_is_epsilon(
    epsilon: float, sets: AnswerSets, last_epoch: int, reports: int, values: int
) -> None:
    law = set_law(sets, epsilon, last_epoch, reports)
    exact = ExactSampledResponse(law, last_epoch)
    views = [exact.views(stream) for stream in product(range(values), repeat=last_epoch)]
    assert all(sum(one.values()) == 1 for one in views[:3])
    worst = max(max(one[view] / two[view] for view in one) for one in views for two in views)
    assert math.log(worst) == pytest.approx(epsilon, abs=1e-12)
    assert math.log(worst) <= law.flips.loss <= epsilon


@pytest.mark.parametrize(
    "law",
    [
        set_law(PointSpace(3, 3), 1.0, 2, 1),
        set_law(Subsets(5, 2), 2.0, 2, 2),
        items_law(2.0, 3, 2, complete=True),
    ],
    ids=lambda law: str(law.sets),
)
def test_answers_follow_the_exact_distribution(law: SampledResponseLaw) -> None:
    users, exact = 40_000, ExactSampledResponse(law, 2)
    rng = seeded_generator(8)
    for stream in ((1, 2), (0, 0)):
        devices = devices_of(law, users, 9)
        seen: list[list[tuple[tuple[int, ...], ...]]] = [[] for _ in range(users)]
        for epoch, value in enumerate(stream, 1):
            sent = devices.report(epoch, np.full(users, value), None, rng).tolist()
            reports = dict(zip(devices.due(epoch).tolist(), sent, strict=True))
            for device, views in enumerate(seen):
                views.append(tuple([tuple(reports[device])] if device in reports else []))
        counts = Counter(map(tuple, seen))
        expected = {view: users * float(p) for view, p in exact.views(stream).items()}
        assert set(counts) <= set(expected)
        chi_square = sum((counts[view] - each) ** 2 / each for view, each in expected.items())
        assert chi_square < len(expected) + 7 * math.sqrt(2 * len(expected))


def test_devices_without_an_item_answer_for_a_random_item() -> None:
    law, users = items_law(4.0, 4, 1, complete=True, reports=1), 80_000
    rng = seeded_generator(2)
    counts = np.bincount(
        devices_of(law, users).report(1, np.zeros(users, np.int8), None, rng)[:, 0]
    )
    assert len(counts) == law.sets.points == 4
    assert np.abs(counts - users / 4).max() < 6 * math.sqrt(users / 4)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"complete": True}, "'complete' requires a domain"),
        ({"items": 2}, "'items' requires a domain"),
        ({"domain": ("a", "b", "c"), "items": 2, "reports": 2}, "expected 1 with"),
        ({"domain": ("a", "b", "c"), "items": 4}, "expected 1 to 3"),
        ({"domain": ("a",), "complete": True}, "at least 2"),
        ({"domain": ("a", "a")}, "distinct"),
        ({"domain": ("a", "b"), "share": 0.3}, "only to yes or no"),
        ({"domain": Bits(21), "complete": True}, "at most 1,048,576 items"),
        ({"domain": ("a", "b"), "complete": 1}, "true or false"),
    ],
)
def test_invalid_parameters_of_items_are_rejected(parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SampledResponseParameters(1.0, **parameters)


def test_devices_answer_only_once_for_large_domains() -> None:
    with pytest.raises(ValueError, match="expected 1 for more than 20 values"):
        items_law(4.0, 20, reports=2)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        (169, (0.1619, 0.3873, 1.138, 4.0)),
        (500, (0.0909, 0.2156, 0.5854, 3.991)),
        (1_923, (0.0441, 0.1047, 0.2778, 1.095)),
        (8_333, (0.0200, 0.0477, 0.1262, 0.4546)),
        (25_000, (0.0110, 0.0264, 0.0700, 0.2491)),
    ],
)
def test_shuffled_epsilon_matches_the_reference(reports: int, expected: tuple[float, ...]) -> None:
    for epsilon, shuffled in zip((0.5, 1.0, 2.0, 4.0), expected, strict=True):
        found = epsilon_if_shuffled(law_of(epsilon, 170, 1), reports, 1e-6)
        assert found == pytest.approx(shuffled, rel=6e-3 if shuffled < 0.05 else 1e-3)
        assert found <= epsilon


@pytest.mark.parametrize(
    ("reports", "local"),
    [
        (169, (0.713, 1.204, 1.869)),
        (500, (1.118, 1.812, 2.675)),
        (1_923, (1.867, 2.828, 3.872)),
        (8_333, (3.003, 4.162, 5.290)),
        (25_000, (4.006, 5.229, 6.379)),
    ],
)
def test_local_epsilon_in_the_reference_yields_its_shuffled_epsilon(
    reports: int, local: tuple[float, ...]
) -> None:
    for epsilon, shuffled in zip(local, (0.25, 0.5, 1.0), strict=True):
        found = epsilon_if_shuffled(law_of(epsilon, 170, 1), reports, 1e-6)
        assert found == pytest.approx(shuffled, rel=2e-3)


def test_shuffled_epsilon_of_several_answers_is_rejected() -> None:
    with pytest.raises(ValueError, match="the mechanism has 2 answers; expected 1"):
        epsilon_if_shuffled(law_of(2.0, 12, 2), 500, 1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
@pytest.mark.parametrize("contributors", [5, 20, 60])
def test_shuffled_epsilon_bounds_the_exact_loss_of_few_answers(
    epsilon: float, contributors: int
) -> None:
    """Others all answer 0, and a shuffler shows how many ones there are. Half the noise fails."""
    delta = 0.01
    stated = epsilon_if_shuffled(law_of(epsilon, 4, 1), contributors, delta)
    for noise, holds in ((1, True), (2, False)):
        law = law_of(epsilon * noise, 4, 1)
        others = stats.binom(contributors - 1, float(law.flips.probability(1)))
        ones = np.arange(contributors + 1)
        zero, one = (
            (1 - chance) * others.pmf(ones) + chance * others.pmf(ones - 1)
            for chance in (float(law.flips.probability(1)), float(law.flips.probability(0)))
        )
        excess = [
            float(np.maximum(0.0, p - math.exp(stated) * q).sum())
            for p, q in ((zero, one), (one, zero))
        ]
        assert (max(excess) <= delta) == holds


def set_of_items_law(epsilon: float, items: int, slots: int) -> SampledResponseLaw:
    parameters = SampledResponseParameters(epsilon, 1, domain=labels(items), items=slots)
    return calibrate(parameters, 4)


def test_device_with_a_set_answers_once_about_one_slot() -> None:
    single, several = (set_of_items_law(4.0, 3, items) for items in (1, 3))
    assert (single.slots, several.slots, several.reports) == (1, 3, 1)
    assert several.sets == single.sets
    assert several.c_gap == pytest.approx(single.c_gap / 3)
    users, rng = 80_000, seeded_generator(3)
    devices = devices_of(several, users)
    sent = devices.report(1, np.tile([[2, 0, 3]], (users, 1)), None, rng)[:, 0]
    assert len(sent) == users / 4
    sets = sets_of(several.sets)
    for item, expected in ((2, 0), (3, 0), (1, 1)):
        inside = np.isin(sent, list(sets[item])).mean()
        likely = float(several.probabilities[expected])
        assert abs(inside - likely) < 6 * math.sqrt(likely * (1 - likely) / len(sent))
