"""Test streams that are charged once, and the lower bound on the number of covered users."""

from __future__ import annotations

from itertools import product

import pytest

from dpstream.randomizers.accounting.amplification import amplified_delta, of_any_randomizer
from dpstream.randomizers.accounting.whole_streams import (
    charged_once,
    delta_of_streams,
    epsilon_of_streams,
    local_loss_of_streams,
    there_throughout,
)


def test_stream_is_charged_like_a_single_message() -> None:
    charged = charged_once(1.0, 100_000, 1e-6)
    assert charged.epsilon == pytest.approx(0.01528, abs=5.1e-6)
    assert (charged.delta, charged.others, charged.throughout) == (1e-6, 1.0, 100_000)
    assert delta_of_streams(1.0, 100_000, charged.epsilon) <= 1e-6


@pytest.mark.parametrize("throughout", [0, 1])
def test_stream_among_few_contributors_is_charged_the_local_loss(throughout: int) -> None:
    charged = charged_once(1.0, throughout, 1e-6)
    assert (charged.epsilon, charged.delta, charged.others) == (1.0, 0.0, 1.0)


def test_local_loss_without_delta_is_charged_if_it_is_smaller() -> None:
    charged = charged_once(1.0, throughout=2, delta=1e-12)
    assert (charged.epsilon, charged.delta) == (1.0, 0.0)


@pytest.mark.parametrize("users", [10**4, 10**5])
@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_local_loss_is_the_inverse_of_the_shuffled_epsilon(epsilon: float, users: int) -> None:
    loss = local_loss_of_streams(epsilon, 1e-6, users)
    assert epsilon_of_streams(loss, users, 1e-6) <= epsilon * (1 + 2e-6)
    assert amplified_delta(of_any_randomizer(loss * 1.0001), users, epsilon) > 1e-6


def test_devices_present_throughout_are_never_overcounted() -> None:
    """Enumerate every way in which the devices of two producers can be absent."""
    enrolled = {b"a": 2, b"b": 1}
    for absences in product(product([0, 1], repeat=3), repeat=3):  # indexed by epoch and device
        windows = []
        for absent in absences:
            present = {b"a": 2 - absent[0] - absent[1], b"b": 1 - absent[2]}
            windows.append({name: count for name, count in present.items() if count})
        ground_truth = sum(not any(epoch[device] for epoch in absences) for device in range(3))
        assert there_throughout(enrolled, windows) <= ground_truth


def test_devices_present_in_every_window_are_counted() -> None:
    enrolled = {b"a": 10, b"b": 5, b"late": 3}
    weeks = [{b"a": 10, b"b": 5}, {b"a": 9, b"b": 5, b"late": 3}]
    assert there_throughout(enrolled, weeks) == 14
    assert there_throughout(enrolled, []) == 0
