"""Test count_min: enough noise for every pair of sets, and the devices' encoding of sets."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dpstream.randomizers.accounting.cell_noise import PoissonNoise, noise_of_cells
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells, delta_spent, epsilon_spent
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_rows
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.count_min import CountMin, CountMinLaw, CountMinParameters
from dpstream.randomizers.count_min.calibration import calibrate, epsilon_with
from dpstream.randomizers.count_min.code_noise import (
    differing_cells,
    noise_for,
    stream_epsilon,
)
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator

LABELS = tuple("abcdefgh")
ASKED = CountMinParameters(1.0, 1e-6, LABELS, rows=1)


def law_of(minimum: int = 1000, last_epoch: int = 1, **changes: Any) -> CountMinLaw:
    return calibrate(replace(ASKED, **changes), last_epoch, minimum)


@pytest.mark.parametrize(
    ("rows", "items", "epsilon"), [(1, 1, 1.0), (2, 1, 0.5), (1, 2, 1.0), (2, 2, 4.0)]
)
def test_noise_is_sufficient_and_tight_for_all_pairs_of_sets(
    rows: int, items: int, epsilon: float
) -> None:
    code = HashedRows(6, rows, 5, "of sets") if rows > 1 else HashedRows.histogram(6)
    delta = 1e-4
    noise = noise_for(CountMinParameters(epsilon, delta, LABELS, items), code, 100)
    cells = code.encode(np.arange(1, 7))
    users = {
        frozenset(cells[list(held)].ravel().tolist())
        for many in range(items + 1)
        for held in combinations(range(6), many)
    }
    shifts = {(len(one - other), len(other - one)) for one in users for other in users}
    assert max(delta_of(noise.mean, epsilon, *each) for each in shifts) <= delta
    assert max(delta_of(0.98 * noise.mean, epsilon, *each) for each in shifts) > delta


def delta_of(mean: float, epsilon: float, up: int, down: int) -> float:
    parts = [ShiftedCells(PoissonNoise(mean), s, n) for s, n in ((1, up), (-1, down)) if n]
    return delta_spent(parts, epsilon) if parts else 0.0


def test_k_items_in_one_row_need_the_same_noise_as_one_item_in_k_rows() -> None:
    """k items in one row raise as many cells as one item in k rows."""
    code = HashedRows.histogram(8)
    for items in (1, 3, 8):
        noise = noise_for(replace(ASKED, items=items), code, 1000)
        assert noise.mean == pytest.approx(poisson_for_rows(1.0, 1e-6, items).mean, rel=1e-4)


def test_stated_epsilon_covers_all_items_of_a_set() -> None:
    law = law_of(items=3)
    parts = [ShiftedCells(PoissonNoise(law.noise.mean), shift, 3) for shift in (1, -1)]
    assert delta_spent(parts, law.epsilon * (1 + 1e-9)) <= 1e-6
    assert delta_spent(parts, 0.99 * law.epsilon) > 0.9e-6
    assert epsilon_with(law, 1000) == pytest.approx(epsilon_spent(parts, 1e-6))


def test_stream_epsilon_composes_the_losses_of_epochs() -> None:
    """All epochs lose more than one epoch and less than ten times that, with the same noise."""
    one, ten = law_of(), law_of(last_epoch=10)
    assert ten.noise == one.noise
    assert ten.epsilon == one.epsilon == 1.0
    assert one.stream_epsilon == pytest.approx(1.0, abs=1e-3)
    parts = [ShiftedCells(PoissonNoise(ten.noise.mean), shift, 10) for shift in (1, -1)]
    assert ten.stream_epsilon == pytest.approx(epsilon_spent(parts, 1e-6))
    assert 3.0 < ten.stream_epsilon < 5.0


@pytest.mark.parametrize("dummies", ["poisson", "bernoulli", "negative_binomial"])
def test_noise_for_several_epochs_yields_a_finite_stream_epsilon(dummies: str) -> None:
    """The noise for one epoch gives no finite epsilon for twelve epochs with the same delta."""
    one = law_of(epsilon=4.0, dummies=dummies)
    twelve = law_of(epsilon=4.0, dummies=dummies, last_epoch=12)
    code = HashedRows.histogram(len(LABELS))
    assert stream_epsilon(replace(ASKED, epsilon=4.0), code, one.noise, 12) == math.inf
    assert twelve.noise.mean < 1.3 * one.noise.mean
    assert twelve.epsilon < one.epsilon < 4.0
    assert twelve.stream_epsilon < 48.0
    for law in (one, twelve):
        (parts,) = differing_cells(noise_of_cells(law.noise), law.code.messages, 0, 1, 1)
        assert delta_spent(parts, law.epsilon * (1 + 1e-9)) <= 1e-6
        assert delta_spent(parts, 0.99 * law.epsilon) > 0.9e-6
        json.dumps(law.to_json(), allow_nan=False)


def test_published_calibration_matches_the_paper_or_is_rejected() -> None:
    law = law_of(calibration="published", minimum=100_000)
    assert law.noise.mean == pytest.approx(90 * math.log(2e6), rel=1e-9)
    assert CountMin(law).guarantee.basis == "bound"
    with pytest.raises(ValueError, match="expected at least 1306"):
        law_of(calibration="published", dummies="bernoulli", minimum=1000)
    with pytest.raises(ValueError, match="does not achieve epsilon 16"):
        law_of(calibration="published", epsilon=16.0)
    # Dummies of almost all contributors hide as little as dummies of almost none.
    with pytest.raises(ValueError, match="does not achieve epsilon 1 with 1306 contributors"):
        law_of(calibration="published", dummies="bernoulli", minimum=1306)


def test_shared_cell_is_sent_twice_only_by_the_published_calibration() -> None:
    code = HashedRows(50, 2, 4, "collisions")
    cells = code.encode(np.arange(1, 51))
    pair = next(
        [one, other]
        for one, other in combinations(range(50), 2)
        if np.count_nonzero(cells[one] == cells[other]) == 1
    )
    raised = cells[pair].ravel()
    exact = replace(law_of(items=2), code=code)
    published = replace(law_of(items=2, calibration="published"), code=code)
    for law, expected in ((exact, np.unique(raised)), (published, np.sort(raised))):
        assert real_messages(law, np.array(pair) + 1) == expected.tolist()


def test_duplicate_item_is_sent_once() -> None:
    law = law_of(items=3)
    assert real_messages(law, np.array([5, 0, 5])) == [4]
    assert real_messages(law, np.array([2, 5, 2])) == [1, 4]


def real_messages(law: CountMinLaw, held: Any) -> list[int]:
    quiet = replace(law, noise=replace(law.noise, mean=1e-12))
    devices = CountMin(quiet)
    devices.enroll(1, seeded_generator(1))
    words = written_out(devices.report(1, held[None], None, seeded_generator(2)))
    sent: list[int] = words[:, 0].tolist()
    return sent


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"items": 9}, "'items' is 9; expected 1 to 8"),
        ({"items": True}, "'items' is True"),
        ({"calibration": "published", "dummies": "shuffle"}, "bernoulli or poisson dummies"),
    ],
)
def test_invalid_parameters_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(ASKED, **changes)


def test_too_many_messages_per_user_are_rejected() -> None:
    with pytest.raises(ValueError, match="expected at most messages_per_user, 2"):
        law_of(minimum=100, messages_per_user=2, buckets=8)
