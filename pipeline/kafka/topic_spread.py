"""Estimate record ages by binary search, and wait until all brokers know new topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.protocol.metadata import MetadataRequest

FINEST_AGE_MS: Final = 1_000
"""Finest resolution of ages, in milliseconds."""

Partition = TypeVar("Partition")
_Search: TypeAlias = Generator[int, bool, int]


def record_ages(
    places: Collection[Partition],
    oldest: int,
    older: Callable[[Mapping[Partition, int]], Collection[Partition]],
) -> dict[Partition, int]:
    """Return the age of one record per partition, in milliseconds rounded down.

    The resolution is one second, or about 5 % of the age if that is more. `oldest` is an upper
    bound. `older` is called with ages for some partitions, and returns the partitions whose records
    are older. All searches advance together: more partitions do not mean more calls.
    """
    searches = {place: _search(oldest) for place in places}
    found: dict[Partition, int] = {}
    requested: dict[Partition, int] = {}

    def advance(place: Partition, answer: bool | None) -> None:
        search = searches[place]
        try:
            requested[place] = next(search) if answer is None else search.send(answer)
        except StopIteration as finished:
            found[place] = finished.value
            requested.pop(place, None)

    for place in searches:
        advance(place, None)
    while requested:
        answers = older(dict(requested))
        for place in tuple(requested):
            advance(place, place in answers)
    return found


def _search(oldest: int) -> _Search:
    """Yield an age, receive whether the record is older, and finally return the record's age."""
    least, most = 0, FINEST_AGE_MS
    while most < oldest and (yield most):
        least, most = most, 2 * most
    while most - least > max(FINEST_AGE_MS, most // 20):
        middle = (least + most) // 2
        if (yield middle):
            least = middle
        else:
            most = middle
    return least


TopicMetadata: TypeAlias = Mapping[str, Any]
"""Metadata of a topic from a broker: ``error_code`` and ``partitions``."""
BrokersMetadata: TypeAlias = Mapping[int, Mapping[str, TopicMetadata]]
"""Metadata of topics by name, from each broker that answers."""

_ASK_AGAIN_SECONDS = 0.05


class TopicSpreadError(Exception):
    pass


def metadata_of_brokers(admin: KafkaAdminClient, topics: Iterable[str]) -> BrokersMetadata:
    names = list(topics)
    manager = admin._manager

    async def ask() -> BrokersMetadata:
        answers: dict[int, dict[str, TopicMetadata]] = {}
        for broker in manager.cluster.brokers():
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            )
            try:
                response = await manager.send(request, node_id=broker.node_id)
            except KafkaError:
                continue
            described = response.to_dict()["topics"]
            answers[broker.node_id] = {topic["name"]: topic for topic in described}
        return answers

    found: BrokersMetadata = manager.run(ask)
    return found


def wait_for_brokers(
    ask: Callable[[], BrokersMetadata],
    topics: Iterable[str],
    *,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until every answering broker knows all topics, or raise TopicSpreadError."""
    names = sorted(topics)
    deadline = clock() + timeout
    while True:
        answers = ask()
        lacking = {
            broker: unknown
            for broker, known in answers.items()
            if (unknown := [name for name in names if not _is_ready(known.get(name))])
        }
        if answers and not lacking:
            return
        if clock() > deadline:
            raise TopicSpreadError(_in_words(lacking))
        sleep(_ASK_AGAIN_SECONDS)


def _is_ready(topic: TopicMetadata | None) -> bool:
    if topic is None or topic["error_code"] or not topic["partitions"]:
        return False
    return all(
        not partition["error_code"] and partition["leader_id"] >= 0
        for partition in topic["partitions"]
    )


def _in_words(lacking: Mapping[int, list[str]]) -> str:
    if not lacking:
        return "no broker answers"
    return "; ".join(
        f"broker {broker} does not know {', '.join(names)}" for broker, names in lacking.items()
    )
