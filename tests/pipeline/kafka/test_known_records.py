"""Test that the cache returns written and read records only at their own offsets."""

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.kafka.workers.kafka_log import KnownRecords

HERE, ELSEWHERE = ("log", 0), ("log", 1)


def record(offset: int, size: int = 1) -> LogRecord:
    return LogRecord(offset, bytes([offset]) * size, timestamp=offset)


def kept(*offsets: int, most: int = 100, size: int = 1) -> KnownRecords:
    known = KnownRecords(most)
    for place in (HERE, ELSEWHERE):
        assert not known.take(place, 0, 1)
    for offset in offsets:
        known.note(HERE, record(offset, size))
    return known


def offsets_of(known: KnownRecords, start: int, stop: int) -> list[int]:
    return [each.offset for each in known.take(HERE, start, stop)]


def test_consecutive_cached_records_are_returned_once() -> None:
    known = kept(7, 8, 9)
    assert known.take(HERE, 7, 10) == [record(7), record(8), record(9)]
    assert not known.take(HERE, 7, 10)
    assert offsets_of(kept(7, 8, 9), 8, 9) == [8]
    assert offsets_of(kept(7, 8, 9), 8, 20) == [8, 9]


def test_records_missing_from_the_cache_are_not_skipped() -> None:
    assert not kept(7, 8, 9).take(HERE, 6, 10)
    assert not kept(7, 8, 9).take(HERE, 10, 12)
    assert not kept(7, 8, 9).take(HERE, 8, 8)
    # Offset 9 is a record of another writer.
    known = kept(7, 8, 10)
    assert not known.take(HERE, 7, 11)
    assert offsets_of(kept(7, 8, 10), 10, 11) == [10]
