"""Compare losses with dp_accounting, OpenDP and Apple's analysis, for the same mechanisms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation

from dpstream.randomizers.accounting import (
    LossDistribution,
    amplified_epsilon,
    laplace_losses,
    losses_of,
    normal_delta,
    normal_losses,
    of_any_randomizer,
    of_randomized_response,
    to_dp_accounting,
)
from dpstream.randomizers.accounting.amplification import _composed
from dpstream.randomizers.accounting.dp_accounting_events import event_of_response

ADDED = NeighboringRelation.ADD_OR_REMOVE_ONE
GAUSS, LAPLACE = dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent
STEPS, OFTEN = dp_event.DiscreteLaplaceDpEvent, dp_event.SelfComposedDpEvent
TOGETHER = dp_event.ComposedDpEvent
EVENTS = {
    "normal": GAUSS(3.0),
    "normals": OFTEN(GAUSS(30.0), 365),
    "laplace": LAPLACE(2.0),
    "laplaces": OFTEN(LAPLACE(10.0), 100),
    "steps": OFTEN(STEPS(0.2, 3), 10),
    "all": TOGETHER([GAUSS(2.0), LAPLACE(3.0), OFTEN(STEPS(0.5, 1), 4), dp_event.NoOpDpEvent()]),
}


def theirs(event: Any, relation: NeighboringRelation, delta: float) -> float:
    accountant = PLDAccountant(relation, value_discretization_interval=1e-4)
    accountant.compose(event)
    epsilon: float = accountant.get_epsilon(delta)
    return epsilon


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_event_losses_match_dp_accounting(name: str, delta: float) -> None:
    expected = theirs(EVENTS[name], ADDED, delta)
    assert losses_of(EVENTS[name]).epsilon(delta) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("noise", "symbols", "times"), [(0.5, 2, 1), (0.8, 4, 50), (0.9, 10, 7)])
def test_response_losses_match_dp_accounting(noise: float, symbols: int, times: int) -> None:
    """Compose dp_accounting's distribution: its accountant counts a repeated response once."""
    event = OFTEN(dp_event.RandomizedResponseDpEvent(noise, symbols), times)
    single = pld.from_randomized_response(noise, symbols, value_discretization_interval=1e-4)
    for delta in (1e-3, 1e-6):
        expected = single.self_compose(times).get_epsilon_for_delta(delta)
        assert losses_of(event).epsilon(delta) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("name", EVENTS)
def test_conversion_to_dp_accounting_preserves_delta(name: str) -> None:
    losses = losses_of(EVENTS[name])
    handed = to_dp_accounting(losses)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        own, their = losses.delta(epsilon), handed.get_delta_for_epsilon(epsilon)
        assert own * (1 - 1e-9) <= their + 1e-300
        assert their <= own * (1 + 1e-4) + 5e-12
    twice = handed.self_compose(2).get_epsilon_for_delta(1e-6)
    ours = losses.composed_with(losses).epsilon(1e-6)
    assert twice == pytest.approx(ours, rel=2e-3)


def test_conversion_to_dp_accounting_includes_rounding_errors() -> None:
    rounded = LossDistribution(0.01, 3, np.array([0.5, 0.4]), 0.1, slack=0.015, rounding=0.01)
    handed = to_dp_accounting(rounded)
    plain = to_dp_accounting(LossDistribution(0.01, 3, np.array([0.5, 0.4]), 0.1))
    for epsilon in (0.0, 0.02, 0.04):
        assert handed.get_delta_for_epsilon(epsilon) >= rounded.delta(epsilon) - 1e-15
        assert plain.get_delta_for_epsilon(epsilon) < rounded.delta(epsilon)


def test_truncation_by_dp_accounting_never_lowers_delta() -> None:
    handed = to_dp_accounting(normal_losses(2.0, 1e-3))
    whole, cut = handed.compose(handed), handed.compose(handed, tail_mass_truncation=1e-2)
    for epsilon in (0.0, 1.0, 2.0, 4.0, 8.0):
        assert cut.get_delta_for_epsilon(epsilon) >= whole.get_delta_for_epsilon(epsilon)


def test_conversion_to_dp_accounting_includes_both_directions() -> None:
    one = LossDistribution(0.1, 0, np.array([1.0]), 0.0)
    other = LossDistribution(0.1, 10, np.array([1.0]), 0.0)
    assert to_dp_accounting(one, other).get_delta_for_epsilon(0.5) > 0.3
    assert to_dp_accounting(one).get_delta_for_epsilon(0.5) == 0


def test_trivial_events_have_no_privacy_loss() -> None:
    for event in (
        dp_event.NoOpDpEvent(),
        TOGETHER([]),
        OFTEN(GAUSS(1.0), 0),
        dp_event.RandomizedResponseDpEvent(1.0, 3),
        dp_event.RandomizedResponseDpEvent(0.0, 1),
    ):
        assert losses_of(event).epsilon(0.0) == 0.0


