"""Feed a producer from a topic of events: up to an epoch, or by the clock.

Events are stored durably before anything depends on them. A run can therefore be killed at any
point and repeated with the same arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime

from dpstream.pipeline.devices.bad_rows import BadRow, InputError
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.topic_input import EventLog, TopicInput
from dpstream.pipeline.values.times import EpochCalendar

_POLL_SECONDS = 0.5


def read_on(
    source: TopicInput,
    log: EventLog,
    ends: Mapping[int, int],
    notify: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Read every partition from the source's current offset to the offset in `ends`.

    `notify` is called with sentences about events that were deleted before they were read, and
    about the first bad events. Raises `InputError` if a partition ends before the current offset.
    """
    logged: set[BadRow] = set(source.bad_rows.first)
    starts, offsets = log.starts(), source.offsets
    for partition, end in sorted(ends.items()):
        at = offsets.get(partition)
        if at is None:
            at = starts[partition]
        elif at > end:
            raise InputError(
                f"partition {partition} of the topic ends at offset {end:,}, but was read up to "
                f"{at:,}: the topic was recreated. Use another --name to start with the new topic"
            )
        elif at < starts[partition]:
            notify(
                f"{starts[partition] - at:,} offsets of partition {partition} were deleted "
                "before they were read: their events are lost. To prevent this, increase the "
                "topic's retention"
            )
            at = starts[partition]
            source.skip_to(partition, at)
        while at < end:
            events = log.read(partition, at, end)
            source.take(partition, events)
            at = events.end
            for row in source.bad_rows.first:
                if row not in logged:
                    place = f"{source.bad_rows.name}:{source.bad_rows.place}{row.line}"
                    notify(f"{place}: {row.reason}; skipped")
            logged.update(source.bad_rows.first)


def produce_to(
    source: TopicInput,
    producer: Producer,
    log: EventLog,
    last_epoch: int,
    *,
    rate: float | None = None,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    notify: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Read the current events in a topic, and close every open epoch up to `last_epoch`.

    The topic must be complete up to `last_epoch`. At most `rate` epochs are closed per second.
    Raises `InputError` as `read_on` and `TopicInput.close` do.
    """
    if producer.closed_epoch >= last_epoch:
        return
    read_on(source, log, log.ends(), notify)
    begun, started = producer.closed_epoch, time.monotonic()
    for epoch in range(begun + 1, last_epoch + 1):
        if rate is not None:
            time.sleep(max(0.0, started + (epoch - begun - 1) / rate - time.monotonic()))
        source.close(epoch)
        on_epoch(epoch)


def produce_as_they_come(
    source: TopicInput,
    producer: Producer,
    log: EventLog,
    calendar: EpochCalendar,
    clock: Callable[[], datetime],
    *,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    notify: Callable[[str], None] = lambda sentence: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Read events as they arrive, and close epochs by the clock, until the job ends.

    An epoch is closed once it has ended and all events that were in the topic at its end are read.
    `clock` returns the current time with a time zone; the other arguments are as in `produce_to`.
    """
    last_epoch = producer.job.last_epoch
    while last_epoch is None or producer.closed_epoch < last_epoch:
        epoch = producer.closed_epoch + 1
        end = calendar.start_of(epoch + 1)
        # Read the time before the end offsets, so that these cover all events of an epoch that has
        # ended.
        now = clock()
        read_on(source, log, log.ends(), notify)
        if now >= end:
            source.close(epoch)
            on_epoch(epoch)
        else:
            sleep(min(_POLL_SECONDS, (end - now).total_seconds()))
