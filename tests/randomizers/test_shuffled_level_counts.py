"""Test shuffled counts of numbers over time: messages of a value, constants and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.item_domains import Bits, Numbers
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCounts
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_level_counts.calibration import (
    calibrate,
)

DELTA = 1e-6
EPOCHS = 6
RNG = seeded_generator(0)
HOURS = Numbers(0, 80, 8)
STAGE = CellNoiseLaw("shuffle", 1e-9, 1)


def sent(law: ShuffledLevelCountsLaw, *values: int) -> list[list[int]]:
    device = ShuffledItemCounts(law)
    device.enroll(1, RNG)
    return [
        sorted(written_out(device.report(epoch, np.array([value]), None, RNG))[:, 0].tolist())
        for epoch, value in enumerate(values, 1)
    ]


def test_value_is_counted_in_all_nodes_on_its_path_from_the_root() -> None:
    """The root is cell 0, its children are cells 1 to 4, and values are cells 5 to 12."""
    law = ShuffledLevelCountsLaw(EPOCHS, Levels(8, (4, 2)), 1.0, DELTA, 0, 0, STAGE, None)
    assert sent(law, 0, 5, 5, 8, 0) == [[], [0, 3, 9], [0, 3, 9], [0, 4, 12], []]
    assert law.words == law.message_format.distinct == 13


@pytest.mark.parametrize(("values", "word_bytes"), [(255, 1), (256, 2)])
def test_message_width_fits_the_last_cell(values: int, word_bytes: int) -> None:
    law = ShuffledLevelCountsLaw(EPOCHS, Levels(values, (values,)), 1.0, DELTA, 0, 0, STAGE, None)
    assert law.message_format.dtype.itemsize == word_bytes
    assert sent(law, values) == [[0, values]]


def test_boosted_change_is_sent_on_every_level_but_the_root() -> None:
    """Children are cells 0 to 3, values cells 4 to 11; cells of left values start at 12."""
    law = ShuffledLevelCountsLaw(EPOCHS, Levels(8, (4, 2)), 1.0, DELTA, 2, 1, STAGE, STAGE)
    first, second, third, *_ = sent(law, 5, 8, 1)
    assert first == [2, 2, 8, 8]
    assert second == [3, 3, 11, 11, 14, 20]
    assert third == [0, 4], "a third change is not boosted"
    assert law.words == 12


@pytest.mark.parametrize("parameters", [{}, {"max_changes": 1, "boost": 2}])
def test_dummies_are_uniform_over_cells_of_each_kind(parameters: dict[str, Any]) -> None:
    requested = ShuffledCountsParameters(1.0, DELTA, domain=HOURS, **parameters)
    law = calibrate(requested, EPOCHS, minimum=500)
    devices = ShuffledItemCounts(law)
    devices.enroll(1_000, RNG)
    words = written_out(devices.report(1, np.zeros(1_000, np.int64), None, RNG))[:, 0]
    counts = np.bincount(words, minlength=len(law.noises) * law.words)
    means = 2 * np.repeat([noise.mean for noise in law.noises], law.words)
    assert (np.abs(counts - means) < 8 * np.sqrt(means)).all()
    assert len(words) / 1_000 == pytest.approx(law.dummies_per_user, rel=0.05)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"domain": Bits(13)}, "8,192 numbers; expected at most 4,096"),
        ({"cells": "balls_into_bins"}, "a domain of numbers supports only 'count_min'"),
        ({"buckets": 7}, "requires item labels with 'cells: balls_into_bins'"),
        ({"dummies": "negative_binomial"}, "dummies: poisson"),
    ],
)
def test_contradictory_parameters_are_rejected(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ShuffledCountsParameters(**{"epsilon": 1.0, "delta": DELTA, "domain": HOURS, **parameters})
