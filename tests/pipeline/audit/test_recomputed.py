"""Test that recomputation fails accounting that understates a loss.

`test_quick_audit` checks that the installed accounting passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest

from dpstream.pipeline.audit.audits import Finding
from dpstream.pipeline.audit.recomputed import compositions, item_sets
from dpstream.pipeline.audit.recomputed.small_laws import (
    UNIT,
    excess,
    law_of_noise,
    least_delta,
    repeated,
    shifted,
)
from dpstream.randomizers.accounting.cell_noise import (
    BinomialNoise,
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.loss_distributions import LossDistribution


def installed(module: ModuleType, name: str) -> Any:
    return getattr(module, name)


def reasons(findings: Iterable[Finding]) -> str:
    return "\n".join(finding.reason for finding in findings if finding.failed)


def test_outcomes_of_repeated_draws_are_enumerated_completely() -> None:
    pair = [(3, 1), (1, 2), (4, 5)]
    seen = list(repeated(pair, 5))
    assert sum(one for one, _ in seen) == sum(other for _, other in seen) == 8**5
    # Probabilities 3/4 and 1/4: they differ by 1/2, and by (3 - e^epsilon) / 4 with epsilon.
    assert float(excess([(3, 1), (1, 3)], 0.0, 4)) == pytest.approx(0.5)
    assert float(excess([(3, 1), (1, 3)], 0.5, 4)) == pytest.approx((3 - math.exp(0.5)) / 4)
    assert excess([(3, 1), (1, 3)], math.log(3), 4) == 0


@pytest.mark.parametrize(
    "noise", [PoissonNoise(3.0), BinomialNoise(9, 0.3), NegativeBinomialNoise(1.5, 3.0)]
)
def test_noise_probabilities_sum_to_one_and_have_the_correct_mean(noise: CellNoise) -> None:
    law = law_of_noise(noise)
    assert sum(law.values()) / UNIT == pytest.approx(1.0, abs=1e-9)
    mean = sum(count * weight for count, weight in law.items()) / UNIT
    assert mean == pytest.approx(noise.mean, abs=1e-8)
    seen = shifted(noise, 2)
    assert (law[0], 0) in seen
    assert (law[3], law[1]) in seen


def composing(times: Callable[[int], int]) -> Callable[..., LossDistribution]:
    composed = installed(compositions, "composed")
    return lambda kinds, width: composed([(losses, times(count)) for losses, count in kinds], width)


@pytest.mark.parametrize(
    "times",
    [lambda many: max(1, many - 1), lambda many: 1 << many.bit_length() - 1],
    ids=["one less", "the largest power of two"],
)
def test_audit_detects_compositions_that_omit_draws(
    times: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compositions, "composed", composing(times))
    assert "states a delta" in reasons(compositions.compositions())


@pytest.mark.parametrize("shift", [1, -1])
def test_least_delta_covers_shifts_in_both_directions(shift: int) -> None:
    alone = least_delta([shifted(PoissonNoise(0.5), shift)], 1.0)
    assert alone >= Fraction(math.exp(-0.5)) - Fraction(1, 10**12)
    assert least_delta([shifted(PoissonNoise(0.5), each) for each in (1, -1)], 1.0) > alone


def test_audit_detects_item_sets_charged_like_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate = installed(item_sets, "calibrate")

    def of_one(parameters: Any, last_epoch: int, minimum: int) -> Any:
        return calibrate(replace(parameters, items=1), last_epoch, minimum)

    overlapping = installed(item_sets, "epsilon_for_overlapping")
    monkeypatch.setattr(item_sets, "calibrate", of_one)
    monkeypatch.setattr(
        item_sets,
        "epsilon_for_overlapping",
        lambda mean, delta, overlap, items: overlapping(mean, delta, overlap / 3, items),
    )
    found = reasons(item_sets.sets_of_items())
    assert "for two items with" in found
    assert "labeled with items" in found
