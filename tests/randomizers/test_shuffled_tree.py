"""A shuffled tree of changes: what a device sends, and how far two streams can be told apart.

Devices whose dummies are added by the shuffle stage send real messages only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randomizers.accounting.counting_tree import order_messages
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.randomness import seeded_generator
from randomizers.shuffled_tree import ShuffledTree, ShuffledTreeLaw, ShuffledTreeParameters
from randomizers.shuffled_tree.calibration import calibrate

EPOCHS = 11
DELTA = 1e-6
RNG = seeded_generator(0)


def without_dummies(changes: int, last_epoch: int = EPOCHS) -> ShuffledTreeLaw:
    orders = len(order_messages(last_epoch, changes))
    noises = (CellNoiseLaw("shuffle", 100.0, 1),) * orders
    return ShuffledTreeLaw(last_epoch, 1.0, DELTA, changes, noises)


class Device:
    """One device, in the plainest way: it knows the value that it was last seen with."""

    def __init__(self, enrolled_at: int, law: ShuffledTreeLaw) -> None:
        self.law = law
        self.seen = dict.fromkeys(range(enrolled_at), 0)
        self.sums = Counter[int]()

    def words(self, epoch: int, value: int | None) -> list[int]:
        """`value` is None for a silent device."""
        if value is None:
            return []
        self.seen[epoch] = value
        sent = []
        for order in range(len(self.law.noises)):
            if epoch % (1 << order):
                continue
            begin = epoch - (1 << order)
            change = value - self.seen[max(known for known in self.seen if known <= begin)]
            if change:
                self.sums[order] += 1
                followed = self.sums[order] <= self.law.changes
                if followed and (change > 0 or self.law.changes > 1):
                    sent.append(2 * order + (change < 0))
        return sent


@settings(max_examples=80, deadline=None)
@given(data=st.data(), changes=st.integers(1, 4), last_epoch=st.sampled_from([8, EPOCHS]))
def test_a_population_sends_what_its_devices_would_send_alone(
    data: st.DataObject, changes: int, last_epoch: int
) -> None:
    """Any streams, silences, epochs left out, and devices enrolled on the way."""
    law = without_dummies(changes, last_epoch)
    population, devices = ShuffledTree(law), list[Device]()
    for epoch in range(1, last_epoch + 1):
        newcomers = data.draw(st.sampled_from([0, 0, 3] if devices else [4]), "newcomers")
        population.enrol(newcomers, RNG)
        devices += [Device(epoch, law) for _ in range(newcomers)]
        if data.draw(st.integers(0, 5), "left out when 0") == 0:
            continue
        value = st.sampled_from([0, 1, 0, 1, None])
        values = data.draw(st.lists(value, min_size=len(devices), max_size=len(devices)))
        expected = Counter[int]()
        for device, each in zip(devices, values, strict=True):
            expected.update(device.words(epoch, each))
        given_values = np.array([0 if value is None else value for value in values], np.int8)
        present = np.array([value is not None for value in values])
        reports = population.report(epoch, given_values, present, RNG)
        assert dict(zip(reports.values[:, 0], reports.counts, strict=True)) == dict(expected)


def sent(law: ShuffledTreeLaw, values: Sequence[int | None]) -> Counter[tuple[int, int]]:
    """By a single device: how often which word at which epoch."""
    device = ShuffledTree(law)
    device.enrol(1, RNG)
    words = Counter[tuple[int, int]]()
    for epoch, value in enumerate(values, 1):
        reports = device.report(epoch, np.array([value or 0]), np.array([value is not None]), RNG)
        words.update((epoch, int(word)) for word in reports.written_out()[:, 0])
    return words


@pytest.mark.parametrize(
    ("changes", "values", "expected"),
    [
        # Up in epoch 2, down in epoch 4: seen by intervals of one epoch, and of two.
        (2, (0, 1, 1, 0, 0), [(2, 0), (2, 2), (4, 1), (4, 3)]),
        # The third change of single epochs is one too many, longer intervals go on.
        (2, (1, 0, 1, 1, 1), [(1, 0), (2, 1), (4, 2), (4, 4)]),
        # The value last seen stands for one that was missed.
        (2, (0, 1, None, 0, 0), [(2, 0), (2, 2), (4, 1), (4, 3)]),
        # Who is silent at the end of an interval leaves it to the others.
        (2, (0, 1, 1, None, 0), [(2, 0), (2, 2), (5, 1)]),
        # With one change followed nobody becomes 0.
        (1, (0, 1, 0, 0, 0), [(2, 0), (2, 2)]),
        (1, (None, 1, None, 1, 0), [(2, 0), (2, 2), (4, 4)]),
    ],
)
def test_worked_examples(
    changes: int, values: tuple[int | None, ...], expected: list[tuple[int, int]]
) -> None:
    assert sorted(sent(without_dummies(changes, 5), values).elements()) == expected


@pytest.mark.parametrize("changes", [1, 2, 3, 4])
def test_no_two_streams_differ_more_than_the_noise_is_sized_on(changes: int) -> None:
    """With any silences: one message a cell, and of each order as many as are charged for."""
    last_epoch = 5
    law = without_dummies(changes, last_epoch)
    stated = order_messages(last_epoch, changes)
    assert law.most_sums == stated
    most = Counter[int]()
    for presence in product((True, False), repeat=last_epoch):
        streams = {
            tuple(value if here else None for value, here in zip(values, presence, strict=True))
            for values in product((0, 1), repeat=last_epoch)
        }
        messages = [sent(law, stream) for stream in streams]
        for words in messages:
            assert set(words.values()) <= {1}
            assert changes > 1 or all(word % 2 == 0 for _, word in words)
        for one, other in combinations(messages, 2):
            for more in (one - other, other - one):
                by_order = Counter(word // 2 for _, word in more)
                assert all(count <= stated[order] for order, count in by_order.items())
                most |= by_order
    assert most[0] == stated[0]


def test_who_is_silent_sends_neither_messages_nor_dummies() -> None:
    law = calibrate(ShuffledTreeParameters(1.0, DELTA, 2), 8, minimum=100)
    devices = ShuffledTree(law)
    devices.enrol(100, RNG)
    nobody = np.zeros(100, np.bool_)
    assert devices.report(1, np.ones(100, np.int8), nobody, RNG).messages == 0
    reports = devices.report(4, np.ones(100, np.int8), None, RNG)
    assert reports.values[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    expected = np.repeat([noise.mean for noise in law.noises], 2)
    expected[::2] += 100
    assert (np.abs(reports.counts - expected) < 10 * np.sqrt(expected)).all()


def test_with_one_change_there_are_no_cells_for_becoming_0() -> None:
    law = calibrate(ShuffledTreeParameters(1.0, DELTA, 1), 8, minimum=10)
    devices = ShuffledTree(law)
    devices.enrol(10, RNG)
    for epoch in range(1, 9):
        reports = devices.report(epoch, np.full(10, epoch % 2, np.int8), None, RNG)
        assert (reports.values % 2 == 0).all()
        # The interval of all epochs is left out.
        assert len(reports.values) == min(3, law.orders_due(epoch))
    assert devices.frozen == 10


def test_the_shuffle_stage_adds_what_devices_do_not() -> None:
    law = calibrate(ShuffledTreeParameters(1.0, DELTA, 2, dummies="shuffle"), 8, minimum=1)
    one, other = (law.stage_dummies(4, seeded_generator(5)) for _ in range(2))
    assert one.values.tolist() == other.values.tolist() == [[word] for word in range(6)]
    assert (one.counts == other.counts).all()
    means = np.repeat([noise.mean for noise in law.noises], 2)
    assert (np.abs(one.counts - means) < 10 * np.sqrt(means)).all()
    assert sent(law, (1, 1)) == Counter([(1, 0), (2, 2)])
    assert "honest" not in ShuffledTree(law).guarantee.trust


def test_devices_go_on_as_if_nothing_had_happened() -> None:
    law, rng = without_dummies(2), np.random.default_rng(1)
    undisturbed, restarted = ShuffledTree(law), ShuffledTree(law)
    for epoch in range(1, EPOCHS + 1):
        for devices in (undisturbed, restarted):
            devices.enrol(50, RNG)
        stored = {name: array.copy() for name, array in restarted.state_arrays().items()}
        restarted = ShuffledTree.restore(law, stored, epoch - 1)
        values = rng.integers(0, 2, undisturbed.population).astype(np.int8)
        present = rng.random(len(values)) < 0.7
        one, other = (each.report(epoch, values, present, RNG) for each in (undisturbed, restarted))
        assert one.written_out().tolist() == other.written_out().tolist()
    assert undisturbed.frozen == restarted.frozen > 0
    with pytest.raises(ValueError, match="ShuffledTree keeps"):
        ShuffledTree.restore(law, {"value": np.zeros(2, np.int8)}, 0)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"changes": 0}, "changes is 0"),
        ({"changes": 1.5}, "changes is 1.5"),
        ({"calibration": "rigorous"}, "calibration"),
        ({"dummies": "none"}, "dummies"),
        ({"delta": 2}, "delta"),
        ({"messages_per_user": -1}, "messages_per_user"),
    ],
)
def test_parameters_that_are_not_allowed_are_refused(
    parameters: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        ShuffledTreeParameters(**{"epsilon": 1.0, "delta": DELTA, "changes": 2, **parameters})


def test_laws_survive_json_and_contradictions_are_refused() -> None:
    law = calibrate(ShuffledTreeParameters(1.0, DELTA, 2), 170, minimum=30_000)
    assert ShuffledTreeLaw.from_json(json.loads(json.dumps(law.to_json()))) == law
    others = [{**noise.to_json(), "minimum": 1 + order} for order, noise in enumerate(law.noises)]
    wrong: list[dict[str, Any]] = [
        {"last_epoch": 0},
        {"changes": 0},
        {"noises": []},
        {"noises": others},
    ]
    for change in wrong:
        with pytest.raises(ValueError, match="not a law of shuffled_tree"):
            ShuffledTreeLaw.from_json(law.to_json() | change)


@pytest.mark.slow
def test_jobs_that_ask_for_too_many_messages_are_refused() -> None:
    asked = ShuffledTreeParameters(1.0, DELTA, 4, messages_per_user=30)
    with pytest.raises(ValueError, match=r"43\.\d messages .* allows 30: .*`dummies: shuffle`"):
        calibrate(asked, 170, minimum=32_593)
    assert calibrate(asked, 170, minimum=10**6).messages < 30
    clustered = ShuffledTreeParameters(1.0, DELTA, 4, dummies="negative_binomial")
    law = calibrate(clustered, 170, minimum=32_593)
    assert law.messages < 30
    assert len({noise.shape for noise in law.noises} - {None}) == 1


@pytest.mark.parametrize(("changes", "cells"), [(1, 1), (2, 2)])
def test_tables_are_charged_for_every_cell_of_every_interval(
    changes: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[Any] = []
    monkeypatch.setattr(
        "randomizers.shuffled_tree.calibration.check_tables",
        lambda epsilon, delta, tables: charged.extend(tables),
    )
    law = calibrate(ShuffledTreeParameters(1.0, 1e-6, changes), 16, 10_000)
    assert law.cells == cells
    assert [draws for _, draws in charged] == [
        cells * (16 >> order) for order in range(len(law.noises))
    ]
