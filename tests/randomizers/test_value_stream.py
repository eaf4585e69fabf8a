"""Test the parts of value_stream: constants, symbols, draws and tracked changes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import Any, cast

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import (
    best_kernel,
    best_threshold,
    calibrate,
    law_of_budget,
    law_with,
)
from dpstream.randomizers.value_stream.lattice import (
    NOWHERE,
    symbols_at,
    tail_box,
    tail_symbols_at,
    weights,
)
from dpstream.randomizers.value_stream.normal import LEAST, MOST, distribution_function
from dpstream.randomizers.value_stream.tilt import FLOOR, draw_tilted_symbols, reach
from tests.support.sent_symbols import SYMBOLS, Histories, tilts_of_symbols
from tests.support.thinned import thinned

FALSE_ALARM = 1e-12


class Told:
    """Generator that returns exactly the given random integers."""

    def __init__(self, words: Sequence[int]) -> None:
        self.words = list(words)

    def integers(self, low: int, high: int, size: int, dtype: type) -> NDArray[np.uint64]:
        assert (low, high, dtype) == (0, 1 << 64, np.uint64)
        told, self.words = self.words[:size], self.words[size:]
        assert len(told) == size
        return np.array(told, np.uint64)


@pytest.mark.parametrize(
    ("epsilon", "gain", "noise", "beginning"),
    [
        (0.25, 0.0997122, 0.8843820, 0.4602864),
        (0.5, 0.1992844, 0.7854690, 0.4210201),
        (1.0, 0.3974630, 0.6274751, 0.3455130),
        (2.0, 0.7864803, 0.4203952, 0.2157931),
        (4.0, 1.5156377, 0.2235409, 0.0648055),
        (8.0, 2.7429448, 0.0992790, 0.0030445),
    ],
)
def test_calibrated_constants_match_golden_values(
    epsilon: float, gain: float, noise: float, beginning: float
) -> None:
    law = calibrate(ValueStreamParameters(epsilon, 2), 64)
    assert best_threshold(epsilon) == pytest.approx(gain, abs=6e-8)
    assert law.gain == pytest.approx(gain, abs=1e-6)
    assert law.theta == pytest.approx(law.gain, rel=1e-12), "the gain equals theta"
    assert law.probability_of_noise == pytest.approx(noise, abs=1e-6)
    assert law.beginning == pytest.approx(beginning, abs=1e-6)
    assert epsilon - 2e-6 < law.loss <= epsilon


@pytest.mark.parametrize(
    ("epochs", "changes", "kernel", "squared_norm_budget", "with_reserve", "mean", "first", "last"),
    [
        (170, 2, (4.5, 0.5375), 118.913975, 119.538975, 0.06136658, 0.033058, 0.062439),
        (170, 4, (3.05, 0.43), 109.554349, 109.869412, 0.10293209, 0.060966, 0.103897),
        (256, 4, (3.82, 0.495), 171.570714, 172.037274, 0.07708312, None, None),
        (64, 4, (1.6, 0.24), 35.286927, 35.397177, 0.21072216, None, None),
        (1024, 4, (7.45, 0.662), 739.372852, 740.952915, 0.02967116, None, None),
    ],
)
def test_norm_budgets_and_variances_match_golden_values(
    epochs: int,
    changes: int,
    kernel: tuple[float, float],
    squared_norm_budget: float,
    with_reserve: float,
    mean: float,
    first: float | None,
    last: float | None,
) -> None:
    chosen = Kernel(*kernel)
    law = law_with(chosen, ValueStreamParameters(1.0, changes), epochs)
    variances = chosen.variances(epochs)
    assert chosen.squared_norm_budget(epochs, changes) == pytest.approx(
        squared_norm_budget, abs=1e-6
    )
    assert law.squared_norm_budget == pytest.approx(with_reserve, abs=1e-6)
    assert variances.mean() == pytest.approx(mean, abs=1e-8)
    if first is not None:
        assert variances[0] == pytest.approx(first, abs=1e-6)
        assert variances[-1] == pytest.approx(last, abs=1e-6)


@pytest.mark.parametrize(
    ("epochs", "changes", "error"),
    [
        *[(64, 1, 4.51), (64, 4, 6.86), (64, 16, 9.36), (170, 2, 6.80), (170, 4, 8.45)],
        *[(256, 1, 5.83), (256, 4, 9.15), (256, 16, 13.77), (1024, 1, 7.44), (1024, 4, 11.78)],
        *[(1024, 16, 18.36), (4096, 1, 9.43), (4096, 4, 14.98), (4096, 16, 23.63)],
    ],
)
def test_best_boost_and_decay_have_expected_errors(epochs: int, changes: int, error: float) -> None:
    """RMSE / sqrt(users) at epsilon 1; the reserved part of the budget costs up to 0.6 %."""
    kernel = best_kernel(epochs, changes)
    law = calibrate(ValueStreamParameters(1.0, changes), epochs)
    planned = math.sqrt(law.squared_norm_budget * kernel.variances(epochs).mean()) / law.gain
    assert error * 0.999 < planned < error * 1.008


class Unlimited(Histories):
    def _limits(self, squared_norm_budget: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.full(len(squared_norm_budget), math.inf)


@pytest.mark.parametrize(("epochs", "changes"), [(5, 1), (7, 3), (9, 2), (6, 9)])
def test_no_stream_exceeds_the_norm_budget(epochs: int, changes: int) -> None:
    """Enumerate all streams; clipping never affects a device that is always present."""
    law = law_with(Kernel(1.3, 0.4), ValueStreamParameters(1.0, changes), epochs)
    streams = np.arange(1 << epochs)
    histories = Unlimited(law, len(streams))
    for epoch in range(1, epochs + 1):
        histories.tell(epoch, streams >> (epoch - 1) & 1, np.zeros(len(streams), np.int16))
    left = histories.state_arrays()["left"].min()
    assert left >= law.reserve * (1 - 1e-12)
    if changes == 1:
        assert left == pytest.approx(law.reserve), "one stream spends all but the reserve"


def test_normal_distribution_function_is_accurate_and_reproducible() -> None:
    points = np.linspace(LEAST, MOST, 4001)
    expected = np.array([float(mpmath.ncdf(point)) for point in points.tolist()])
    found = distribution_function(points)
    assert np.abs(found / expected - 1).max() < 2e-13
    assert distribution_function(np.array([-9.0, 9.0])).tolist() == [found[0], found[-1]]
    assert found[-1] == pytest.approx(1.0, abs=1e-15)
    assert found.max() <= 1
    # Results are compared exactly, since all devices must draw the same symbols.
    pinned = distribution_function(np.array([-4.7, -1.03, 0.4, 2.9])).tolist()
    assert [each.hex() for each in pinned] == [
        "0x1.5d2ecebcbe1d0p-20",
        "0x1.3648414140273p-3",
        "0x1.4f9370429b7f4p-1",
        "0x1.ff0b71b1c9f00p-1",
    ]


def test_symbol_weights_are_standard_normal() -> None:
    assert sum(weights()) == 1 << 62
    assert weights() == weights()[::-1]
    for moment, expected in ((2, 1), (4, 3), (6, 15)):
        total = sum(int(z) ** moment * w for z, w in zip(SYMBOLS, weights(), strict=True))
        assert float(Fraction(total, 8**moment << 62)) == pytest.approx(expected, rel=1e-14)


def test_weight_of_a_symbol_is_the_number_of_integers_that_select_it() -> None:
    """Checked at both ends of every symbol's range, hence for all integers between."""
    first = 0
    for symbol, weight in zip(SYMBOLS.tolist(), weights(), strict=True):
        ends = np.array([first << 2, (first + weight << 2) - 1], np.uint64)
        assert symbols_at(ends).tolist() == [symbol, symbol]
        first += weight
    assert first == 1 << 62


