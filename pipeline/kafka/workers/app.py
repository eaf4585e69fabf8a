"""The Faust application of a worker."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from faust import App

from dpstream.pipeline.kafka.workers.consumer import StageConsumer
from dpstream.pipeline.kafka.workers.execution import Execution
from dpstream.pipeline.kafka.workers.internals import (
    NoTables,
    SilentMonitor,
)
from dpstream.pipeline.kafka.workers.timings import Timings

if TYPE_CHECKING:
    from faust.types import AppT, StreamT

    from dpstream.pipeline.kafka.connection import Connection


# Larger fetches of one partition starve the other partitions.
FETCH_BYTES = 1 << 20
# Maximum number of records buffered for the stage, each of up to 64 KiB.
BUFFERED_RECORDS = 64
_NEVER = 10.0**6
# Kafka's code for the timestamp type.
_LOG_APPEND_TIME = 1


def build_app(
    execution: Execution,
    connection: Connection,
    *,
    topic: str,
    group: str,
    client: str,
    instance: str,
    directory: Path,
    timings: Timings,
) -> AppT:
    """Return the application, whose single agent passes every record of `topic` to `execution`.

    `group` is the consumer group, and `directory` the folder for Faust's files. `instance` is the
    group instance ID, which live processes must not share.
    """
    app = App(
        group,
        monitor=SilentMonitor(),
        TableManager=NoTables,
        **{"broker_client_id": client, **connection.faust()},
        broker_session_timeout=timings.session,
        broker_heartbeat_interval=timings.heartbeat,
        broker_rebalance_timeout=timings.rebalance,
        broker_request_timeout=timings.request,
        broker_max_poll_records=None,
        # Offsets are committed by the stage, so Faust has nothing to commit and nothing to miss.
        broker_commit_interval=_NEVER,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance,
        consumer_max_fetch_size=FETCH_BYTES,
        stream_buffer_maxsize=BUFFERED_RECORDS,
        # Otherwise, rebalances and SIGTERM wait for events that are never acknowledged.
        stream_wait_empty=False,
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        datadir=str(directory),
        web_enabled=False,
        web_bind="127.0.0.1",
        web_tables_enabled=False,
        worker_redirect_stdouts=False,
        autodiscover=False,
    )
    app.transport.Consumer = partial(  # type: ignore[assignment,misc]  # a ClassVar of Faust's
        StageConsumer, execution=execution, topic=topic, timings=timings
    )

    async def show_records(stream: StreamT[bytes]) -> None:
        async for event in stream.events():
            message = event.message
            # Use only the broker's timestamps; a writer's own timestamp must not be used.
            stamped = message.timestamp_type == _LOG_APPEND_TIME and message.timestamp is not None
            written = round(1000 * message.timestamp) if stamped else None
            await execution.record(
                message.partition,
                message.offset,
                message.value or b"",
                written,
                bare=message.key is None and not message.headers,
            )

    app.agent(app.topic(topic, value_type=bytes, acks=False), name="stage")(show_records)
    return app
