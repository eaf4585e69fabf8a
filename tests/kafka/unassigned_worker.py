"""Run an echo worker whose group assigns no partitions, as if Kafka did not know the topic.

Run as a script, with the arguments of `echo_worker`.
"""

import runpy
from pathlib import Path

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

if __name__ == "__main__":
    assign = RoundRobinPartitionAssignor.assign
    RoundRobinPartitionAssignor.assign = lambda _, members: assign(ClusterMetadata(), members)
    runpy.run_path(str(Path(__file__).with_name("echo_worker.py")), run_name="__main__")
