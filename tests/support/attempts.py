"""Try operations on a cluster for which a login has no permission, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from dpstream.pipeline.kafka.cluster_errors import rejected_kind
from dpstream.pipeline.kafka.connection import Connection

TOPIC_OPERATIONS = (
    *("READ", "WRITE", "CREATE", "DELETE", "ALTER"),
    *("DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
)
GROUP_OPERATIONS = ("READ", "DESCRIBE", "DELETE")
CLUSTER_OPERATIONS = ("ALTER", "DESCRIBE", "CREATE", "ALTER_CONFIGS")
_TIMEOUT = 20.0
_TRANSACTIONAL_ID_REJECTED = 53


class Attempts:
    """Operations tried by one login; methods return whether the broker denied authorization."""

    def __init__(self, connection: Connection) -> None:
        settings = connection.kafka_python()
        self._admin: Any = KafkaAdminClient(**settings)
        self._consumer: Any = KafkaConsumer(
            **settings, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        # An idempotent producer would need another permission before it can write.
        self._producer: Any = KafkaProducer(**settings, enable_idempotence=False, acks="all")
        self._settings = settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._producer.close(timeout=1)
        self._consumer.close()
        self._admin.close()

    def topic(self, operation: str, name: str) -> bool:
        return {
            "READ": self._read,
            "WRITE": lambda name: _rejected(lambda: self._producer.send(name, b"x").get(_TIMEOUT)),
            "CREATE": lambda name: _rejected(
                lambda: self._admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)
            ),
            "DELETE": lambda name: _rejected(lambda: self._admin.delete_topics([name])),
            "ALTER": lambda name: _rejected(
                lambda: self._admin.create_partitions({name: 64}, validate_only=True)
            ),
            "DESCRIBE": lambda name: self._admin.describe_topics([name])[0]["error_code"] in (29,),
            "DESCRIBE_CONFIGS": self._settings_are_hidden,
            "ALTER_CONFIGS": self._may_not_configure,
        }[operation](name)

    def group(self, operation: str, name: str, topic: str) -> bool:
        """Try an operation on a consumer group and the topic whose offsets it would commit."""
        where = TopicPartition(topic, 0)
        return {
            "READ": lambda: _rejected(
                lambda: self._admin.alter_group_offsets(name, {where: OffsetAndMetadata(0, "", -1)})
            ),
            "DESCRIBE": lambda: _rejected(lambda: self._admin.list_group_offsets({name: [where]})),
            "DELETE": lambda: _rejected(lambda: self._admin.delete_groups([name])),
        }[operation]()

    def cluster(self, operation: str) -> bool:
        everything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        looked_for = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, everything)
        mine = ACL(
            *("User:thief", "*", ACLOperation.READ, ACLPermissionType.ALLOW),
            ResourcePattern(ResourceType.TOPIC, "any"),
        )
        broker = ConfigResource(ConfigResourceType.BROKER, "1", {"log.retention.ms": "60000"})
        return {
            "ALTER": lambda: _rejected(lambda: self._admin.create_acls([mine])["failed"]),
            "DESCRIBE": lambda: _rejected(lambda: self._admin.describe_acls(looked_for)),
            "CREATE": lambda: self.topic("CREATE", "of-no-job"),
            "ALTER_CONFIGS": lambda: _rejected(
                lambda: self._admin.alter_configs([broker], raise_on_unknown=False)
            ),
        }[operation]()

    def transaction(self, name: str) -> bool:
        producer: Any = KafkaProducer(
            **self._settings, transactional_id=name, max_block_ms=int(_TIMEOUT * 1000)
        )
        try:
            producer.init_transactions()
        except KafkaError as error:
            return getattr(error, "errno", None) == _TRANSACTIONAL_ID_REJECTED
        finally:
            producer.close(timeout=0)
        return False

    def _read(self, name: str) -> bool:
        where = TopicPartition(name, 0)
        if self.topic("DESCRIBE", name):
            # Read permission implies Describe, and the client would retry forever.
            return True
        self._consumer.assign([where])
        self._consumer.seek(where, 0)
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            try:
                if self._consumer.poll(200):
                    return False
            except KafkaError as error:
                return rejected_kind(error) == "topic"
        return False

    def _settings_are_hidden(self, name: str) -> bool:
        requested = ConfigResource(ConfigResourceType.TOPIC, name)
        answer = self._admin.describe_configs([requested], config_filter="all")
        return not answer["topic"][name]

    def _may_not_configure(self, name: str) -> bool:
        requested = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "86400000"})
        return _rejected(lambda: self._admin.alter_configs([requested], raise_on_unknown=False))


def _rejected(attempt: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            said = str(attempt())
        except KafkaError as error:
            if rejected_kind(error) is not None:
                return True
            said = type(error).__name__
        if "AuthorizationFailed" in said:
            return True
        # The group coordinator might still be starting.
        if "Coordinator" not in said or time.monotonic() > deadline:
            return False
        time.sleep(0.2)