def test_weight_of_a_tail_symbol_is_the_number_of_integers_that_select_it() -> None:
    first, shift = 0, 65 - tail_box().bit_length()
    for symbol, weight in zip(range(33, 73), weights()[72 + 33 :], strict=True):
        ends = np.array([first << shift, (first + weight << shift) - 1], np.uint64)
        assert tail_symbols_at(ends).tolist() == [symbol, symbol]
        first += weight
    assert tail_symbols_at(np.array([first << shift, (1 << 64) - 1], np.uint64)).tolist() == [
        NOWHERE,
        NOWHERE,
    ]
    assert tail_box() // 2 < first <= tail_box()


@pytest.mark.parametrize("step", [0.7, -0.7, 3.5, -0.02])
def test_tilted_symbols_have_the_exact_probabilities(step: float) -> None:
    draws = 400_000
    same = np.ones(draws)
    moved, left, goal = 1.0, 20.0, 2.5
    symbols = draw_tilted_symbols(
        step * same, moved * same, left * same, goal, seeded_generator(1, round(100 * step))
    )
    counts = np.bincount(symbols + 72, minlength=145)
    base = np.array(weights(), np.float64) / 2**62

    def likelihood(by: float) -> float:
        one = np.ones(1)
        expected = base * tilts_of_symbols(by * one, moved * one, left * one, goal)[0] * draws
        rare = expected < 10
        pooled = np.append(expected[~rare], expected[rare].sum())
        seen = np.append(counts[~rare], counts[rare].sum())
        keep = pooled > 5
        return float(
            stats.chisquare(seen[keep], pooled[keep] * seen[keep].sum() / pooled[keep].sum())[1]
        )

    assert likelihood(step) > FALSE_ALARM
    assert likelihood(step - 0.3) < FALSE_ALARM
    assert likelihood(step + 0.3) < FALSE_ALARM


