"""Test the items that a simulation compares, and their ground truth."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.results.counts_queries import (
    Answer,
    Boxes,
    CountsQuery,
    Items,
    Quantiles,
    Top,
)
from dpstream.pipeline.simulation.item_accuracy import (
    ItemAccuracy,
    items_to_compare,
    mean_accuracy,
)
from dpstream.pipeline.values.boxes import Box
from dpstream.pipeline.values.item_sums import ItemSums
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.item_domains import Bits, Numbers, Points
from dpstream.randomizers.randomness import seeded_generator


def held(*counts: int) -> ItemSums:
    items = np.arange(1, len(counts) + 1)
    present = np.array(counts) > 0
    return ItemSums(items[present], np.array(counts, np.int64)[present])


@pytest.mark.parametrize(("size", "known"), [(20, 5), (500, 200), (505, 200), (2**24, 200)])
def test_simulation_compares_top_items_and_a_random_sample_of_other_items(
    size: int, known: int
) -> None:
    counts = np.arange(known, 0, -1)
    some = ItemSums(np.arange(1, known + 1), counts)
    looked_at = items_to_compare(some, size, seeded_generator(1))
    most = min(known, 100)
    assert looked_at[:most].tolist() == list(range(1, most + 1))
    others = looked_at[most:]
    assert len(others) == min(400, size - most)
    assert len(set(looked_at.tolist())) == len(looked_at)
    assert 1 <= looked_at.min() <= looked_at.max() <= size
    again = items_to_compare(some, size, seeded_generator(1))
    assert again.tolist() == looked_at.tolist()
    if size == 2**24:
        # The mean of 400 uniform draws from 1 to 2^24 is within 7 standard errors.
        assert abs(others.mean() / size - 0.5) < 7 / np.sqrt(12 * 400)
        assert set(items_to_compare(some, size, seeded_generator(2)).tolist()) - set(others)


def ground_truths(
    counts_query: CountsQuery,
    some: ItemSums,
    domain: SetDomain,
    *items: int,
) -> list[float | None]:
    answers = [Answer(str(item), 0.0, 1.0, 0.0, 0.0, item=item) for item in items]
    return list(counts_query.ground_truths(answers, some, domain))


def test_every_query_type_has_ground_truth() -> None:
    labels = SetDomain(("a", "b", "c"), 1)
    assert ground_truths(Items(), held(3, 0, 7), labels, 1, 2, 3) == [3, 0, 7]
    assert ground_truths(Items((3, 2)), held(3, 0, 7), labels, 3, 2) == [7, 0]
    assert ground_truths(Top(2), held(3, 0, 7), labels, 2, 3) == [0, 7]
    bits = SetDomain(Bits(2), 1)
    boxes = Boxes((Box("0 to 1", (0,), (2,)), Box("3", (3,), (4,))))
    assert ground_truths(boxes, held(3, 1, 0, 7), bits) == [4, 7]
    assert ground_truths(Quantiles((0.3, 0.9)), held(3, 1, 0, 7), bits) == [1, 3]
    numbers = SetDomain(Numbers(10, 20, 4), 1)
    assert ground_truths(Quantiles((0.25, 0.3)), held(3, 1, 0, 8), numbers) == [10, 12.5]
    points = SetDomain(Points((2, 3)), 1)
    square = Boxes((Box("0:1,1:2", (0, 1), (2, 3)), Box("1:1,0:0", (1, 0), (2, 1))))
    assert ground_truths(square, held(1, 2, 4, 8, 16, 32), points) == [54, 8]


def epoch(
    predicted: float | None, *errors: float, recall: float | None = None, ground_truth: int = 3
) -> ItemAccuracy:
    found, held = np.array(errors, np.float64), np.full(len(errors), ground_truth)
    return ItemAccuracy(10, 2.0, predicted, found, held, np.abs(found) < 2, recall, Items(), ())


def test_mean_accuracy_skips_epochs_and_trials_without_estimates() -> None:
    trials = [{1: epoch(1.0, 1.0, -3.0), 2: epoch(None)}, {1: epoch(2.0, 4.0), 2: epoch(None)}]
    mean = mean_accuracy(trials)
    assert (mean.mean_absolute_error, mean.predicted_error, mean.max_error) == (3.0, 1.5, 3.5)
    assert mean.recall is None
    found = mean_accuracy([{1: epoch(1.0, 1.0, recall=0.5), 2: epoch(1.0, 1.0, recall=1.0)}])
    assert found.recall == 0.75
    nothing = mean_accuracy([{1: epoch(None)}])
    assert set(json_fields(nothing).values()) == {None}
