"""Parties that handle reports, and whether the guarantee trusts them, for the trust diagram."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import period
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.randomizers.guarantee import needs_no_trust


@dataclass(frozen=True, slots=True)
class Party:
    """A party that handles reports, and what it sees, in a few words.

    Attributes:
        trusted: True if the guarantee relies on the party; each device relies on itself.
        either: True if the guarantee relies on any one of several parties of this kind.
    """

    name: str
    sees: str
    trusted: bool
    either: bool = False


def parties_of(job: DeployedJob) -> tuple[Party, ...]:
    return tuple(_parties(job))


def _parties(job: DeployedJob) -> Iterator[Party]:
    shuffles = not needs_no_trust(job.guarantee.trust)
    shuffling, sealed = job.protocol_entry.shuffling, "who reports; the rest is sealed"
    local = shuffling is None or shuffling.without_shuffling(job.law) is not None
    randomized = ", randomized" if local else ""
    reports = f"who reports what{randomized}"
    if job.devices is None:
        yield Party("devices, producers", "each only its own users' values", trusted=True)
    else:
        yield Party("devices", "each its own value", trusted=True)
        opens = not (job.devices.seal or job.sealed)
        yield Party("collectors", reports if opens else sealed, trusted=shuffles and opens)
    if job.replay_of is None:
        sees = reports if job.sealed is None else sealed
        if job.devices is not None:  # collectors replace devices' ids by tags
            sees = f"reports{randomized}; not who sent them"
        yield Party(_shufflers(job), sees, trusted=shuffles and not job.shared)
    if job.shared:
        yield Party("aggregator a", "one share of each sum", trusted=False, either=True)
        yield Party("aggregator b", "the other share", trusted=False, either=True)
    else:
        sees = "reports, not their origin" if job.stage_sum is None else "sums with noise"
        yield Party("aggregator", sees, trusted=False)
    yield Party("readers", "estimates", trusted=False)


def _shufflers(job: DeployedJob) -> str:
    stages = sum(role in job.route.shuffled for role in stages_of(job).values())
    return "shuffler" if stages < 2 else f"{stages} shufflers"


def trust_body(job: DeployedJob) -> dict[str, Any]:
    parties = parties_of(job)
    own = "the user's own device"
    if job.devices is None:
        own = "the user's own device and its producer"
    trusted = [party.name for party in parties[1:] if party.trusted]
    if trusted and job.sealed is None and not (job.devices and job.devices.seal):
        trusted.append("operator of Kafka")
    party = f"part{'ies' if len(trusted) > 1 else 'y'}"
    *first, last = [f"the {each}" for each in trusted] or ["none"]
    words = f"{', '.join(first)} and {last}" if first else last
    if job.shared:
        words = "either aggregator; if both collude, they can read what each producer counted"
    elif job.added_by_each(job.law):
        words = f"one of the {_shufflers(job)} and the aggregator; it must not collude with others"
        if job.shuffle.instances > 1:
            words = f"the aggregator; it must not collude with any of the {_shufflers(job)}"
    honest = job.protocol_entry.contributors(job.law)
    others = ""
    if honest is not None:
        users = f"{honest:,} honest {job.people} per {period(job)}"
        others = f" The guarantee assumes at least {users}."
    return {"parties": parties, "description": f"Trusted {party} besides {own}: {words}.{others}"}