def draw_told(words: Sequence[int], step: float = 0.5, moved: float = 0.0) -> int:
    rng = Told(words)
    symbols = draw_tilted_symbols(
        np.array([step]), np.array([moved]), np.array([9.0]), 2.0, cast(np.random.Generator, rng)
    )
    assert not rng.words
    return int(symbols[0])


def place_of(symbol: int) -> int:
    return sum(weights()[: symbol + 72]) << 2


def test_sampling_of_symbols_compares_all_64_bits() -> None:
    """A client that compares fewer bits would draw other symbols."""
    body = (1 << 64) - 1
    bound, of_zero = reach(np.array([2.0, 0.0]), np.array([9.0, 9.0]), 2.0)
    threshold = math.floor(of_zero / bound * 2**64)
    assert draw_told([body, place_of(0), threshold - 1]) == 0
    again = [body, body, place_of(16), place_of(-16), 0, 0]
    assert draw_told([body, place_of(0), threshold, *again]) == 16
    # For small probabilities the last bits matter, too.
    bound_below, of_zero_below = reach(np.array([-4.0, -6.0]), np.array([9.0, 9.0]), 2.0)
    threshold = math.floor(of_zero_below / bound_below * 2**64)
    assert threshold % 2048
    assert draw_told([body, place_of(0), threshold - 1], moved=-6.0) == 0
    assert draw_told([body, place_of(0), threshold, *again], moved=-6.0) == 16
    # The choice between body and tail also uses 64 bits.
    box = tail_box() / 2**62
    choice = math.floor(box / (box + bound) * 2**64)
    assert draw_told([choice - 1, 0, 0]) == 33
    assert draw_told([choice - 1, 0, 0], step=-0.5) == -33
    assert draw_told([choice, place_of(40), 0, *again]) == 16, "no symbol of the body"
    assert draw_told([choice, place_of(-40), 0]) == -40
    # In the tail the bound is 1.
    (of_tail,) = reach(np.array([0.5 * 33 / 8]), np.array([9.0]), 2.0)
    threshold = math.floor(of_tail * 2**64)
    assert draw_told([choice - 1, 0, threshold - 1]) == 33
    assert draw_told([choice - 1, 0, threshold, *again]) == 16
    # Some positions in the tail box select no symbol.
    assert draw_told([0, (1 << 64) - 1, 0, *again]) == 16


