"""An Apache Kafka broker on this machine, without Docker, Java or Maven installed."""

from dpstream.pipeline.kafka.local_kafka.broker import KafkaStatus, LocalKafka
from dpstream.pipeline.kafka.local_kafka.jars import LocalKafkaError

__all__ = ["KafkaStatus", "LocalKafka", "LocalKafkaError"]
