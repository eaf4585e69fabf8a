"""``dpstream produce --from-topic``: read events from a topic, and count each event once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.output import plural, print_json, print_text, tell
from dpstream.pipeline.connect import ask_broker_clock
from dpstream.pipeline.devices.produce_topic import produce_as_they_come, produce_to
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.topic_input import TopicInput
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.event_topic import EventTopic


def print_produced(
    producer: Producer,
    closed_before: int,
    last_epoch: int | None,
    unknown_users: int,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "job": producer.job.name,
                "producer": producer.name,
                "users": len(producer.users),
                "unknown_users": unknown_users,
                "closed_before": closed_before,
                "closed_epoch": producer.closed_epoch,
                "exhausted": producer.exhausted,
            }
        )
    elif producer.closed_epoch == closed_before:
        finished = last_epoch is not None and closed_before >= last_epoch
        reason = (
            "all requested epochs were already closed"
            if finished
            else "the current one has not ended"
        )
        print_text(f"no epoch was closed: {reason}")
    else:
        first, last = map(producer.job.epochs.dated, (closed_before + 1, producer.closed_epoch))
        epochs = f"epoch {last}" if first == last else f"epochs {first} to {last}"
        print_text(f"{plural(len(producer.users), 'user')}, {epochs}: reports drawn and sent")
    if unknown_users and not as_json:
        print_text(
            f"{unknown_users_text(unknown_users)}. To enroll them, add them to the user list "
            "(--users)"
        )
    if producer.exhausted and producer.job.change_limit is not None and not as_json:
        print_text(
            f"{plural(producer.exhausted, 'device')} exhausted: their values changed more often "
            "than the job tracks. This number stays on this machine. To track more changes, deploy "
            "a job with a larger parameters.max_changes"
        )


def unknown_users_text(count: int) -> str:
    return f"{plural(count, 'unknown user')} whose rows are ignored"


def produce_from_topic(
    opened: Callable[..., AbstractContextManager[Producer]],
    job: DeployedJob,
    cluster: Cluster,
    events: Cluster,
    topic: str,
    *,
    user_list: Collection[str],
    to_epoch: int | None,
    rate: float | None,
    as_json: bool,
    input_format: InputFormat,
) -> None:
    """Read events up to an epoch, or as they arrive.

    The topic must be complete up to epoch `to_epoch`. If `to_epoch` is None, the clock closes
    epochs. `rate` is the maximum epochs per second. For an empty `user_list`, see `TopicInput`.
    """
    calendar = job.epochs.calendar
    if to_epoch is not None and to_epoch < 1:
        raise UsageProblem(f"--to-epoch: got {to_epoch}; expected at least 1")
    if to_epoch is None and calendar is None:
        raise UsageProblem(
            "--from-topic closes epochs by the clock: set epochs.start and epochs.length in "
            f"the job file of {job.name}, or add --to-epoch"
        )
    if to_epoch is None and rate is not None:
        raise UsageProblem("--rate requires --to-epoch: without it, the clock closes epochs")
    log = EventTopic(events, topic, tell)
    reader = RowReader(job.row_domain, calendar, input_format)
    # On SIGTERM, print the result; events read so far are saved in any case.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    clock = ask_broker_clock(cluster, job, tell)
    first = 1
    if to_epoch is None and calendar is not None:
        first = max(1, calendar.epoch_of(clock.moment()))
        if job.last_epoch is not None and first > job.last_epoch:
            first = job.last_epoch
    with opened(first_epoch=first, clock=clock) as producer:
        source = TopicInput(
            producer,
            reader,
            f"{topic} of cluster {events.identity()}",
            user_list=user_list,
            everybody=to_epoch is not None,
            made=log.identity(),
        )
        closed_before = producer.closed_epoch
        ends = [epoch for epoch in (to_epoch, job.last_epoch) if epoch is not None]
        last = min(ends, default=None)
        try:
            if to_epoch is not None:
                assert last is not None
                produce_to(
                    source, producer, log, last, rate=rate, on_epoch=_print_closed, notify=tell
                )
            else:
                assert calendar is not None
                end = calendar.start_of(closed_before + 2)
                tell(f"epoch {closed_before + 1} closes at {end:%Y-%m-%d %H:%M:%S} UTC")
                produce_as_they_come(
                    source,
                    producer,
                    log,
                    calendar,
                    clock.moment,
                    on_epoch=_print_closed,
                    notify=tell,
                )
        finally:
            for warning in source.warnings():
                tell(warning)
        if producer.users:
            tell(f"{plural(len(producer.users), 'user')} enrolled; this list is public")
        print_produced(producer, closed_before, last, source.unknown_users, as_json)


def _print_closed(epoch: int) -> None:
    tell(f"epoch {epoch} is closed")
