"""Test value_stream's guarantee with the code of devices: all outputs, and the worst streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.value_stream import ValueStreamLaw, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate, law_of_budget
from tests.support.sent_symbols import SYMBOLS, Histories, tilts_of_symbols
from tests.support.thinned import thinned

KERNEL = Kernel(1.0, 0.25)
RESERVE = 1.5**2 / 40


def largest_sum_of_squares(epochs: int, changes: int) -> float:
    """Return the largest sum of u^2 over streams with these numbers of epochs and changes."""
    largest = 0.0
    for stream in product((0, 1), repeat=epochs):
        followed, before, made, squares = 0.0, 0, 0, 0.0
        for value in stream:
            followed *= KERNEL.decay
            if value != before:
                followed += KERNEL.boost * (value - before) * (made < changes)
                made += 1
            before = value
            squares += (value - 0.5 + followed) ** 2
        largest = max(largest, squares)
    return largest


def law_at_epsilon_itself(epochs: int, changes: int, epsilon: float) -> ValueStreamLaw:
    parameters = ValueStreamParameters(epsilon + 1e-6, changes)
    squared_norm_budget = largest_sum_of_squares(epochs, changes) + RESERVE
    return law_of_budget(KERNEL, squared_norm_budget, parameters, epochs, epsilon)


class Paths(Histories):
    """Devices that have sent every possible sequence of symbols, and draw the next one."""

    def __init__(self, law: ValueStreamLaw, devices: int) -> None:
        super().__init__(law, devices)
        self.tilts, self.moved = np.empty((2, devices, len(SYMBOLS)))

    def _tilted_symbols(
        self,
        devices: NDArray[np.intp],
        steps: NDArray[np.float64],
        sums: NDArray[np.float64],
        left: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> NDArray[np.int16]:
        tilts = tilts_of_symbols(steps, sums, left, self._goal)
        self.tilts[devices] = self._tilt[devices, None] * tilts
        self.moved[devices] = sums[:, None] + steps[:, None] * (SYMBOLS / 8)
        return np.zeros(len(steps), np.int16)

    def followed_by_all(self) -> Paths:
        many = Paths(self.law, self.population * len(SYMBOLS))
        for name, array in self.state_arrays().items():
            many._keep(name, np.repeat(array, len(SYMBOLS)))
        many._keep("sum", self.moved.ravel())
        many._tilt = self.tilts.ravel()
        many.epoch = self.epoch
        return many


def likelihoods(law: ValueStreamLaw, stream: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the likelihoods of all symbol sequences relative to input-independent devices.

    The result has shape (145^epochs,).
    """
    paths = Paths(law, 1)
    for epoch, value in enumerate(stream, start=1):
        if epoch > 1:
            paths = paths.followed_by_all()
        paths.tell(epoch, np.full(paths.population, value), up)
    noise = law.probability_of_noise
    return noise + (1 - noise) * paths.tilts.ravel()


def largest_loss(law: ValueStreamLaw) -> float:
    most = least = None
    for stream in product((0, 1), repeat=law.last_epoch):
        of_stream = likelihoods(law, stream)
        most = of_stream if most is None else np.maximum(most, of_stream)
        least = of_stream if least is None else np.minimum(least, of_stream)
    assert most is not None
    assert least is not None
    return float(np.log(most / least).max())


@pytest.mark.parametrize(
    ("changes", "epsilon", "golden"), [(2, 1.0, 0.99999914), (2, 4.0, 3.9999705), (1, 1.0, None)]
)
def test_no_output_over_two_epochs_loses_more_than_epsilon(
    changes: int, epsilon: float, golden: float | None
) -> None:
    loss = largest_loss(law_at_epsilon_itself(2, changes, epsilon))
    assert loss <= epsilon
    if golden is not None:
        assert loss == pytest.approx(golden, abs=6e-8)
    assert loss > epsilon - 1e-4


@pytest.mark.verify
@pytest.mark.parametrize("changes", [1, 2])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_no_output_over_three_epochs_loses_more_than_epsilon(changes: int, epsilon: float) -> None:
    assert epsilon - 1e-4 < largest_loss(law_at_epsilon_itself(3, changes, epsilon)) <= epsilon


def test_deployed_loss_leaves_a_margin_for_rounding() -> None:
    parameters = ValueStreamParameters(1.0, 2)
    law = law_of_budget(KERNEL, largest_sum_of_squares(2, 2) + RESERVE, parameters, 2, 1 - 1e-6)
    assert largest_loss(law) == pytest.approx(0.99999814, abs=1e-8)
    assert law.loss < 1