def test_number_of_tries_doubles_per_round_and_the_first_accepted_try_is_used() -> None:
    never = [(1 << 64) - 1] * 4
    places = [place_of(symbol) for symbol in (1, 2, 3, 4)]
    rejected = [*never[:1], *places[:1], *never[:1], *never[:2], *places[:2], *never[:2]]
    assert draw_told([*rejected, *never, *places, never[0], never[0], 0, 0]) == 3


def test_device_whose_probability_is_at_the_floor_draws_from_the_base_distribution() -> None:
    assert reach(np.array([-60.0]), np.array([1.0]), 2.0)[0] == FLOOR
    base = tilts_of_symbols(np.array([0.5]), np.array([-60.0]), np.array([1.0]), 2.0)
    assert base == pytest.approx(1.0, abs=1e-12)


def test_constants_round_trip_through_json() -> None:
    law = calibrate(ValueStreamParameters(1.0, 2), 170)
    body = json.loads(json.dumps(law.to_json()))
    assert ValueStreamLaw.from_json(body) == law
    for name, wrong in (
        ("noise", law.noise - (1 << 50)),
        ("noise", 1 << 64),
        ("squared_norm_budget", (0.5).hex()),
        ("theta", (law.theta + 1e-5).hex()),
        ("decay", (1.0).hex()),
        ("boost", (-1.0).hex()),
        ("gain", "nan"),
        ("epsilon", law.loss * 0.9999999),
        ("last_epoch", 0),
        ("changes", 1.5),
    ):
        with pytest.raises(ValueError, match=r"."):
            ValueStreamLaw.from_json({**body, name: wrong})


@pytest.mark.parametrize(
    ("epsilon", "changes"), [(0.0, 1), (11.0, 1), ("1", 1), (True, 1), (1.0, 0), (1.0, 2.0)]
)
def test_invalid_parameters_are_rejected(epsilon: float, changes: int) -> None:
    with pytest.raises(ValueError, match=r"is .*; expected"):
        ValueStreamParameters(epsilon, changes)


