"""A shuffled tree of items over time: what a device sends, and how far streams can be told apart.

Devices whose dummies are added by the shuffle stage send real messages only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randomizers.accounting.counting_tree import order_messages
from randomizers.accounting.overlapping_cells import poisson_for_overlapping
from randomizers.accounting.table_distances import FOR_TABLES
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.counted_words import written_out
from randomizers.randomness import seeded_generator
from randomizers.shuffled_item_tree import ShuffledItemTree, ShuffledItemTreeLaw
from randomizers.shuffled_item_tree.calibration import calibrate, charged_messages
from randomizers.shuffled_tree import ShuffledTreeParameters

DELTA = 1e-6
EPOCHS = 8
RNG = seeded_generator(0)


def without_dummies(changes: int, last_epoch: int = EPOCHS) -> ShuffledItemTreeLaw:
    """A bucket for every item: of an order 2 h W + item - 1, and W more as one that was left."""
    orders = len(order_messages(last_epoch, changes))
    noise = CellNoiseLaw("shuffle", 100.0, 1)
    return ShuffledItemTreeLaw(last_epoch, 3, 1.0, DELTA, changes, orders, 3, noise)


class Device:
    """One device, in the plainest way: it knows the item that it was last seen with."""

    def __init__(self, enrolled_at: int, law: ShuffledItemTreeLaw) -> None:
        self.law = law
        self.seen = dict.fromkeys(range(enrolled_at), 0)
        self.changes = Counter[int]()

    def words(self, epoch: int, item: int | None) -> list[int]:
        """`item` is None for a silent device; to be asked at every epoch."""
        if item is not None:
            self.seen[epoch] = item
        sent = []
        for order in range(self.law.orders):
            if epoch % (1 << order):
                continue
            begin = epoch - (1 << order)
            before, after = (
                self.seen[max(known for known in self.seen if known <= at)] for at in (begin, epoch)
            )
            if before == after:
                continue
            self.changes[order] += 1
            if item is None or self.changes[order] > self.law.changes:
                continue
            first = order * self.law.kinds * 3
            sent += [first + after - 1] * (after > 0)
            sent += [first + 3 + before - 1] * (before > 0 and self.law.kinds == 2)
        return sent


@settings(max_examples=60, deadline=None)
@given(data=st.data(), changes=st.integers(1, 4), last_epoch=st.sampled_from([EPOCHS, 7]))
def test_a_population_sends_what_its_devices_would_send_alone(
    data: st.DataObject, changes: int, last_epoch: int
) -> None:
    """Any streams, silences, epochs left out, and devices enrolled on the way."""
    law = without_dummies(changes, last_epoch)
    population, devices = ShuffledItemTree(law), list[Device]()
    for epoch in range(1, last_epoch + 1):
        newcomers = data.draw(st.sampled_from([0, 0, 3] if devices else [4]), "newcomers")
        population.enrol(newcomers, RNG)
        devices += [Device(epoch, law) for _ in range(newcomers)]
        if data.draw(st.integers(0, 5), "left out when 0") == 0:
            for device in devices:
                device.words(epoch, None)
            continue
        value = st.sampled_from([0, 1, 2, 3, 1, None])
        values = data.draw(st.lists(value, min_size=len(devices), max_size=len(devices)))
        expected = Counter[int]()
        for device, item in zip(devices, values, strict=True):
            expected.update(device.words(epoch, item))
        given_values = np.array([0 if item is None else item for item in values])
        present = np.array([item is not None for item in values])
        words = written_out(population.report(epoch, given_values, present, RNG))
        assert Counter(words[:, 0].tolist()) == expected


def sent(law: ShuffledItemTreeLaw, items: Sequence[int | None]) -> Counter[tuple[int, int]]:
    """By a single device: how often which word at which epoch."""
    device = ShuffledItemTree(law)
    device.enrol(1, RNG)
    found = Counter[tuple[int, int]]()
    for epoch, item in enumerate(items, 1):
        present = np.array([item is not None])
        words = written_out(device.report(epoch, np.array([item or 0]), present, RNG))
        found.update((epoch, word) for word in words[:, 0].tolist())
    return found


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_no_stream_sends_more_than_the_noise_is_sized_on(changes: int) -> None:
    """Of an order as many as it may; of an interval at most one item come to, and one left."""
    last_epoch = 4
    law = without_dummies(changes, last_epoch)
    most = Counter[int]()
    for items in product((None, 0, 1, 2), repeat=last_epoch):
        words = sent(law, items)
        assert set(words.values()) <= {1}
        kinds = Counter((epoch, word // 3) for epoch, word in words)
        assert set(kinds.values()) <= {1}
        by_order = Counter(word // (3 * law.kinds) for _, word in words)
        for order, count in by_order.items():
            assert count <= 2 * law.most_sums[order] - 1
        most |= by_order
    assert law.most_messages == sum(2 * stated - 1 for stated in law.most_sums)
    assert most[0] == 2 * law.most_sums[0] - 1


def test_dummies_are_sent_of_what_is_due() -> None:
    asked = ShuffledTreeParameters(1.0, DELTA, 2, domain=tuple("abc"), cells="count_min")
    law = calibrate(asked, EPOCHS, minimum=500)
    devices = ShuffledItemTree(law)
    devices.enrol(1_000, RNG)
    for epoch in range(1, EPOCHS + 1):
        words = written_out(devices.report(epoch, np.zeros(1_000, np.int64), None, RNG))[:, 0]
        counts = np.bincount(words, minlength=18)
        due = 6 * law.orders_due(epoch)
        assert (np.abs(counts[:due] - 2 * law.noise.mean) < 8 * (2 * law.noise.mean) ** 0.5).all()
        assert not counts[due:].any()


def test_the_shuffle_stage_adds_what_devices_do_not() -> None:
    items = tuple(map(str, range(50)))
    asked = ShuffledTreeParameters(1.0, DELTA, 2, dummies="shuffle", domain=items, buckets=11)
    law = calibrate(asked, EPOCHS, minimum=1)
    one, other = (law.stage_dummies(2, seeded_generator(4)) for _ in range(2))
    assert one.values.tolist() == other.values.tolist()
    assert (one.counts == other.counts).all()
    expected = 4 * law.buckets * law.noise.mean
    assert abs(one.messages - expected) < 8 * expected**0.5
    assert law.dummy_messages == 0


def test_devices_go_on_as_if_nothing_had_happened() -> None:
    law, rng = without_dummies(2), np.random.default_rng(1)
    undisturbed, restarted = ShuffledItemTree(law), ShuffledItemTree(law)
    for epoch in range(1, EPOCHS + 1):
        for devices in (undisturbed, restarted):
            devices.enrol(50, RNG)
        stored = {name: array.copy() for name, array in restarted.state_arrays().items()}
        restarted = ShuffledItemTree.restore(law, stored, epoch - 1)
        values = rng.integers(0, 4, undisturbed.population)
        present = rng.random(len(values)) < 0.7
        one, other = (
            written_out(each.report(epoch, values, present, RNG))[:, 0]
            for each in (undisturbed, restarted)
        )
        assert Counter(one.tolist()) == Counter(other.tolist())
    assert undisturbed.frozen == restarted.frozen > 0


def test_laws_survive_json_and_contradictions_are_refused() -> None:
    law = without_dummies(2)
    assert ShuffledItemTreeLaw.from_json(json.loads(json.dumps(law.to_json()))) == law
    wrong: list[dict[str, Any]] = [{"orders": 9}, {"buckets": 4}, {"last_epoch": 0}, {"noise": {}}]
    for change in wrong:
        with pytest.raises(ValueError, match="not a law"):
            ShuffledItemTreeLaw.from_json(law.to_json() | change)


@pytest.mark.slow
def test_as_many_buckets_are_taken_as_messages_allow() -> None:
    """The reference has a standard deviation of 92 with 194 messages, of 150 with 71."""
    items = tuple(map(str, range(10_000)))

    def law(messages: float) -> ShuffledItemTreeLaw:
        asked = ShuffledTreeParameters(1.0, DELTA, 2, messages_per_user=messages, domain=items)
        return calibrate(asked, 64, minimum=100_000)

    assert 180 < law(194).messages <= 194
    assert 55 < law(71).messages <= 71
    with pytest.raises(ValueError, match=r"allows 10: .*`dummies: shuffle`"):
        law(10)


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_a_device_is_frozen_with_the_first_change_that_it_leaves_out(changes: int) -> None:
    """Not with the last one that it follows."""
    devices = ShuffledItemTree(without_dummies(changes))
    devices.enrol(1, RNG)
    frozen = []
    for epoch in range(1, changes + 3):
        # An item that is another one at every epoch.
        devices.report(epoch, np.array([1 + epoch % 3]), None, RNG)
        frozen.append(devices.frozen)
    assert frozen == [0] * changes + [1, 1]


def test_there_is_room_for_items_that_come_and_for_items_that_are_left() -> None:
    law = without_dummies(changes=2)
    assert law.kinds == 2
    for epoch in range(1, EPOCHS + 1):
        of_one = ShuffledItemTree(law)
        of_one.enrol(10, RNG)
        draws = law.orders_due(epoch) * 2
        most = law.noise.most(law.buckets, 10)
        assert law.capacity(epoch, 10) == draws * (10 + most)


def test_what_is_set_aside_for_tables_is_not_spent_on_noise() -> None:
    asked = ShuffledTreeParameters(1.0, 1e-6, 2, domain=tuple(map(str, range(100))))
    law = calibrate(asked, 64, minimum=100_000)
    epochs, spared = charged_messages(64, 2), 1e-6 * (1 - FOR_TABLES)
    needed = poisson_for_overlapping(1.0, spared, law.hashes.overlap, epochs=epochs)
    assert law.noise.mean == needed
    assert needed > poisson_for_overlapping(1.0, 1e-6, law.hashes.overlap, epochs=epochs)
