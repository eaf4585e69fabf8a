"""Run a producer that reads a topic of events, as a killable process.

Arguments: job, topic, servers, state folder, producer registry file, seed, last epoch. It prints a
line whenever it has stored progress.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dpstream.pipeline.actions import LogSlice
from dpstream.pipeline.devices.produce_topic import produce_to
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.topic_input import TopicInput
from dpstream.pipeline.devices.users import load_users
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.event_topic import EventTopic
from dpstream.pipeline.kafka.memory import seeded_generators


class SmallSlices(EventTopic):
    """Read few events at a time, so that reading takes many transactions."""

    def read(self, partition: int, start: int, stop: int) -> LogSlice:
        return super().read(partition, start, min(stop, start + 2_000))


class NotedInput(TopicInput):
    def take(self, partition: int, events: LogSlice) -> None:
        super().take(partition, events)
        print("taken", partition, events.end, flush=True)

    def close(self, epoch: int) -> None:
        super().close(epoch)
        print("closed", epoch, flush=True)


def main() -> None:
    name, topic, servers, folder, user_list, seed, last_epoch = sys.argv[1:]
    connection = Connection((servers,))
    with Cluster(connection) as cluster, Cluster(connection, committed=True) as events:
        job = find_deployed(cluster, name)
        producer = Producer(
            job,
            Path(folder),
            name="gateway",
            transport=KafkaTransport(cluster, name),
            generators=seeded_generators(int(seed)),
        )
        reader = RowReader(job.domain, job.epochs.calendar, job.input_format)
        source = NotedInput(producer, reader, topic, user_list=load_users(user_list))
        produce_to(source, producer, SmallSlices(events, topic), int(last_epoch))
        producer.shut()
    print("done", flush=True)


if __name__ == "__main__":
    main()
