"""Read and write ``dpstream.ledger`` on a cluster, along with ``dpstream.jobs``."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from importlib.metadata import version

from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.jobs_topic import LATEST, Receipt
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.ledger.writing import DraftEntry, writing
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, jobs_topic, ledger_topic


class SpendingReader:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._state = Spending()
        self._jobs = 0
        self._existing: set[str] = set()

    def read(self) -> Spending:
        """Read to the current ends of both topics; return the state, always the same object."""
        topics = {JOBS_TOPIC, LEDGER_TOPIC}
        if not topics <= self._existing:
            # A hidden topic must not count as empty, because users would then be charged again.
            self._existing = set(filter(self._cluster.exists, topics))
        state = self._state
        if JOBS_TOPIC in self._existing:
            for record in self._cluster.read(JOBS_TOPIC, start=self._jobs):
                state.topic.apply(record.key, record.value)
                self._jobs = record.offset + 1
        if LEDGER_TOPIC in self._existing:
            for record in self._cluster.read(LEDGER_TOPIC, start=state.chain.next):
                state.chain.apply(record.offset, record.value, record.timestamp, record.key)
        return state


def read_spending(cluster: Cluster) -> Spending:
    return SpendingReader(cluster).read()


def write_entries(
    cluster: Cluster, draft_entry: DraftEntry, replication: int | None = None
) -> Spending:
    """Write entries to the ledger until none are missing, and check that they are valid.

    Raises LedgerError if the ledger is damaged, and ClusterError if the cluster rejects a write; an
    entry might nevertheless have been written.
    """
    reader = SpendingReader(cluster)
    steps = writing(draft_entry, lambda: secrets.token_hex(8), version("dpstream"))
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
    draft_entry: DraftEntry,
    now: int,
    *,
    about: str = LATEST,
    declared: Iterable[BudgetDeclaration] = (),
    replication: int | None = None,
) -> None:
    """Write entries as `write_entries` does, and a receipt for them to ``dpstream.jobs``.

    `about` is as in `write_receipt`. `declared` has the budgets that the entries declare.
    """
    state = write_entries(cluster, draft_entry, replication)
    for each in declared:
        append_declared(cluster, each)
    write_receipt(cluster, about, state, now)


def append_declared(cluster: Cluster, declared: BudgetDeclaration) -> None:
    cluster.append(JOBS_TOPIC, declared.to_bytes(), key=declared.key)


def _append(cluster: Cluster, record: bytes, replication: int | None) -> None:
    missing = {JOBS_TOPIC, LEDGER_TOPIC} - cluster.topics()
    if missing:
        topics = (jobs_topic(replication), ledger_topic(replication))
        cluster.create_topics(topic for topic in topics if topic.name in missing)
    cluster.append(LEDGER_TOPIC, record)


def write_receipt(cluster: Cluster, about: str, state: Spending, now: int) -> None:
    """Write a receipt for the ledger's last entry; `about` is a deployment or `LATEST`."""
    chain = state.chain
    offset = chain.offset_of(chain.head)
    if offset is not None and offset >= 0:
        receipt = Receipt(about, chain.head, offset, now)
        cluster.append(JOBS_TOPIC, receipt.to_bytes(), key=receipt.key)
