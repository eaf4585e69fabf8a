"""Run a world with a process killed or paused after any action."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpstream.topics.names import Role
from tests.support.world import Accidents, World, interleavings


def killed_worlds(
    run: Callable[[Path, Accidents], World], folder: Path, *, keep: bool, stride: int
) -> Iterator[World]:
    """Run a world undisturbed, then again with a process killed after each of its actions.

    Args:
        keep: True if unflushed data of a killed process is kept.
        stride: Distance between tested actions.

    Yields:
        The undisturbed world, then each disturbed world, with the same integers and estimates.
    """
    undisturbed = run(folder / "undisturbed", Accidents())
    yield undisturbed
    integers, estimates = undisturbed.integers(), _estimates(undisturbed)
    for strike in range(1, undisturbed.accidents.count + 1, stride):
        world = run(folder / str(strike), Accidents(frozenset([strike]), keep))
        assert world.integers() == integers, f"killed after action {strike}"
        assert _estimates(world) == estimates, f"killed after action {strike}"
        yield world


def _estimates(world: World) -> dict[int, bytes]:
    return {epoch: record.to_bytes() for epoch, record in world.published().items()}


def check_writings_when_killed(
    run: Callable[[Path, Accidents], World],
    folder: Path,
    writings: Callable[[World], int],
    *,
    keep: bool,
    stride: int,
) -> None:
    """Check that two windows never change, though some are rewritten after kills."""
    written = [writings(world) for world in killed_worlds(run, folder, keep=keep, stride=stride)]
    assert min(written) == 2
    # Larger strides can miss the few actions after which a window is rewritten.
    assert max(written) > 2 or stride > 1, "no kill caused a window to be rewritten"


def check_two_owners(
    world_of: Callable[[Path], World], folder: Path, writings: Callable[[World], int]
) -> None:
    """Check a paused owner whose successor knows of different producers, in either order."""
    memberships: set[tuple[bool, ...]] = set()
    written: list[int] = []

    def begin(place: Path) -> World:
        world = world_of(place)
        world.close_epoch("north", 1)
        world.surviving("south", lambda: world.producer("south"))
        return world

    for _, world in interleavings(begin, folder):
        written.append(writings(world))
        memberships.add(tuple(world.manifests()[1].producers))
    assert memberships == {(True, False), (True, True)}
    assert max(written) > 1, "both owners must write the window"


def all_is_read(world: World, *roles: Role) -> bool:
    """Return whether workers have committed all records of two partitions per topic."""
    places = [(role, partition) for role in roles for partition in range(2)]
    return all(world.log.committed[place] == world.log.end(*place) for place in places)


def run_with_late_south(world: World, stages: Sequence[str] | None = None) -> World:
    """Let the grace period of epoch 1 pass before the south's batches arrive.

    Until then, only the given stages run (by default all).
    """
    world.surviving("south", lambda: world.producer("south").enroll(["late"]))
    world.close_epoch("north", 1)
    world.settle()
    assert not world.manifests()
    for world.now in (61.0, 122.0):
        world.settle(stages)
    assert world.manifests()[1].producers == (False, True)
    for name, epoch in (("south", 1), ("south", 2), ("north", 2)):
        world.close_epoch(name, epoch)
    return world.finish(rounds=2)


def cell_counts(world: World, epoch: int) -> NDArray[np.int64]:
    aggregator = world.job.aggregator()
    for payload in world.integers().values():
        aggregator.merge(world.job.aggregator_from_bytes(payload))
    counts: NDArray[np.int64] = aggregator.counts[epoch]  # type: ignore[attr-defined]
    return counts
