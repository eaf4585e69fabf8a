"""Test that a worker exits if partitions are unassigned, but not if another worker has them."""

import pytest

from dpstream.pipeline.kafka.workers.topic_watch import GroupWatch, UnassignedError

SESSION = 10.0
ALL = (0, 1, 2)


def test_unassigned_partition_error_lists_the_partition() -> None:
    watch = GroupWatch(len(ALL), SESSION)
    watch.see([0, 2], 0.0)
    with pytest.raises(UnassignedError, match=r"session timeout of 10 s, .* partitions 1,"):
        watch.see([0, 2], 11.0)