@pytest.mark.parametrize(
    "event",
    [
        dp_event.NonPrivateDpEvent(),
        dp_event.UnsupportedDpEvent(),
        GAUSS(0.0),
        LAPLACE(0.0),
        STEPS(0.0, 1),
        dp_event.RandomizedResponseDpEvent(0.0, 2),
        dp_event.PoissonSampledDpEvent(0.1, GAUSS(1.0)),
        dp_event.ZCDpEvent(1.0),
        TOGETHER([GAUSS(1.0), OFTEN(dp_event.NonPrivateDpEvent(), 2)]),
    ],
    ids=lambda event: type(event).__name__,
)
def test_unknown_event_is_rejected(event: Any) -> None:
    with pytest.raises(
        ValueError,
        match=("is unknown; expected randomized response, Gaussian, Laplace or discrete Laplace"),
    ):
        losses_of(event)


@pytest.mark.parametrize("deviation", [0.7, 3.7304, 40.0])
def test_delta_of_gaussian_losses_is_never_below_the_exact_delta(deviation: float) -> None:
    losses = normal_losses(deviation, 0.01 / deviation)
    for epsilon in (0.0, 0.5 / deviation, 2 / deviation, 5 / deviation):
        exact = normal_delta(epsilon, deviation)
        assert exact * (1 - 2e-12) - 1e-12 <= losses.delta(epsilon) <= exact * 1.001 + 2e-12


@pytest.mark.parametrize("scale", [0.5, 2.0, 30.0])
def test_delta_of_laplace_losses_is_never_below_the_exact_delta(scale: float) -> None:
    """The exact delta is 1 - e^((epsilon - 1 / scale) / 2)."""
    losses = laplace_losses(scale, 1e-3 / scale)
    for part in (0.0, 0.3, 0.9):
        exact = -math.expm1((part - 1) / scale / 2)
        assert exact * (1 - 1e-12) <= losses.delta(part / scale) <= exact * 1.001 + 1e-11
    assert losses.epsilon(0.0) == math.inf or losses.epsilon(0.0) < 1.01 / scale


def test_composed_shuffled_losses_match_dp_accounting() -> None:
    """dp_accounting composes distributions of one message; dpstream composes sums of losses."""
    coin = of_any_randomizer(1.0)
    once = _composed(coin, 10**5, 1)
    handed = to_dp_accounting(once)
    for epochs, golden in ((10, 0.0530), (100, 0.182), (365, 0.363)):
        their = handed.self_compose(epochs).get_epsilon_for_delta(1e-6)
        assert their == pytest.approx(golden, rel=0.01)
        assert amplified_epsilon(coin, 10**5, 1e-6, epochs) == pytest.approx(their, rel=3e-3)


OPENDP = {
    "make_randomized_response_bool(prob=0.75)": (1.0986122886681098, 0.0),
    "make_laplace(int, scale=2.0).map(3)": (1.5, 0.0),
}
"""Output of the privacy map of each measurement, as printed by OpenDP 0.16.0."""


def test_losses_match_opendp() -> None:
    response, _ = OPENDP["make_randomized_response_bool(prob=0.75)"]
    assert losses_of(event_of_response(math.log(3))).epsilon(1e-12) == pytest.approx(
        response, rel=3e-3
    )
    laplace, _ = OPENDP["make_laplace(int, scale=2.0).map(3)"]
    assert losses_of(STEPS(0.5, 3)).epsilon(1e-12) == pytest.approx(laplace, rel=3e-3)
    # OpenDP accounts for the Gaussian by zero-concentrated privacy, which is looser: 1.0922 at
    # delta 1e-5 and standard deviation 3.7304, where the exact epsilon is 1.
    assert losses_of(GAUSS(3.7304)).epsilon(1e-5) < 1.001 < 1.0922


APPLE = {
    (10**4, 1.0): (0.05293466, 0.05482824),
    (10**4, 2.0): (0.15447054, 0.15715477),
    (10**5, 1.0): (0.01527492, 0.01550929),
    (10**5, 4.0): (0.16931110, 0.17289003),
}
"""Lower and upper bounds on the central epsilon at delta 1e-6, by users and local epsilon.

Returned by `numericalanalysis` of github.com/apple/ml-shuffling-amplification at commit 993d285
after 14 iterations with steps of 20, and of 100 for 100,000 users and a local epsilon of 1.
"""


@pytest.mark.parametrize("case", APPLE, ids=str)
def test_amplified_epsilon_is_within_the_bounds_published_by_apple(case: tuple[int, float]) -> None:
    users, loss = case
    low, high = APPLE[case]
    assert low < amplified_epsilon(of_any_randomizer(loss), users, 1e-6) < high


def test_binary_response_has_a_smaller_epsilon_than_the_general_bound() -> None:
    for loss in (1.0, 4.0):
        any_, own = of_any_randomizer(loss), of_randomized_response(loss, 2)
        assert amplified_epsilon(own, 10**4, 1e-6) < amplified_epsilon(any_, 10**4, 1e-6)
