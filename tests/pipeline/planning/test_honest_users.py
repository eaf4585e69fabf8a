"""Test the guarantee that remains with fewer honest contributors than assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.planning.outlook import (
    SHARES,
    HonestContributors,
    contributor_curve,
)
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.accounting.cell_noise import noise_of_cells
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, DummyLaw
from dpstream.randomizers.count_min import CountMinLaw
from dpstream.randomizers.count_min.calibration import epsilon_with
from tests.support.new_jobs import new_job

ITEMS = [f"item{number}" for number in range(50)]


def job_of(protocol: str, more: dict[str, Any], epochs: int = 4, minimum: int = 10_000) -> Job:
    delta = {} if protocol == "future_rand" else {"delta": 1e-6}
    return new_job(
        "curve", protocol, {"epsilon": 1, **delta, **more}, count=epochs, minimum=minimum
    )


def curve_of(
    protocol: str, more: dict[str, Any], shares: Sequence[float] = SHARES, minimum: int = 10_000
) -> tuple[HonestContributors, ...]:
    job = job_of(protocol, more, minimum=minimum)
    return contributor_curve(PROTOCOLS[protocol], job.calibrate(), shares)


LAWS: list[tuple[str, dict[str, Any]]] = [
    ("count_min", {"domain": ITEMS}),
    ("count_min", {"domain": ITEMS, "items": 3, "rows": 4, "buckets": 20}),
    ("count_min", {"domain": ITEMS, "dummies": "negative_binomial"}),
    ("count_min", {"domain": ITEMS, "dummies": "bernoulli"}),
    ("count_min", {"domain": {"low": 0, "high": 64, "buckets": 64}}),
    ("hadamard", {"domain": ITEMS}),
    ("hadamard", {"domain": ITEMS, "dummies": "bernoulli"}),
    ("single_message", {"domain": ITEMS[:3]}),
    ("single_message", {"domain": ITEMS[:3], "items": 2}),
    ("shuffled_counts", {}),
    ("shuffled_counts", {"dummies": "negative_binomial"}),
    ("shuffled_counts", {"max_changes": 2, "boost": 1}),
    ("shuffled_counts", {"domain": ITEMS}),
    ("shuffled_counts", {"domain": ITEMS, "max_changes": 2, "boost": 1, "cells": "count_min"}),
]


@pytest.mark.parametrize(("protocol", "more"), LAWS)
def test_loss_grows_as_the_number_of_honest_users_decreases(
    protocol: str, more: dict[str, Any]
) -> None:
    curve = curve_of(protocol, more, (1.0, 0.9, 0.5))
    assert [each.contributors for each in curve] == [10_000, 9_000, 5_000]
    whole, most, half = (each.epsilon or math.inf for each in curve)
    # A fixed number of dummies is rounded up, which can give more noise than required.
    assert 0.95 < whole <= 1 + 1e-6
    assert 1.02 < most < 1.12
    assert 1.4 < half < 2.2


SETTING_ASIDE = (
    "dpstream.randomizers.count_min.calibration",
    "dpstream.randomizers.count_min.code_noise",
    "experiments.protocols.fragments.calibration",
    "experiments.protocols.hadamard.calibration",
    "dpstream.randomizers.shuffled_counts.calibration",
    "dpstream.randomizers.shuffled_counts.shuffled_item_counts.calibration",
    "dpstream.randomizers.shuffled_counts.shuffled_level_counts.calibration",
    "dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration",
)


@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        ("count_min", {"domain": ITEMS, "rows": 2, "buckets": 11}),
        ("count_min", {"domain": ITEMS, "rows": 1, "dummies": "bernoulli", "calibration": "exact"}),
        ("hadamard", {"domain": ITEMS}),
        ("fragments", {"domain": ITEMS}),
        ("shuffled_counts", {}),
        ("shuffled_counts", {"max_changes": 2, "boost": 1}),
        ("shuffled_counts", {"domain": ITEMS, "buckets": 11}),
        ("shuffled_counts", {"domain": {"low": 0, "high": 8, "buckets": 8}}),
        ("shuffled_counts", {"max_changes": 2, "dummies": "shuffle"}),
    ],
)
def test_noise_and_losses_depend_only_on_the_part_of_delta_that_is_not_reserved(
    protocol: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reserving 1/2 of a delta, or 3/4 of its double, leaves the same delta for the noise."""
    found = []
    for share, delta in ((0.5, 3.125e-7), (0.75, 6.25e-7)):
        for module in SETTING_ASIDE:
            monkeypatch.setattr(f"{module}.FOR_TABLES", share)
        law = job_of(protocol, {**more, "delta": delta}, epochs=2).calibrate()
        curve = contributor_curve(PROTOCOLS[protocol], law, (1.0, 0.5))
        facts = law.to_json()
        assert facts.pop("delta") == delta
        found.append((facts, [each.epsilon for each in curve]))
    assert found[0] == found[1]


