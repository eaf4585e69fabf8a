"""No more devices are said to have been in every window than were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from dpstream.pipeline.ledger.presence import Presence
from dpstream.topics.manifests import Fate, Manifest

PRODUCER_OF = (0, 0, 1)
"""Of three devices."""

Window = tuple[tuple[bool, ...], tuple[bool, ...]]
"""Whether each producer is in, and whether each device is away."""


def manifest(inside: Sequence[bool], populations: Sequence[int], contributors: int) -> Manifest:
    return Manifest(
        bytes(16),
        bytes(16),
        1,
        Fate.RELEASED,
        first_offset=0,
        cut_offset=0,
        first_epoch=1,
        producers=tuple(inside),
        populations=tuple(populations),
        contributors=contributors,
        population=sum(populations),
        timestamp=0,
    )


def windows() -> Iterator[Window]:
    """All in which somebody is."""
    for inside in product((True, False), repeat=2):
        for away in product((False, True), repeat=3):
            if any(present(device, (inside, away)) for device in range(3)):
                yield inside, away


def present(device: int, window: Window) -> bool:
    inside, away = window
    return inside[PRODUCER_OF[device]] and not away[device]


def test_no_more_were_there_throughout_than_is_said_whoever_is_away() -> None:
    exact = 0
    for seen in product(windows(), repeat=2):
        found = Presence()
        for inside, away in seen:
            populations = [(2, 1)[each] for each in range(2) if inside[each]]
            there = sum(present(device, (inside, away)) for device in range(3))
            found.take(manifest(inside, populations, there))
        throughout = [all(present(device, each) for each in seen) for device in range(3)]
        always = [all(inside[each] for inside, _ in seen) for each in range(2)]
        ever = [any(inside[each] for inside, _ in seen) for each in range(2)]
        assert found.devices <= sum(throughout)
        assert found.producers == sum(always)
        assert found.other_producers == sum(ever) - sum(always)
        exact += found.devices == sum(throughout)
    assert exact > 150, "and often no fewer either"


def test_who_enrols_meanwhile_was_not_there_from_the_first_window_on() -> None:
    found = Presence()
    assert (found.windows, found.devices, found.producers, found.other_producers) == (0, 0, 0, 0)
    found.take(manifest([True, False], [50], 49))
    found.take(manifest([True, True, True], [70, 20, 0], 88))
    assert (found.windows, found.producers, found.other_producers) == (2, 1, 2)
    assert found.devices == 50 - 1 - 2
