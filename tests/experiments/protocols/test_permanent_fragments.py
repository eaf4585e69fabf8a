"""Test fragments with a permanent backstop: its consistency over time and its privacy loss.

The losses of whole streams are compared with an enumeration of all possible reports of a bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpstream.aggregators.estimate import Participation
from dpstream.randomizers.accounting.amplification import amplified_delta, of_randomized_response
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.fragments import Fragments, FragmentsLaw, FragmentsParameters
from experiments.protocols.fragments.aggregator import (
    FragmentsAggregator,
    lasting_variance,
    noise_variance,
)
from experiments.protocols.fragments.calibration import calibrate, epsilon_with
from experiments.protocols.permanent_loss import stream_loss, unchanged_loss

WORDS = 1 << 32
EXACTLY = 1 << 200
"""Odds of reports that are almost never flipped."""


def law_of(
    threshold: int, odds: tuple[int, int], epochs: int = 2, reports: int = 1, **others: Any
) -> FragmentsLaw:
    law = FragmentsLaw(
        last_epoch=epochs,
        items=3,
        slots=1,
        reports=reports,
        minimum=2,
        neighbors="replacement",
        calibration="exact",
        odds=ComposedLaw(odds),
        backstop=ComposedLaw((WORDS - threshold, threshold)),
        epsilon=1.0,
        delta=0.1,
        stream_epsilon=1.0,
        permanent=True,
    )
    return replace(law, **others)


def requested(**others: Any) -> FragmentsParameters:
    labels = tuple(f"item {number}" for number in range(40))
    return FragmentsParameters(1.0, 1e-6, labels, permanent=True, **others)


def sent(devices: Fragments, epoch: int, values: list[int], seed: int = 1) -> list[int]:
    rows = np.array(values)[:, None]
    words = written_out(devices.report(epoch, rows, None, seeded_generator(130, seed)))
    counts: list[int] = np.bincount(words[:, 0], minlength=devices.law.words).tolist()
    return counts


def test_backstop_depends_only_on_value_and_device() -> None:
    law = law_of(WORDS // 3, (EXACTLY, 1), epochs=4, items=200, slots=1)
    devices = Fragments(law)
    devices.enroll(1, seeded_generator(131))
    first = sent(devices, 1, [5])
    assert sent(devices, 2, [5], seed=2) == first
    # Cells with an unchanged bit keep their answer; changed cells have independent answers.
    changed = sent(devices, 3, [9], seed=3)
    assert [cell for cell in range(200) if changed[cell] != first[cell]] in ([4], [8], [4, 8], [])
    restored = Fragments.restore(law, devices.state_arrays(), 3)
    assert sent(restored, 4, [5], seed=4) == first
    others = Fragments(law)
    others.enroll(1, seeded_generator(132))
    assert sent(others, 1, [5]) != first


def views(law: FragmentsLaw, stream: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
    assert law.backstop is not None
    stopped, reversed_ = (
        Fraction(odds.weights[1], sum(odds.weights)) for odds in (law.backstop, law.odds)
    )
    found = dict.fromkeys(product((0, 1), repeat=law.reports * len(stream)), Fraction())
    for answers in product((0, 1), repeat=2):
        drawn = math.prod(
            stopped if answer != value else 1 - stopped for value, answer in enumerate(answers)
        )
        bits = [answers[value] for value in stream for _ in range(law.reports)]
        for reports in found:
            found[reports] += drawn * math.prod(
                reversed_ if report != bit else 1 - reversed_
                for report, bit in zip(reports, bits, strict=True)
            )
    return found


def loss(
    one: Mapping[tuple[int, ...], Fraction], other: Mapping[tuple[int, ...], Fraction]
) -> float:
    return math.log(max(likely / other[seen] for seen, likely in one.items()))


@pytest.mark.parametrize(("epochs", "reports"), [(1, 2), (2, 1), (5, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize(("threshold", "odds"), [(WORDS // 20, (5, 1)), (WORDS // 4, (30, 1))])
def test_local_losses_equal_the_largest_loss_over_all_possible_reports(
    epochs: int, reports: int, threshold: int, odds: tuple[int, int]
) -> None:
    law = law_of(threshold, odds, epochs, reports)
    assert law.backstop is not None
    total = epochs * reports
    drawn = {stream: views(law, stream) for stream in product((0, 1), repeat=epochs)}

    def largest(pairs: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> float:
        return max(loss(drawn[one], drawn[other]) for one, other in pairs)

    unchanged = largest([((1,) * epochs, (0,) * epochs), ((0,) * epochs, (1,) * epochs)])
    assert unchanged_loss(law.backstop, law.odds, total) == pytest.approx(unchanged, rel=1e-12)
    assert unchanged < law.backstop.loss
    whole = largest((one, other) for one in drawn for other in drawn)
    bound = stream_loss(law.backstop, law.odds, total)
    assert whole <= bound * (1 + 1e-12)
    if reports == 1 and epochs > 1:
        assert whole == pytest.approx(bound, rel=1e-12)
    once = largest(
        (one, other)
        for one in drawn
        for other in drawn
        if sum(a != b for a, b in zip(one, other, strict=True)) == 1
    )
    assert once <= law.local_epsilon / law.differing_bits * (1 + 1e-12)
    # Between two items, every differing bit counts.
    assert law.unchanged_epsilon == pytest.approx(2 * unchanged, rel=1e-12)
    assert law.changing_epsilon == pytest.approx(2 * bound, rel=1e-12)
    assert law.limit_epsilon == pytest.approx(2 * law.backstop.loss, rel=1e-12)


def test_loss_of_an_unchanged_value_is_at_most_that_of_the_backstop() -> None:
    law = law_of(WORDS // 1_000, (3, 1), epochs=100_000, reports=8)
    assert law.unchanged_epsilon == pytest.approx(2 * math.log(999), rel=1e-6)
    assert law.unchanged_epsilon <= law.limit_epsilon
    assert law.exposure(1) < law.exposure(8) < law.exposure(80) <= law.limit_epsilon / 2
    # Only the noise of reports hides changes.
    assert law.changing_epsilon > 100_000
    assert law.local_epsilon == pytest.approx(2 * 8 * math.log(3))


@pytest.mark.parametrize("reports", [1, 4])
def test_central_epsilon_covers_fresh_randomness_but_not_the_backstop(reports: int) -> None:
    law = calibrate(requested(reports=reports), 4, 10_000)
    coin = of_randomized_response(law.odds.loss, 2)
    assert amplified_delta(coin, 10_000, 1.0, 2 * reports) <= 1e-6
    assert amplified_delta(coin, 10_000, law.stream_epsilon, 4 * 2 * reports) <= 1e-6
    # Half of the calibrated noise is too little.
    half = of_randomized_response(math.log(2 * math.exp(law.odds.loss) + 1), 2)
    assert amplified_delta(half, 10_000, 1.0, 2 * reports) > 1e-5
    assert amplified_delta(half, 10_000, law.stream_epsilon, 4 * 2 * reports) > 1e-5
    assert epsilon_with(law, 10_000) == pytest.approx(1.0, abs=1e-3)
    assert epsilon_with(law, 5_000) > 1.3
    assert Fragments(law).guarantee.stream_epsilon == law.stream_epsilon


def test_intervals_for_sums_include_the_permanent_error_of_the_backstop() -> None:
    """Errors of the sum of four epochs contradict a standard error that assumes independence."""
    users, runs, epochs = 150, 150, 4
    law = law_of(WORDS // 10, (9, 1), epochs, items=2, minimum=10)
    participation = Participation.constant(epochs, users)
    errors, stated, single = [], 0.0, 0.0
    for run in range(runs):
        devices, aggregator = Fragments(law), FragmentsAggregator(law)
        rng = seeded_generator(135, run)
        devices.enroll(users, rng)
        for epoch in range(1, epochs + 1):
            values = np.repeat([0, 1, 1], users // 3)[:, None]
            aggregator.add(epoch, written_out(devices.report(epoch, values, None, rng)), None)
        total = aggregator.window(range(1, epochs + 1), participation)
        first = aggregator.window([1], participation)
        assert total is not None
        assert first is not None
        errors.append(float(total.values[0]) - epochs * 100)
        stated, single = total.standard_error, first.standard_error
        assert total.half_width == pytest.approx(1.96 * stated, rel=1e-3)
    own = noise_variance(law, users) - lasting_variance(law, users)
    lasting = lasting_variance(law, users)
    assert lasting > 0.35 * noise_variance(law, users)
    assert stated**2 == pytest.approx(epochs * own + epochs**2 * lasting)
    squares = float(np.square(errors).sum())

    def likely(deviation: float) -> float:
        return float(
            2 * min(stats.chi2.cdf(x := squares / deviation**2, runs), stats.chi2.sf(x, runs))
        )

    assert likely(stated) > 1e-11
    assert likely(single * math.sqrt(epochs)) < 1e-11
