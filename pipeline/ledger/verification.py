"""Find changes to the ledger that dpstream itself never makes.

* A party with write access to the topic can append false entries, which remain visible to all.
* Guarantee: no entry of the ledger is changed, removed or moved without detection. Changes are
  detected by the chain, by receipts and deployed jobs in ``dpstream.jobs``, by releases, or by a
  head stored elsewhere.
* Exception: an attacker who rewrites the ledger, ``dpstream.jobs`` and the releases together is
  detected only by a head stored where the attacker cannot write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.ledger.chain import ChainProblem, Oddity
from dpstream.pipeline.ledger.entries import GENESIS, EntryKind
from dpstream.pipeline.ledger.spending import Spending
from dpstream.topics.names import LEDGER_TOPIC, TopicSettings, ledger_topic


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """An inconsistency, with an offset if it is in the ledger, and the time in milliseconds."""

    what: str
    offset: int | None = None
    at: int | None = None


@dataclass(frozen=True, slots=True)
class PublishedDeployment:
    """A deployment that has published estimates.

    `since` is the broker timestamp of its first record, milliseconds since 1970. `unbacked`
    contains a description and a write time for each estimate without a manifest that releases it.
    """

    job: str
    since: int
    unbacked: Sequence[tuple[str, int]] = ()


def verify(
    state: Spending,
    settings: TopicSettings | None,
    *,
    first_offset: int = 0,
    kept: str | None = None,
    published: Mapping[str, PublishedDeployment] | None = None,
) -> list[Inconsistency]:
    """Return all inconsistencies; empty if the ledger is intact.

    `settings` are those of the ledger's topic, or None if it does not exist. `kept` is an earlier
    head stored elsewhere, a SHA-256 in hexadecimal. `published` is keyed by deployment in
    hexadecimal.
    """
    return [
        *_settings(settings),
        *_cut_in_front(state, first_offset),
        *_oddities(state.chain.oddities),
        *_receipts(state),
        *_kept(state, kept),
        *_deployed(state),
        *_published(state, published or {}),
    ]


def _settings(settings: TopicSettings | None) -> Iterator[Inconsistency]:
    if settings is None:
        return
    expected = ledger_topic(None)
    if settings.partitions != expected.partitions:
        yield Inconsistency(
            f"topic {LEDGER_TOPIC} has {settings.partitions} partitions; expected 1"
        )
    for key in ("cleanup.policy", "retention.ms", "retention.bytes"):
        has, needs = settings.configs.get(key), expected.configs[key]
        if has is not None and has != needs:
            yield Inconsistency(
                f"topic {LEDGER_TOPIC} has {key}={has}, which allows Kafka to delete or rewrite "
                f"records; expected {needs}"
            )


def _cut_in_front(state: Spending, first_offset: int) -> Iterator[Inconsistency]:
    noted = any(each.problem is ChainProblem.CUT for each in state.chain.oddities)
    if first_offset > 0 and not noted:
        yield Inconsistency(
            f"the records before offset {first_offset} no longer exist", first_offset
        )


def _oddities(oddities: Sequence[Oddity]) -> Iterator[Inconsistency]:
    """Yield all oddities; of consecutive `FORKED` ones, only the first, and how many follow."""
    for problem, group in groupby(oddities, key=lambda each: each.problem):
        together = list(group)
        if problem is not ChainProblem.FORKED:
            for each in together:
                detail = f" ({each.detail})" if each.detail else ""
                yield Inconsistency(f"{each.problem.value}{detail}", each.offset, each.written)
            continue
        first, rest = together[0], len(together) - 1
        more = f", and {rest:,} more after it have the same problem" if rest else ""
        yield Inconsistency(f"{problem.value} ({first.detail}){more}", first.offset, first.written)


def _receipts(state: Spending) -> Iterator[Inconsistency]:
    for receipt in state.topic.receipts:
        stands = state.chain.offset_of(receipt.entry)
        about = f"deployment {receipt.about[:8]}" if len(receipt.about) == 32 else "the ledger"
        kept = f"dpstream.jobs recorded entry {receipt.entry[:12]} of {about}"
        if stands is None:
            yield Inconsistency(
                f"{kept} at this offset, but it is invalid or no longer exists: the ledger was "
                "truncated, or changed at or before this offset",
                receipt.offset,
                receipt.at,
            )
        elif stands not in (-1, receipt.offset):
            yield Inconsistency(
                f"{kept} at offset {receipt.offset}, not at this offset: the topic was rewritten",
                stands,
                receipt.at,
            )


def _kept(state: Spending, kept: str | None) -> Iterator[Inconsistency]:
    if kept is None or kept == GENESIS or state.chain.has(kept):
        return
    yield Inconsistency(
        f"no valid entry has the recorded head {kept}: the ledger was truncated at its end, or "
        "changed at or before that entry, or the head is from another ledger"
    )


def _deployed(state: Spending) -> Iterator[Inconsistency]:
    ledger = state.written_charges
    for job in state.topic.jobs.values():
        deployment = job.deployment.hex()
        if job.replay_of is not None:
            continue
        charge = ledger.get(deployment)
        if charge is None:
            yield Inconsistency(
                f"job {job.name} runs as deployment {deployment[:8]}, which is not charged to any "
                "population",
                at=job.deployed_at,
            )
        elif not _covers(charge, Charge.of(job)):
            yield Inconsistency(
                f"job {job.name} runs as deployment {deployment[:8]} and costs its users more "
                "than they are charged",
                at=job.deployed_at,
            )


def _covers(charge: Charge, due: Charge) -> bool:
    horizons = charge.horizons is None or (
        due.horizons is not None and due.horizons <= charge.horizons
    )
    same = charge.population == due.population and (
        charge.rolling_epochs is None
        or (charge.rolling_epochs, charge.epoch_length) == (due.rolling_epochs, due.epoch_length)
    )
    return same and horizons and charge.epsilon >= due.epsilon and charge.delta >= due.delta


def _published(
    state: Spending, published: Mapping[str, PublishedDeployment]
) -> Iterator[Inconsistency]:
    charged = {each.deployment for each in state.charges} | set(_replays(state))
    for deployment, releases in published.items():
        who = f"deployment {deployment[:8]} of job {releases.job}"
        if deployment not in charged:
            yield Inconsistency(
                f"{who} has published but is not charged to any population: the ledger was "
                "truncated, or another writer wrote to the job's topics",
                at=releases.since,
            )
        for what, at in releases.unbacked:
            yield Inconsistency(f"{who}: {what}", at=at)


def _replays(state: Spending) -> Iterable[str]:
    for job in state.topic.jobs.values():
        if job.replay_of is not None:
            yield job.deployment.hex()
    for entry in state.chain.entries:
        if entry.draft.kind == EntryKind.REPLAY:
            yield str(entry.draft.facts.get("deployment"))
