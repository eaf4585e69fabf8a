"""Accounting that says less than is lost is convicted by the attack that computes it anew.

That what is installed is acquitted is in `test_quick_audit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest

from dpstream.pipeline.audit.findings import Finding
from dpstream.pipeline.audit.recomputed import answers, cells, compositions, crowds, rounded, sets
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
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.crowds import CrowdCounts
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.noise_tables import NoiseTable, poisson_table


def installed(module: ModuleType, name: str) -> Any:
    """What a module computes with, before it is replaced."""
    return getattr(module, name)


def reasons(findings: Iterable[Finding]) -> str:
    return "\n".join(finding.reason for finding in findings if finding.convicted)


def test_outcomes_of_many_draws_are_all_there() -> None:
    pair = [(3, 1), (1, 2), (4, 5)]
    seen = list(repeated(pair, 5))
    assert sum(one for one, _ in seen) == sum(other for _, other in seen) == 8**5
    # 3 and 1 of 4: apart by 1/2, and by 3 - e of 4 where e is what epsilon allows.
    assert float(excess([(3, 1), (1, 3)], 0.0, 4)) == pytest.approx(0.5)
    assert float(excess([(3, 1), (1, 3)], 0.5, 4)) == pytest.approx((3 - math.exp(0.5)) / 4)
    assert excess([(3, 1), (1, 3)], math.log(3), 4) == 0


@pytest.mark.parametrize(
    "noise", [PoissonNoise(3.0), BinomialNoise(9, 0.3), NegativeBinomialNoise(1.5, 3.0)]
)
def test_laws_of_noise_are_whole_and_have_their_mean(noise: CellNoise) -> None:
    law = law_of_noise(noise)
    assert sum(law.values()) / UNIT == pytest.approx(1.0, abs=1e-9)
    mean = sum(count * weight for count, weight in law.items()) / UNIT
    assert mean == pytest.approx(noise.mean, abs=1e-8)
    seen = shifted(noise, 2)
    assert (law[0], 0) in seen
    assert (law[3], law[1]) in seen


class Fewer(LossDistribution):
    """Says less than a distribution does."""

    def delta(self, epsilon: float) -> float:
        return 0.9 * super().delta(epsilon)


def composing(times: Callable[[int], int]) -> Callable[..., LossDistribution]:
    composed = installed(compositions, "composed")
    return lambda kinds, width: composed([(losses, times(count)) for losses, count in kinds], width)


@pytest.mark.parametrize(
    "times",
    [lambda many: max(1, many - 1), lambda many: 1 << many.bit_length() - 1],
    ids=["one less", "the largest power of two"],
)
def test_draws_that_are_forgotten_are_convicted(
    times: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compositions, "composed", composing(times))
    assert "states a delta" in reasons(compositions.compositions())


def test_a_tail_that_is_cut_off_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = installed(compositions, "composed")
    monkeypatch.setattr(
        compositions, "composed", lambda *given: replace(composed(*given), certain=0.0)
    )
    assert "10 draws and epsilon 33.2" in reasons(compositions.compositions())


def test_too_little_for_tables_and_for_many_mechanisms_is_convicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compositions, "delta_of_tables", lambda epsilon, off, draws: draws * off)
    composed_loss = installed(compositions, "composed_loss")

    def half(*given: Any) -> tuple[float, float]:
        epsilon, delta = composed_loss(*given)
        return 0.8 * epsilon, delta

    monkeypatch.setattr(compositions, "composed_loss", half)
    found = reasons(compositions.compositions())
    assert "from its law" in found
    assert "randomized responses of odds" in found


@pytest.mark.parametrize(
    "parts", [lambda kinds: kinds[:1], lambda kinds: [replace(kinds[0], shift=1)]]
)
def test_cells_that_are_forgotten_are_convicted(
    parts: Callable[[Sequence[Any]], Sequence[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    delta_spent = installed(cells, "delta_spent")
    monkeypatch.setattr(
        cells, "delta_spent", lambda kinds, epsilon: delta_spent(parts(kinds), epsilon)
    )
    monkeypatch.setattr(cells, "NOISES", (PoissonNoise(6.0),))
    monkeypatch.setattr(cells, "_horizons", list)
    monkeypatch.setattr(cells, "_long_horizon", list)
    assert "PoissonNoise(mean=6.0) shifted by" in reasons(cells.shifted_cells())


def test_noise_of_one_epoch_for_a_horizon_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    poisson = installed(cells, "poisson_for_epochs")
    monkeypatch.setattr(
        cells, "poisson_for_epochs", lambda epsilon, delta, epochs: poisson(epsilon, delta, 1)
    )
    monkeypatch.setattr(cells, "NOISES", ())
    found = reasons(cells.shifted_cells())
    assert "in 2 epochs" in found
    assert "for 1,000 epochs" in found


@pytest.mark.parametrize("shift", [1, -1])
def test_a_delta_is_the_least_whichever_world_is_the_true_one(shift: int) -> None:
    """What only one of them can give is as likely as no dummy at all."""
    alone = least_delta([shifted(PoissonNoise(0.5), shift)], 1.0)
    assert alone >= Fraction(math.exp(-0.5)) - Fraction(1, 10**12)
    assert least_delta([shifted(PoissonNoise(0.5), each) for each in (1, -1)], 1.0) > alone


def test_sets_that_are_charged_like_an_item_are_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate = installed(sets, "calibrate")

    def of_one(parameters: Any, last_epoch: int, minimum: int) -> Any:
        return calibrate(replace(parameters, items=1), last_epoch, minimum)

    overlapping = installed(sets, "epsilon_for_overlapping")
    monkeypatch.setattr(sets, "calibrate", of_one)
    monkeypatch.setattr(
        sets,
        "epsilon_for_overlapping",
        lambda mean, delta, overlap, items: overlapping(mean, delta, overlap / 3, items),
    )
    found = reasons(sets.sets_of_items())
    assert "for two items with" in found
    assert "told with their items" in found


def test_crowds_that_lose_more_are_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    delta, calibrate = installed(crowds, "delta_of_counts"), installed(crowds, "calibrate")

    def careless(epsilon: float, wanted: float, epochs: int) -> CrowdCounts:
        law: CrowdCounts = calibrate(epsilon, wanted, 1)
        (down, up) = law.decay
        return replace(law, decay=(down - 2, up))

    monkeypatch.setattr(crowds, "delta_of_counts", lambda *given: delta(*given) / 2)
    monkeypatch.setattr(crowds, "calibrate", careless)
    once, several, asked = crowds.crowds()
    assert "a decay of 0.8" in once.reason
    assert "at 10 epochs" in several.reason
    assert "sizes lose more" in asked.reason


def test_reports_and_horizons_that_are_charged_once_are_convicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unchanged = installed(answers, "unchanged_loss")
    monkeypatch.setattr(
        answers, "unchanged_loss", lambda *given: unchanged(*given[:2], 1, given[3])
    )
    monkeypatch.setattr(Guarantee, "over", lambda guarantee, horizons: guarantee)
    found = reasons(answers.answers_and_horizons())
    assert "reports of 1 bits that stay" in found
    for name in answers.RENEWED:
        assert f"horizons of {name}" in found
    monkeypatch.setattr(answers, "unchanged_loss", unchanged)
    monkeypatch.setattr(answers, "stream_loss", unchanged)
    assert "bits that change" in reasons(answers.answers_and_horizons())


def nudged(law: ComposedLaw) -> ComposedLaw:
    """Its largest weight is one more."""
    most = max(law.weights)
    return ComposedLaw(tuple(weight + (weight == most) for weight in law.weights))


def test_what_is_rounded_the_other_way_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    optimal, rate, calibrate = (
        installed(rounded, "optimal"),
        installed(rounded, "cluster_rate"),
        installed(rounded, "calibrate_fragments"),
    )

    def answering(*given: Any) -> Any:
        law = calibrate(*given)
        kept, reversed_ = law.backstop.weights
        return replace(law, backstop=ComposedLaw((kept + 1, reversed_ - 1)))

    of_stage = CellNoiseLaw.of_stage

    def less(law: CellNoiseLaw, count: int) -> Any:
        dummies = of_stage(law, count)
        assert dummies is not None
        return replace(dummies, rate=math.nextafter(law.mean * count, 0.0))

    def sure(mean: float) -> NoiseTable:
        return replace(poisson_table(mean), distance=2.0**-128)

    monkeypatch.setattr(rounded, "optimal", lambda *given: nudged(optimal(*given)))
    monkeypatch.setattr(rounded, "calibrate_fragments", answering)
    monkeypatch.setattr(CellNoiseLaw, "of_stage", less)
    monkeypatch.setattr(rounded, "cluster_rate", lambda *given: math.nextafter(rate(*given), 0.0))
    monkeypatch.setattr(rounded, "MISFIT", 2.0**-120)
    monkeypatch.setattr(rounded, "poisson_table", sure)
    deviation = installed(rounded, "normal_deviation")
    monkeypatch.setattr(rounded, "normal_deviation", lambda *given: 0.999 * deviation(*given))
    found = [finding.reason for finding in rounded.rounding()]
    wanted = ["asked for", "permanent answers", "add", "clusters", "anew", "a table", "normal"]
    assert len(found) == len(wanted)
    for reason, word in zip(found, wanted, strict=True):
        assert word in reason