# An independent implementation that can be mutated, with psi from scipy and a variable lattice.


def loss_on_a_lattice(step: float, *, reserve: bool = True, sums: bool = True) -> float:
    """Return the loss for 3 epochs, 2 changes and epsilon 1, on multiples of `step`."""
    law = law_at_epsilon_itself(3, 2, 1.0)
    places = np.arange(-round(9 / step), round(9 / step) + 1) * step
    base = np.exp(-(places**2) / 2)
    base /= base.sum()
    squared_norm_budget = (
        law.squared_norm_budget if reserve else law.squared_norm_budget - law.reserve * (1 - 1e-9)
    )
    goal = law.theta * math.sqrt(squared_norm_budget)
    beginning = special.ndtr(-law.theta)
    noise = 1 / (1 + math.expm1(1.0) * beginning)
    most = np.full(1, -math.inf)
    least = -most
    for stream in product((0, 1), repeat=3):
        tilt, moved, left, followed, before = np.ones(1), np.zeros(1), squared_norm_budget, 0.0, 0
        made = 0
        for value in stream:
            followed *= KERNEL.decay
            if value != before:
                followed += KERNEL.boost * (value - before) * (made < 2)
                made += 1
            before = value
            pull = value - 0.5 + followed
            left -= pull * pull
            reached = moved[:, None] + pull * places
            psi = np.maximum(special.ndtr((reached - goal) / math.sqrt(left)), 2.0**-20)
            tilt = (tilt[:, None] * psi / (psi @ base)[:, None]).ravel()
            moved = (reached if sums else np.zeros_like(reached)).ravel()
        likelihood = noise + (1 - noise) * tilt
        most, least = np.maximum(most, likelihood), np.minimum(least, likelihood)
    return float(np.log(most / least).max())


def test_coarser_lattice_has_a_larger_loss() -> None:
    assert loss_on_a_lattice(0.25) == pytest.approx(1.0000072, abs=2e-7)


@pytest.mark.verify
def test_loss_on_a_reimplemented_lattice_equals_that_of_devices() -> None:
    expected = largest_loss(law_at_epsilon_itself(3, 2, 1.0))
    assert loss_on_a_lattice(0.125) == pytest.approx(expected, abs=1e-10)


def test_loss_exceeds_epsilon_if_the_reserve_or_symbol_sums_are_ignored() -> None:
    assert loss_on_a_lattice(0.25, reserve=False) > 1.01
    assert loss_on_a_lattice(0.25, sums=False) > 1.01


# Long streams, far beyond their changes, with the most revealing symbols.

DEVICES, EPOCHS = 100, 170


def up(tilts: NDArray[np.float64]) -> NDArray[np.int16]:
    chosen: NDArray[np.int16] = SYMBOLS[tilts.argmax(axis=1)]
    return chosen


def down(tilts: NDArray[np.float64]) -> NDArray[np.int16]:
    chosen: NDArray[np.int16] = SYMBOLS[tilts.argmin(axis=1)]
    return chosen


