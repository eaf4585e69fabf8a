"""Partitions that no worker has end a worker, those that another has do not."""

from collections.abc import Collection

import pytest

from dpstream.pipeline.kafka.workers.group_watch import GroupWatch, UnassignedError

SESSION = 10.0
ALL = (0, 1, 2)


def ends_at(*looks: tuple[float, Collection[int] | None]) -> float | None:
    """Return the moment at which a worker ends that sees this, or None."""
    watch = GroupWatch(len(ALL), SESSION)
    for now, assigned in looks:
        try:
            watch.see(assigned, now)
        except UnassignedError:
            return now
    return None


def test_group_without_partitions_ends_after_a_session() -> None:
    assert ends_at((0.0, ()), (5.0, ()), (10.0, ()), (10.5, ())) == 10.5


def test_partitions_of_another_member_are_no_fault() -> None:
    assert ends_at(*((5.0 * look, ALL) for look in range(100))) is None


def test_partition_that_nobody_has_is_named() -> None:
    watch = GroupWatch(len(ALL), SESSION)
    watch.see([0, 2], 0.0)
    with pytest.raises(UnassignedError, match=r"partitions 1, .* session of 10 s"):
        watch.see([0, 2], 11.0)


@pytest.mark.parametrize("between", [None, ALL], ids=["rebalanced", "assigned"])
def test_session_starts_again(between: Collection[int] | None) -> None:
    assert ends_at((0.0, ()), (9.0, between), (12.0, ()), (22.0, ())) is None


def test_partitions_added_after_deployment_do_not_count() -> None:
    assert ends_at(*((5.0 * look, (*ALL, 3)) for look in range(100))) is None
