from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest

from dpstream.randomizers.accounting.calibration import optimal, published
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate

# For epsilon 1, as printed: k, published c_gap and exact loss, optimal c_gap.
GOLDEN = [
    (1, ".099668", ".200000", ".462117"),
    (2, ".048723", ".186376", ".300489"),
    (4, ".036380", ".252435", ".209620"),
    (8, ".0268", ".342", ".1446"),
    (16, ".0195", ".464", ".0998"),
    (64, ".0101", ".470", ".0499"),
    (256, ".0051", ".474", ".0248"),
    (1024, ".0026", ".482", ".0124"),
]
EPSILONS = (1e-6, 1e-3, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0, 64.0)


def test_mechanism_that_spends_more_than_epsilon_is_rejected() -> None:
    """Devices read mechanisms from a record. Orders that are never drawn do not count."""
    law = calibrate(FutureRandParameters(1.0, 2), 2)
    loose, strict = optimal(1, 1.5), law.composed[0]
    with pytest.raises(ValueError, match=r"loss is 1\.5; expected at most epsilon, 1\.0"):
        FutureRandLaw(2, 1.0, (1, 1), (strict, loose))
    with pytest.raises(ValueError, match="expected at most epsilon"):
        FutureRandLaw.from_json(
            FutureRandLaw(2, 1.5, (1, 1), (strict, loose)).to_json() | {"epsilon": 1}
        )
    assert FutureRandLaw(2, 1.0, (1, 0), (strict, loose)).loss <= 1


@pytest.mark.parametrize(("k", "c_gap", "loss", "best"), GOLDEN)
def test_calibrations_match_golden_table(k: int, c_gap: str, loss: str, best: str) -> None:
    law = published(k, 1.0)
    assert _printed(law.c_gap, c_gap) == c_gap
    assert _printed(law.loss, loss) == loss
    assert _printed(optimal(k, 1.0).c_gap, best) == best


def test_optimal_c_gap_matches_golden_values_and_limits() -> None:
    assert _printed(optimal(3, 1.0).c_gap, ".231059") == ".231059"
    assert _printed(optimal(5, 1.0).c_gap, ".173294") == ".173294"
    for epsilon, limit in ((1, 0.3975), (2, 0.787), (4, 1.516), (8, 2.743)):
        assert 32 * optimal(1024, epsilon).c_gap == pytest.approx(limit, rel=2e-3)


def test_calibration_for_a_single_sign_is_randomized_response() -> None:
    for epsilon in (0.25, 1.0, 4.0):
        assert optimal(1, epsilon).c_gap == pytest.approx(math.tanh(epsilon / 2), rel=1e-15)
        assert published(1, epsilon).c_gap == pytest.approx(math.tanh(epsilon / 10), rel=1e-15)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("k", [1, 2, 3, 7, 32])
def test_optimal_calibration_spends_exactly_epsilon(
    k: int, epsilon: float, exponential_below: Callable[[float], Fraction]
) -> None:
    law = optimal(k, epsilon)
    ratio = Fraction(max(law.weights), min(law.weights))
    assert 0 <= exponential_below(epsilon) - ratio < Fraction(1, 2**98)
    assert law.loss == epsilon


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_optimal_calibration_maximizes_c_gap_among_two_valued_weights(k: int) -> None:
    best = optimal(k, 1.0)
    low, high = min(best.weights), max(best.weights)
    others = [ComposedLaw(weights) for weights in product((low, high), repeat=k + 1)]
    assert max(law.exact_c_gap for law in others) == best.exact_c_gap


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("k", [1, 2, 3, 7, 32, 200])
def test_published_calibration_spends_less_than_epsilon(k: int, epsilon: float) -> None:
    law = published(k, epsilon)
    assert law.c_gap > 0
    assert law.loss < epsilon
    assert law.c_gap < optimal(k, epsilon).c_gap


@pytest.mark.parametrize("k", [2, 4, 16])
def test_published_calibration_randomizes_signs_within_an_annulus(k: int) -> None:
    """Inside, consecutive weights differ by e^(eps / 5 sqrt k); outside, all are equal."""
    epsilon = 2.0
    weights = published(k, epsilon).weights
    single = epsilon / (5 * math.sqrt(k))
    upper = math.floor(k / single * math.log(2 * math.exp(single) / (math.exp(single) + 1)))
    lower = math.ceil(k / (math.exp(single) + 1) - 2 * math.sqrt(k))
    inside = range(max(lower, 0), upper + 1)
    for distance in inside[1:]:
        step = weights[distance - 1] / weights[distance]
        assert step == pytest.approx(math.exp(single), rel=1e-14)
    assert len({weights[distance] for distance in range(k + 1) if distance not in inside}) == 1


@pytest.mark.parametrize(
    ("last_epoch", "horizon", "budgets"),
    [(1, 1, [1]), (2, 2, [2, 1]), (5, 8, [4, 2, 1, 1]), (8, 8, [4, 4, 2, 1])],
)
def test_each_dyadic_order_has_as_many_signs_as_its_intervals_can_use(
    last_epoch: int, horizon: int, budgets: list[int]
) -> None:
    law = calibrate(FutureRandParameters(1.0, 4), last_epoch)
    assert law.horizon == horizon
    assert [composed.k for composed in law.composed] == budgets
    assert law.composed == tuple(optimal(budget, 1.0) for budget in budgets)
    assert law.loss == law.epsilon == 1.0
    assert all(law.order_weights[: last_epoch.bit_length()])
    assert not any(law.order_weights[last_epoch.bit_length() :])


def test_published_calibration_has_the_same_number_of_signs_at_every_order() -> None:
    law = calibrate(FutureRandParameters(1.0, 4, "published"), 8)
    assert law.composed == (published(4, 1.0),) * 4
    assert law.epsilon == 1.0
    assert law.loss == published(4, 1.0).loss < 0.2525


@pytest.mark.parametrize("last_epoch", [0, -1, 2**63 + 1])
def test_epoch_count_out_of_range_is_rejected(last_epoch: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to"):
        calibrate(FutureRandParameters(1.0, 2), last_epoch)


@pytest.mark.verify
def test_horizon_of_2_to_the_63_epochs_is_allowed() -> None:
    assert len(calibrate(FutureRandParameters(1.0, 2), 2**63).composed) == 64


@pytest.mark.parametrize(
    ("epsilon", "changes", "calibration", "complaint"),
    [
        (0.0, 1, "optimal", "epsilon is 0.0; expected "),
        (-1.0, 1, "optimal", "epsilon"),
        (math.nan, 1, "optimal", "epsilon"),
        (math.inf, 1, "optimal", "epsilon"),
        (True, 1, "optimal", "epsilon is True; expected a number"),
        ("1", 1, "optimal", "epsilon is '1'; expected a number"),
        (1.0, 0, "optimal", "max_changes is 0; expected an integer from 1 to 1024"),
        (1.0, 1025, "optimal", "changes"),
        (1.0, 1.5, "optimal", "changes"),
        (1.0, True, "optimal", "changes"),
        (1.0, 1, "best", "calibration is 'best'; expected 'optimal' or 'published'"),
    ],
)
def test_parameter_errors_state_the_allowed_range(
    epsilon: float, changes: int, calibration: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as error:
        FutureRandParameters(epsilon, changes, calibration)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def _printed(value: float, golden: str) -> str:
    return f"{value:.{len(golden) - 1}f}".removeprefix("0")
