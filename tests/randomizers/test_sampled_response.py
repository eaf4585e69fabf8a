"""Sampled response: dealt phases, answers due, the number of answers, and exact privacy."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import (
    SampledResponse,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.calibration import calibrate, unit_variance


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
def test_gap_and_variance_match_reference(
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
def test_more_answers_pay_from_the_reference_epsilons(
    share: float, thresholds: tuple[float, ...]
) -> None:
    for reports, threshold in enumerate(thresholds, start=1):
        for epsilon, best in ((threshold - 0.01, reports), (threshold + 0.01, reports + 1)):
            parameters = SampledResponseParameters(epsilon, share=share)
            assert calibrate(parameters, 1 << 18).reports == best


@pytest.mark.parametrize("epsilon", [1.2, 1.4, 1.7, 1.8])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_two_answers_beat_one_if_the_proven_rule_says_so(epsilon: float, share: float) -> None:
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
def test_flip_i_reverses_the_answer_i_in_time(last_epoch: int, reports: int) -> None:
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
def test_dealt_phases_are_balanced(users: int) -> None:
    phases = devices_of(law_of(1, 12), users).state_arrays()["phase"]
    counts = np.bincount(phases, minlength=12)
    assert set(counts.tolist()) <= {users // 12, -(-users // 12)}


def test_dealt_phases_are_uniform_over_all_balanced_assignments() -> None:
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
def test_loss_over_all_pairs_of_streams_is_epsilon(
    epsilon: float, last_epoch: int, reports: int
) -> None:
    law = law_of(epsilon, last_epoch, reports)
    views = [dict(_views(law, stream)) for stream in product((0, 1), repeat=last_epoch)]
    worst = max(max(one[view] / two[view] for view in one) for one in views for two in views)
    assert math.log(worst) == pytest.approx(epsilon, abs=1e-12)
    assert math.log(worst) <= law.flips.loss <= epsilon


def test_loss_is_epsilon_for_users_who_react_to_their_first_answer() -> None:
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


def test_flips_follow_the_joint_mechanism() -> None:
    law = law_of(4, 6, 3)
    flips = devices_of(law, 60_000, 3).state_arrays()["flips"]
    counts = np.bincount(flips, minlength=8)
    expected = [60_000 * float(law.flips.probability(bits.bit_count())) for bits in range(8)]
    chi_square = sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True))
    assert chi_square < 7 + 6 * math.sqrt(14)


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
def test_loss_within_any_window_of_two_horizons(epsilon: float, kept: bool, windows: float) -> None:
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


def test_several_answers_cost_more_than_epsilon_across_horizons() -> None:
    """Half of the answers of two horizons each: why no rolling guarantee is stated for them."""
    for epsilon, expected in ((1.0, 1.240), (2.0, 2.868), (4.0, 6.650)):
        law = law_of(epsilon, 4, 2)
        once = [sum(law.flips.probability(first + second) for second in (0, 1)) for first in (0, 1)]
        assert 2 * math.log(once[0] / once[1]) == pytest.approx(expected, abs=5e-4)
        assert SampledResponse(law).rolling is None