def test_loss_with_half_of_the_honest_users_matches_the_reference() -> None:
    """Section 2 of the reference: epsilon 1 becomes 1.69."""
    curve = curve_of("count_min", {"domain": ITEMS, "rows": 1})
    epsilons = {each.share: math.inf if each.epsilon is None else each.epsilon for each in curve}
    assert epsilons[1.0] == pytest.approx(1.0, abs=1e-3)
    assert epsilons[0.5] == pytest.approx(1.69, abs=0.005)
    # With a tenth of the users, a cell without dummies is too likely, and reveals the message.
    assert epsilons[0.1] == math.inf
    assert list(epsilons.values()) == sorted(epsilons.values())


def test_number_of_honest_users_is_rounded_down() -> None:
    half, nothing = curve_of("count_min", {"domain": ITEMS}, (0.5, 0.0001), minimum=999)
    assert (half.contributors, nothing.contributors, nothing.epsilon) == (499, 0, None)
    law = job_of("count_min", {"domain": ITEMS}, minimum=999).calibrate()
    assert isinstance(law, CountMinLaw)
    assert half.epsilon == epsilon_with(law, 499) > epsilon_with(law, 500)


@pytest.mark.parametrize("dummies", ["poisson", "bernoulli", "negative_binomial"])
def test_noise_from_all_users_equals_the_sum_of_the_noise_from_two_halves(
    dummies: DummyLaw,
) -> None:
    law = CellNoiseLaw(dummies, 9.0, 40, shape=4.0 if dummies == "negative_binomial" else None)
    whole, half = (noise_of_cells(law, contributors) for contributors in (40, 20))
    of_half = half.weights(0, int(min(300, half.largest)))[0]
    expected = whole.weights(0, int(min(300, whole.largest)))[0]
    assert np.convolve(of_half, of_half)[: len(expected)] == pytest.approx(expected, abs=1e-14)


def test_published_calibration_adds_more_noise_than_required() -> None:
    (half,) = curve_of("count_min", {"domain": ITEMS, "calibration": "published"}, (0.5,))
    assert half.epsilon is not None
    assert half.epsilon < 0.3


def test_loss_of_the_published_calibration_includes_repeated_increments_to_a_cell() -> None:
    more = {"domain": ITEMS, "items": 3, "rows": 1, "calibration": "published"}
    law = job_of("count_min", more, minimum=100_000).calibrate()
    assert isinstance(law, CountMinLaw)
    assert epsilon_with(law, 10_000) > 1.2 * epsilon_with(replace(law, calibration="exact"), 10_000)


@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        ("count_min", {"domain": ITEMS, "dummies": "shuffle"}),
        ("shuffled_counts", {"dummies": "shuffle"}),
        ("future_rand", {"max_changes": 2}),
    ],
)
def test_contributor_curve_is_empty_if_no_honest_users_are_assumed(
    protocol: str, more: dict[str, Any]
) -> None:
    assert curve_of(protocol, more) == ()
