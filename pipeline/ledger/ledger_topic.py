"""Reads and writes ``dpstream.ledger`` on a cluster, beside ``dpstream.jobs``."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version

from dpstream.pipeline.jobs.receipts import LATEST, Receipt
from dpstream.pipeline.jobs.stated_budgets import StatedBudget
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.ledger.writing import Wanted, writing
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, jobs_topic, ledger_topic


class SpendingReader:
    """What people are charged and may be; each reading goes on where the last one stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._state = Spending()
        self._jobs = 0
        self._there: set[str] = set()

    def read(self) -> Spending:
        """What both topics say up to their present ends; it is the same object each time."""
        topics = {JOBS_TOPIC, LEDGER_TOPIC}
        if not topics <= self._there:
            # One that is hidden is no empty one: people would be charged anew.
            self._there = set(filter(self._cluster.exists, topics))
        state = self._state
        if JOBS_TOPIC in self._there:
            for record in self._cluster.read(JOBS_TOPIC, start=self._jobs):
                state.topic.apply(record.key, record.value)
                self._jobs = record.offset + 1
        if LEDGER_TOPIC in self._there:
            for record in self._cluster.read(LEDGER_TOPIC, start=state.chain.next):
                state.chain.apply(record.offset, record.value, record.timestamp, record.key)
        return state


def read_spending(cluster: Cluster) -> Spending:
    """What people are charged and may be now."""
    return SpendingReader(cluster).read()


def write_entries(cluster: Cluster, wanted: Wanted, replication: int | None = None) -> Spending:
    """Write to the ledger until nothing is wanted any more, and see that all of it counts.

    Args:
        cluster: where.
        wanted: the next entry, or None.
        replication: of the topics, where they are missing.

    Raises:
        LedgerError: the ledger was damaged.
        ClusterError: the cluster refuses; an entry may have been written all the same.
    """
    reader = SpendingReader(cluster)
    steps = writing(wanted, lambda: secrets.token_hex(8), _software())
    record = next(steps)
    while True:
        try:
            if record is None:
                record = steps.send(reader.read())
            else:
                _append(cluster, record, replication)
                record = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def write_with_receipt(
    cluster: Cluster,
    wanted: Wanted,
    now: int,
    *,
    about: str = LATEST,
    stated: Iterable[StatedBudget] = (),
    replication: int | None = None,
) -> None:
    """Write entries as `write_entries` does, and keep in ``dpstream.jobs`` that they were written.

    Args:
        cluster: where.
        wanted: the next entry, or None.
        now: milliseconds since 1970.
        about: as of `write_receipt`.
        stated: budgets among the entries.
        replication: as of `write_entries`.

    Raises:
        LedgerError: the ledger was damaged.
    """
    state = write_entries(cluster, wanted, replication)
    for each in stated:
        append_stated(cluster, each)
    write_receipt(cluster, about, state, now)


def append_stated(cluster: Cluster, stated: StatedBudget) -> None:
    """Keep a copy of a stated budget, for the case that the ledger is damaged."""
    cluster.append(JOBS_TOPIC, stated.to_bytes(), key=stated.key)


def _append(cluster: Cluster, record: bytes, replication: int | None) -> None:
    missing = {JOBS_TOPIC, LEDGER_TOPIC} - cluster.topics()
    if missing:
        made = (jobs_topic(replication), ledger_topic(replication))
        cluster.create_topics(topic for topic in made if topic.name in missing)
    cluster.append(LEDGER_TOPIC, record)


def write_receipt(cluster: Cluster, about: str, state: Spending, now: int) -> None:
    """Keep in ``dpstream.jobs`` with which entry the ledger ended.

    Args:
        cluster: where.
        about: a deployment in hexadecimal, or `dpstream.pipeline.jobs.receipts.LATEST`.
        state: as it was written.
        now: milliseconds since 1970.
    """
    chain = state.chain
    offset = chain.offset_of(chain.head)
    if offset is not None and offset >= 0:
        receipt = Receipt(about, chain.head, offset, now)
        cluster.append(JOBS_TOPIC, receipt.to_bytes(), key=receipt.key)


@cache
def _software() -> str:
    return version("dpstream")
