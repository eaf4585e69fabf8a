"""What a worker says of itself in ``<job>.status``."""

from __future__ import annotations

from collections.abc import Mapping


def heartbeat(
    stage: Mapping[str, object],
    positions: Mapping[int, int],
    ends: Mapping[int, int],
    read: int,
    seconds: float,
) -> dict[str, object]:
    """The words of a worker at work.

    Where devices rely on the stage to hide how many messages they send, the numbers of records are
    left out: nearly each of them is a batch.

    Args:
        stage: the stage's own heartbeat.
        positions: the next offset to read, by partition owned.
        ends: where partitions end, as far as that is known.
        read: records read since the last heartbeat.
        seconds: since then.

    >>> heartbeat({}, {0: 7}, {0: 9, 1: 4}, read=10, seconds=2.0)
    {'partitions': [0], 'busy': True, 'lag': 2, 'records_per_second': 5.0}
    """
    words = {**stage, "partitions": sorted(positions), "busy": read > 0}
    if stage.get("hides_messages"):
        return words
    lag = sum(max(0, ends.get(partition, 0) - at) for partition, at in positions.items())
    return {**words, "lag": lag, "records_per_second": round(read / seconds, 1)}
