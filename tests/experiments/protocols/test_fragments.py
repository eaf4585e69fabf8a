from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from dpstream.randomizers.accounting.amplification import (
    amplified_delta,
    amplified_epsilon,
    of_randomized_response,
)
from dpstream.randomizers.composed import ComposedLaw
from experiments.protocols.fragments import (
    Fragments,
    FragmentsLaw,
    FragmentsParameters,
    Neighbors,
)
from experiments.protocols.fragments.calibration import (
    calibrate,
    epsilon_with,
    loss_of_report,
)
from tests.support.thinned import thinned

LABELS = tuple(f"item {number}" for number in range(40))
HORSE = 1_914_589
"""Respondents of the paper's image of a horse; its delta is 5e-8."""


def requested(epsilon: float, **others: Any) -> FragmentsParameters:
    return FragmentsParameters(epsilon, others.pop("delta", 1e-6), LABELS, **others)


def law_of(kept: float, reports: int = 1, **others: Any) -> FragmentsLaw:
    def odds(loss: float) -> ComposedLaw:
        return ComposedLaw((round(math.exp(loss) * (1 << 60)), 1 << 60))

    law = FragmentsLaw(
        last_epoch=1,
        items=3,
        slots=1,
        reports=reports,
        minimum=2,
        neighbors="replacement",
        calibration="exact",
        odds=odds(kept if reports == 1 else loss_of_report(kept, reports)),
        backstop=None if reports == 1 else odds(kept),
        epsilon=1.0,
        delta=0.1,
        stream_epsilon=1.0,
    )
    return replace(law, **others)


@pytest.mark.parametrize(
    ("contributors", "epsilon", "neighbors", "reversed_bits"),
    thinned(
        [
            (10**5, 0.25, "removal", 471.6),
            (10**5, 0.25, "replacement", 919.0),
            (10**5, 0.5, "removal", 135.4),
            (10**5, 0.5, "replacement", 260.7),
            (10**5, 1.0, "removal", 42.6),
            (10**5, 1.0, "replacement", 75.1),
            (10**5, 2.0, "removal", 18.1),
            (10**5, 2.0, "replacement", 24.4),
            (10**6, 0.25, "removal", 479.7),
            (10**6, 0.25, "replacement", 950.0),
            (10**6, 1.0, "replacement", 75.3),
            (10**6, 2.0, "removal", 18.1),
        ]
    ),
)
def test_calibration_reverses_the_fewest_bits_that_privacy_allows(
    contributors: int, epsilon: float, neighbors: Neighbors, reversed_bits: float
) -> None:
    law = calibrate(requested(epsilon, neighbors=neighbors), 1, contributors)
    probability = float(law.flips.probability)
    assert contributors * probability == pytest.approx(reversed_bits, rel=2e-3)
    # The stated guarantee holds, and would fail with half the noise.
    coin = of_randomized_response(law.odds.loss, 2)
    assert amplified_delta(coin, contributors, epsilon, law.differing_bits) <= 1e-6
    half = of_randomized_response(math.log(2 / probability - 1), 2)
    assert amplified_delta(half, contributors, epsilon, law.differing_bits) > 1e-5


@pytest.mark.parametrize(("loss", "blanket"), [(8.55, 0.337), (2.94, 0.0159)])
def test_exact_epsilon_for_the_horse_image_is_below_the_epsilon_in_the_paper(
    loss: float, blanket: float
) -> None:
    exact = amplified_epsilon(of_randomized_response(loss, 2), HORSE, 5e-8)
    assert exact == pytest.approx(blanket, rel=3e-3)


@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_published_calibration_is_private(epsilon: float) -> None:
    few = {"delta": 5e-8, "neighbors": "removal", "calibration": "published"}
    law = calibrate(requested(epsilon, **few), 1, HORSE)
    assert epsilon_with(law, HORSE) < epsilon
    assert Fragments(law).guarantee.epsilon == epsilon


@pytest.mark.parametrize("reports", [1, 2, 4])
@pytest.mark.parametrize("instances", [2, 3, 4])
def test_exposure_to_one_shuffler_matches_enumeration(reports: int, instances: int) -> None:
    """Enumerate the backstop, the bit of every report, and the shuffler of each set bit."""
    law = law_of(3.0, reports)
    backstop = law.backstop
    q = Fraction(law.odds.weights[0], sum(law.odds.weights))
    kept = Fraction(1) if backstop is None else Fraction(backstop.weights[0], sum(backstop.weights))
    seen: dict[tuple[int, ...], list[Fraction]] = {}
    for true, stays, bits in product((0, 1), (0, 1), product((0, 1), repeat=reports)):
        chance = kept if stays else 1 - kept
        bit = true if stays else 1 - true
        for report in bits:
            chance *= q if report == bit else 1 - q
        for goes in product((0, 1), repeat=reports):
            # An unset bit is not sent, which looks as if its message went elsewhere.
            if any(there and not report for there, report in zip(goes, bits, strict=True)):
                continue
            way = chance
            for there, report in zip(goes, bits, strict=True):
                if report:
                    way *= Fraction(1, instances) if there else 1 - Fraction(1, instances)
            seen.setdefault(goes, [Fraction(0), Fraction(0)])[true] += way
    assert sum(chance for _, chance in seen.values()) == 1
    for goes, (unset, set_) in seen.items():
        loss = abs(math.log(set_ / unset))
        stated = law.exposure_to_instance(sum(goes), instances)
        assert loss - 1e-12 <= stated <= loss + 1e-9
        assert stated <= law.exposure(reports) + 1e-12


def test_exposure_grows_with_the_number_of_reports_up_to_the_loss_of_the_backstop() -> None:
    law = law_of(6.0, reports=8, odds=ComposedLaw((round(math.exp(2) * (1 << 60)), 1 << 60)))
    told = {1: 1.9822, 2: 3.8731, 3: 5.3069, 4: 5.8731, 8: 6.0}
    for reports, exposure in told.items():
        assert law.exposure(reports) == pytest.approx(exposure, abs=6e-5)
    assert law.exposure(0) == 0.0
    assert law.local_epsilon == pytest.approx(2 * law.exposure(8))


@pytest.mark.parametrize(
    ("backstop", "reports", "first"),
    [(8.547, 4, 6.94), (8.547, 16, 5.71), (8.547, 256, 3.00), (2.94, 256, 0.03), (7.28, 16, 4.45)],
)
def test_exposure_of_a_report_matches_the_tables_in_the_paper(
    backstop: float, reports: int, first: float
) -> None:
    assert law_of(backstop, reports).exposure(1) == pytest.approx(first, abs=0.02)
