"""Parties that handle reports, and which of them the guarantee trusts, for the trust diagram."""

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
        trusted: True if the guarantee relies on it; for devices, on their own machine.
        either: True if the guarantee relies on any one of several such parties.
    """

    name: str
    sees: str
    trusted: bool
    either: bool = False


def parties_of(job: DeployedJob) -> tuple[Party, ...]:
    """Return the parties of a job, from those that hold values to readers of estimates."""
    return tuple(_parties(job))


def _parties(job: DeployedJob) -> Iterator[Party]:
    shuffles = not needs_no_trust(job.guarantee.trust)
    sealed = job.sealed is not None
    if job.devices is None:
        yield Party("devices, producers", "values, on their own machine", trusted=True)
    else:
        yield Party("devices", "each its own value", trusted=True)
        opens = not (job.devices.seal or sealed)
        sees = "who reports what, randomized" if opens else "who reports; the rest is sealed"
        yield Party("collectors", sees, trusted=shuffles and opens)
    if job.replay_of is None:
        sees = "who reports what, randomized"
        if sealed:
            sees = "who reports; the rest is sealed"
        stages = sum(role in job.route.shuffled for role in stages_of(job).values())
        name = "shuffler" if stages < 2 else f"{stages} shufflers"
        yield Party(name, sees, trusted=shuffles and not job.shared)
    if job.shared:
        yield Party("aggregator a", "one share of each sum", trusted=False, either=True)
        yield Party("aggregator b", "the other share", trusted=False, either=True)
    else:
        sees = "reports, not their origin" if job.stage_sum is None else "sums with noise"
        yield Party("aggregator", sees, trusted=False)
    yield Party("readers", "estimates", trusted=False)


def trust_body(job: DeployedJob) -> dict[str, Any]:
    """Return the API's description of trust: the parties, and a sentence."""
    parties = parties_of(job)
    own = "the user's own device"
    if job.devices is None:
        own = "the user's own device and its producer"
    trusted = [party.name for party in parties[1:] if party.trusted]
    if job.shared:
        words = (
            f"Trusted party besides {own}: either one of the two aggregators; if they collude, "
            "they can read what each producer counted"
        )
    elif trusted:
        party = "party" if len(trusted) == 1 else "parties"
        words = f"Trusted {party} besides the user's own device: the {' and the '.join(trusted)}"
    else:
        words = f"Trusted party besides {own}: none"
    honest = job.protocol_entry.contributors(job.law)
    others = ""
    if honest is not None:
        others = f" This assumes at least {honest:,} honest {job.people} per {period(job)}."
    return {"parties": parties, "description": f"{words}.{others}"}