def toggling() -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng(1)
    periods = np.arange(1, DEVICES + 1)
    for epoch in range(EPOCHS):
        values = epoch // periods % 2
        values[DEVICES // 2 :] = rng.integers(0, 2, DEVICES - DEVICES // 2)
        yield values


@pytest.fixture(scope="module")
def deployed() -> ValueStreamLaw:
    return calibrate(ValueStreamParameters(1.0, 2), EPOCHS)


def extremes(law: ValueStreamLaw, choose: Callable[..., NDArray[np.int16]]) -> tuple[float, float]:
    histories = Histories(law, DEVICES)
    least, most = math.inf, 0.0
    for epoch, values in enumerate(toggling(), start=1):
        histories.tell(epoch, values, choose)
        least = min(least, histories.likelihoods.min())
        most = max(most, histories.likelihoods.max())
    return least, most


def bounds(law: ValueStreamLaw) -> tuple[float, float]:
    """Return m and m e^epsilon, with the epsilon before rounding."""
    noise = law.probability_of_noise
    return noise, noise + (1 - noise) / law.beginning


@pytest.mark.parametrize("choose", [up, down])
def test_likelihoods_stay_within_the_bounds_for_any_changes(
    deployed: ValueStreamLaw, choose: Callable[..., NDArray[np.int16]]
) -> None:
    least, most = extremes(deployed, choose)
    low, high = bounds(deployed)
    assert low * (1 - 1e-13) <= least <= most <= high * (1 + 1e-13)
    if choose is up:
        assert most > 0.99 * high, "the bound is attained"


def test_likelihoods_stay_within_the_bounds_for_adaptive_streams(deployed: ValueStreamLaw) -> None:
    low, high = bounds(deployed)
    for sign in (1, -1):
        histories = Histories(deployed, DEVICES)
        values = np.zeros(DEVICES, np.int64)
        for epoch in range(1, EPOCHS + 1):
            sums = sign * histories.state_arrays()["sum"].astype(np.float64)
            toggled = epoch % (1 + np.arange(DEVICES) % 7) == 0
            values = np.where(toggled, (sums <= np.median(sums)).astype(np.int64), values)
            histories.tell(epoch, values, up if epoch % 3 else down)
            assert histories.likelihoods.min() >= low * (1 - 1e-13)
            assert histories.likelihoods.max() <= high * (1 + 1e-13)


class WithoutReserve(Histories):
    """Mutation in which u can use up the whole squared-norm budget."""

    def _limits(self, squared_norm_budget: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.sqrt(squared_norm_budget) * (1 - 1e-6)


@pytest.mark.parametrize("kind", [Histories, WithoutReserve])
def test_clipping_bounds_the_loss_unconditionally(
    deployed: ValueStreamLaw, kind: type[Histories]
) -> None:
    """Test single changes of many sizes that would exhaust the budget, and later epochs."""
    _, high = bounds(deployed)
    most = 0.0
    for share in np.linspace(0.5, 1, 50):
        law = replace(deployed, squared_norm_budget=float(share) * deployed.boost**2)
        histories = kind(law, 1)
        for epoch in (1, 2, 3):
            histories.tell(epoch, np.ones(1, np.int64), up)
            most = max(most, float(histories.likelihoods[0]))
    if kind is Histories:
        assert most <= high * (1 + 1e-13)
    else:
        assert most > high * 1.001


def test_theta_without_the_reserve_lowers_the_loss_or_is_rejected(deployed: ValueStreamLaw) -> None:
    """If one r excludes the reserve, theta is too small and loses less, or is too large."""
    shorter = deployed.squared_norm_budget - deployed.reserve
    goal = deployed.theta * math.sqrt(shorter)
    theta = goal / math.sqrt(deployed.squared_norm_budget)
    assert replace(deployed, theta=theta).loss < deployed.loss
    with pytest.raises(ValueError, match="loss"):
        replace(deployed, theta=deployed.theta * math.sqrt(deployed.squared_norm_budget / shorter))


def forged(law: ValueStreamLaw) -> Iterator[ValueStreamLaw]:
    """Return uncalibrated constants that devices still accept."""
    least = (law.boost + 0.5) ** 2 / 40
    changes: tuple[dict[str, Any], ...] = (
        *({"theta": theta} for theta in (1e-9, law.theta / 4)),
        *(
            {"boost": boost, "squared_norm_budget": (boost + 0.5) ** 2}
            for boost in (0.0, 9.0, 1e6, 1e150)
        ),
        *({"decay": decay} for decay in (0.0, 1 - 1e-9)),
        *({"max_changes": number} for number in (1, 1 << 15)),
        *(
            {"squared_norm_budget": squared_norm_budget}
            for squared_norm_budget in (least * (1 + 1e-9), 1e6, 1e300)
        ),
        {"noise": (1 << 64) - 1},
        {"gain": 1e300},
    )
    for change in changes:
        yield replace(law, **change)


@pytest.mark.parametrize("epsilon", thinned([0.25, 4.0], 2))
def test_forged_constants_never_lose_more_than_epsilon(epsilon: float) -> None:
    """Devices enforce the budgets of arbitrary constants, and compute the loss from them."""
    for law in forged(calibrate(ValueStreamParameters(epsilon, 2), 2)):
        assert largest_loss(law) <= law.loss <= law.epsilon
    for law in forged(calibrate(ValueStreamParameters(epsilon, 2), EPOCHS)):
        low, high = bounds(law)
        for choose in (up, down):
            least, most = extremes(law, choose)
            assert low * (1 - 1e-13) <= least <= most <= high * (1 + 1e-13)


@pytest.mark.parametrize("change", [{"theta": 3.0}, {"theta": 1e300}, {"noise": 1}])
def test_constants_that_understate_the_loss_are_rejected(
    deployed: ValueStreamLaw, change: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="loss is"):
        replace(deployed, **change)


def test_too_few_input_independent_devices_are_rejected(deployed: ValueStreamLaw) -> None:
    with pytest.raises(ValueError, match="loss"):
        replace(deployed, noise=deployed.noise * 99 // 100)
