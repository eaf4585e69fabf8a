"""Public facts, and all observables computed from them.

Except for the randomized view, which the guarantees cover, everything that a party can observe is a
function of the facts listed here, and never of a value. ``tests/conformance/test_neighbors.py``
runs neighboring inputs and compares every `Observable`. PRIVACY.md contains the output of
`markdown` (``python -m tests.support.public_facts``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Fact(Enum):
    JOB = "job", "its file as deployed, and the mechanism that follows from it"
    PEOPLE = (
        "people",
        "the set of users: those of the user list (`--users`, or rows without a value before epoch "
        "1), without a list those with a row in a producer's first file, or those enrolled by a "
        "program; the producer, first epoch and last horizon of each",
    )
    PRESENCE = (
        "presence",
        "who reports when: the set of producers, the first and last epoch of each, the epochs it "
        "closes, and the number of its devices present: all enrolled ones, or those named by a "
        "program",
    )
    RANDOMNESS = (
        "public randomness",
        "draws made before any value is read: orders and rows of devices, the epochs at which "
        "they report, ids of producers, batches and attempts",
    )
    TIMES = "times", "when producers close epochs and stages work"


class View(Enum):
    """View that depends on values only through a randomizer, which the guarantees cover."""

    REPORTS = "messages of all reports"
    RELEASED = "messages of released windows"


class Party(Enum):
    """Party with its part of the randomized view; it also sees the views of all parties above."""

    READERS = "readers of estimates", "functions of messages of released windows"
    AGGREGATORS = "aggregators, and holders of a recording", View.RELEASED.value
    OPERATORS = "operators", "the same"
    NETWORK = "shuffler, Kafka's operator, network", View.REPORTS.value


@dataclass(frozen=True, slots=True)
class Observable:
    """Observation other than the messages themselves.

    Attributes:
        party: First party that sees the observation.
        made_of: Facts and views that determine the observation.
        why: Reason that values have no other effect.
    """

    name: str
    what: str
    party: Party
    made_of: tuple[Fact | View, ...]
    why: str


_DECIDED = (Fact.JOB, Fact.PEOPLE, Fact.PRESENCE, Fact.TIMES)

OBSERVABLES = (
    Observable(
        "estimates",
        "for each epoch: whether it is released, contributors, population, time, guarantee",
        Party.READERS,
        (*_DECIDED, View.RELEASED),
        "computed only from the manifest and the partial of the epoch",
    ),
    Observable(
        "documents",
        "JSON of each epoch: the estimate with its dates",
        Party.READERS,
        (*_DECIDED, View.RELEASED),
        "computed only from the estimate of the epoch",
    ),
    Observable(
        "results",
        "output of `estimates`, also smoothed",
        Party.READERS,
        (*_DECIDED, View.RELEASED),
        "computed only from estimates, manifests and partials",
    ),
    Observable(
        "page",
        "every answer of the API, and every message to the page, which consists of answers",
        Party.READERS,
        (*_DECIDED, Fact.RANDOMNESS, View.RELEASED),
        "computed from estimates, manifests and what operators see",
    ),
    Observable(
        "deployments",
        "the job as deployed, its charge, budget and phase",
        Party.READERS,
        (Fact.JOB, Fact.TIMES),
        "written before the first report",
    ),
    Observable(
        "decisions",
        "manifests: window status, producers included, contributors, population, offsets",
        Party.AGGREGATORS,
        (*_DECIDED, Fact.RANDOMNESS),
        "computed from registrations, punctuations and the offsets of reports",
    ),
    Observable(
        "windows",
        "number and sizes of the records of released windows; other windows have none",
        Party.AGGREGATORS,
        (*_DECIDED, View.RELEASED),
        "messages in canonical or random order, split by their number alone; ids are random",
    ),
    Observable(
        "partials",
        "number and sizes of records; integers of each window",
        Party.AGGREGATORS,
        (*_DECIDED, View.RELEASED),
        "a function of the messages of the window",
    ),
    Observable(
        "recording",
        "files, their sizes, and output of `record`",
        Party.AGGREGATORS,
        (*_DECIDED, View.RELEASED),
        "copied from the four records of each epoch, in the order of epochs",
    ),
    Observable(
        "registrations",
        "names of producers, random ids, first and last epochs",
        Party.OPERATORS,
        (Fact.PRESENCE, Fact.RANDOMNESS),
        "a producer registers before it reads a value",
    ),
    Observable(
        "heartbeats",
        "status of workers: open windows, missing producers, counts",
        Party.OPERATORS,
        (*_DECIDED, Fact.RANDOMNESS, View.RELEASED),
        "where the number of messages is secret, only devices are counted before release",
    ),
    Observable(
        "metrics",
        "metrics exported to Prometheus",
        Party.OPERATORS,
        (*_DECIDED, Fact.RANDOMNESS, View.RELEASED),
        "computed from heartbeats, finalized windows, lags, and the latest estimates",
    ),
    Observable(
        "log lines",
        "logs of workers, as text and JSON",
        Party.OPERATORS,
        _DECIDED,
        "the line of a window states its epoch, status and contributors",
    ),
    Observable(
        "status",
        "output of `status`, `list`, `producers` and `dead-letters`",
        Party.OPERATORS,
        (*_DECIDED, Fact.RANDOMNESS, View.RELEASED),
        "computed from all of the above, offsets, and the headers of dead letters",
    ),
    Observable(
        "exit codes",
        "exit codes of `produce`",
        Party.OPERATORS,
        (Fact.JOB, Fact.PEOPLE),
        "invalid rows are reported to the caller and skipped",
    ),
    Observable(
        "reports",
        "number, sizes and order of batches, their headers, punctuations",
        Party.NETWORK,
        (*_DECIDED, Fact.RANDOMNESS),
        "where the number of messages is secret, capacity for the maximum number, and at least "
        "one batch; elsewhere, the messages due by the randomness drawn at enrollment",
    ),
    Observable(
        "rejections",
        "dead letters and their reasons",
        Party.NETWORK,
        (Fact.JOB, Fact.PRESENCE, Fact.RANDOMNESS),
        "records are rejected by format, epoch and registration, never by message content",
    ),
    Observable(
        "progress",
        "offsets committed by stages, and offsets below which records are deleted",
        Party.NETWORK,
        (*_DECIDED, Fact.RANDOMNESS, View.RELEASED),
        "determined by the number of records",
    ),
)


def markdown() -> str:
    """Return the lists of PRIVACY.md: facts, parties, and the inputs of each observable."""
    return "\n".join([*_facts(), "", *_parties(), "", *_observables()])


def _facts() -> Iterator[str]:
    for fact in Fact:
        name, what = fact.value
        yield f"* **{name}**: {what}"


def _parties() -> Iterator[str]:
    yield "| party | sees of the randomized view | also sees |"
    yield "|---|---|---|"
    for party in Party:
        who, words = party.value
        seen = ", ".join(each.name for each in OBSERVABLES if each.party is party)
        yield f"| {who} | {words} | {seen} |"


def _observables() -> Iterator[str]:
    yield "| observable | content | function of | why values have no other effect |"
    yield "|---|---|---|---|"
    for each in OBSERVABLES:
        made_of = ", ".join(_name(source) for source in each.made_of)
        yield f"| **{each.name}** | {each.what} | {made_of} | {each.why} |"


def _name(source: Fact | View) -> str:
    return source.value[0] if isinstance(source, Fact) else source.value


if __name__ == "__main__":
    print(markdown())