@pytest.mark.parametrize("epochs", range(1, 9))
@pytest.mark.parametrize("changes", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("rounding", [0.0, 0.25])
def test_norm_budget_equals_the_squared_norm_of_the_worst_stream(
    epochs: int, changes: int, rounding: float
) -> None:
    kernel = Kernel(boost=3.05, decay=0.43)

    def charge(lasted: int) -> float:
        left = [0.5 + kernel.boost * kernel.decay**age for age in range(lasted)]
        return sum((each + rounding) ** 2 for each in left)

    worst = 0.0
    for count in range(min(changes, epochs) + 1):
        for begins in combinations(range(epochs), count):
            before = begins[0] if begins else epochs
            lengths = [end - begin for begin, end in pairwise((*begins, epochs))]
            worst = max(worst, before * (0.5 + rounding) ** 2 + sum(map(charge, lengths)))
    assert kernel.squared_norm_budget(epochs, changes, rounding) == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("passed_over", [1, 2, 5])
def test_skipping_an_epoch_has_the_same_effect_as_absence(passed_over: int) -> None:
    law = calibrate(ValueStreamParameters(1.0, 2), 16)
    absent, called = ValueStream(law), ValueStream(law)
    first, none_present = np.arange(200) % 2, np.zeros(200, np.bool_)
    for devices in (absent, called):
        devices.enroll(200, seeded_generator(1))
        devices.report(1, first, None, seeded_generator(2))
    for epoch in range(2, 2 + passed_over):
        called.report(epoch, 1 - first, none_present, seeded_generator(3))
    later = [
        devices.report(2 + passed_over, 1 - first, None, seeded_generator(4)).tolist()
        for devices in (absent, called)
    ]
    assert later[0] == later[1]
    for name, array in absent.state_arrays().items():
        assert np.array_equal(array, called.state_arrays()[name]), name


def test_change_during_absence_is_boosted_only_if_its_time_is_known() -> None:
    law = calibrate(ValueStreamParameters(1.0, 2), 170)
    told, absent = Histories(law, 1), Histories(law, 1)
    none_present = np.zeros(1, np.bool_)
    rng = seeded_generator(1)
    for devices, known in ((told, np.ones(1, np.bool_)), (absent, None)):
        devices.tell(1, np.zeros(1, np.int64), np.zeros(1, np.int16))
        devices.follow(2, np.ones(1, np.int64), none_present, rng, known)
        devices.tell(3, np.ones(1, np.int64), np.zeros(1, np.int16))
    assert told.state_arrays()["followed"][0] == law.boost * law.decay
    assert absent.state_arrays()["followed"][0] == 0, "the time of the change is unknown"
    assert told.state_arrays()["changes"][0] == absent.state_arrays()["changes"][0] == 1
    left = [devices.state_arrays()["left"][0] for devices in (told, absent)]
    pulls = [0.5 + law.boost * law.decay, 0.5]
    assert [law.squared_norm_budget - 0.25 - pull**2 for pull in pulls] == pytest.approx(left)


def test_tracked_changes_decay_during_absence() -> None:
    law = calibrate(ValueStreamParameters(1.0, 2), 170)
    one, other = Histories(law, 2), Histories(law, 2)
    values, symbols = np.array([1, 0]), np.zeros(2, np.int16)
    for devices in (one, other):
        devices.tell(1, values, symbols)
    one.tell(2, values, symbols, np.zeros(2, np.bool_))
    one.tell(3, values, symbols, np.zeros(2, np.bool_))
    for devices in (one, other):
        devices.tell(4, values, symbols)
        assert devices.state_arrays()["followed"][0] == pytest.approx(law.boost * law.decay**3)
        assert devices.state_arrays()["left"][0] == pytest.approx(
            law.squared_norm_budget - (0.5 + law.boost) ** 2 - (0.5 + law.boost * law.decay**3) ** 2
        )


def test_mean_symbol_is_the_gain_times_the_tracked_value() -> None:
    """E z = g u / r for all streams, and the variance of z is 1."""
    law = calibrate(ValueStreamParameters(2.0, 2), 32)
    count = 200_000
    devices, rng = ValueStream(law), seeded_generator(3)
    devices.enroll(count, rng)
    stream = [0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1]
    pulls = np.zeros(len(stream))
    followed, before, made = 0.0, 0, 0
    for epoch, value in enumerate(stream, start=1):
        followed *= law.decay
        if value != before:
            followed += law.boost * (value - before) * (made < law.max_changes)
            made += 1
        before, pulls[epoch - 1] = value, value - 0.5 + followed
        words = devices.report(epoch, np.full(count, value), None, rng)[:, 0]
        symbols = (words.astype(np.float64) - 80) / 8
        expected = law.gain * pulls[epoch - 1] / math.sqrt(law.squared_norm_budget)
        assert abs(symbols.mean() - expected) < 7 / math.sqrt(count)
        assert abs(symbols.var() - 1) < 0.03
    assert np.abs(law.gain * pulls / math.sqrt(law.squared_norm_budget)).max() > 30 / math.sqrt(
        count
    ), "the test has power"
    assert made > law.max_changes, "also after the boosted changes"


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


def test_calibrated_loss_leaves_a_margin_for_rounding() -> None:
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


def test_symbols_on_a_coarser_lattice_have_a_larger_loss() -> None:
    assert loss_on_a_lattice(0.25) == pytest.approx(1.0000072, abs=2e-7)


@pytest.mark.verify
def test_loss_of_a_reimplementation_equals_the_loss_of_devices() -> None:
    expected = largest_loss(law_at_epsilon_itself(3, 2, 1.0))
    assert loss_on_a_lattice(0.125) == pytest.approx(expected, abs=1e-10)


def test_loss_exceeds_epsilon_if_calibration_ignores_the_reserve_or_symbol_sums() -> None:
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


def test_theta_computed_without_the_reserve_lowers_the_loss_or_is_rejected(
    deployed: ValueStreamLaw,
) -> None:
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


def test_share_of_input_independent_devices_that_is_too_small_is_rejected(
    deployed: ValueStreamLaw,
) -> None:
    with pytest.raises(ValueError, match="loss"):
        replace(deployed, noise=deployed.noise * 99 // 100)
