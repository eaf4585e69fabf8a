"""Public facts, and all observables computed from them.

Apart from the randomized view, which the guarantees cover, everything that a party can observe is a
function of the facts listed here, never of a value. ``tests/conformance/test_neighbours.py`` runs
neighboring inputs and compares every `Observable`. PRIVACY.md contains the output of `markdown`
(``python -m tests.support.public_facts``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Fact(Enum):
    JOB = "job", "its file as deployed, and the probability law that follows from it"
    PEOPLE = (
        "people",
        "who there is: the users of the roster (`--users`, or rows without a value before epoch "
        "1), without one those with a row in the file that a producer begins with, or those whom a "
        "program enrols; with which producer, from which epoch on, and with which horizon they end",
    )
    PRESENCE = (
        "presence",
        "who reports when: which producers there are, from which epoch to which, the epochs they "
        "close, and how many of their devices are present: all that are enrolled, or those that a "
        "program names",
    )
    COINS = (
        "coins",
        "what is drawn before a value is looked at: orders and rows of devices, the epochs at "
        "which they report, ids of producers, batches and attempts",
    )
    TIMES = "times", "when producers close epochs and stages do their work"


class View(Enum):
    """View that depends on values through a randomizer alone, which the guarantees cover."""

    REPORTS = "words of all reports"
    RELEASED = "words of released windows"


class Party(Enum):
    """Party with its share of the randomized view. Each also sees what those above it see."""

    READERS = "whoever reads estimates", "what is computed from words of released windows"
    AGGREGATORS = "aggregators, and whoever has a recording", View.RELEASED.value
    OPERATORS = "operators", "nothing more"
    NETWORK = "shuffle stage, Kafka's operator, network", View.REPORTS.value


@dataclass(frozen=True, slots=True)
class Observable:
    """Observation other than the words themselves.

    Attributes:
        party: First party that sees it.
        made_of: Facts and views that it is a function of.
        why: Reason that no value enters otherwise.
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
        "of each epoch: whether it is released, contributors, population, time, guarantee",
        Party.READERS,
        (*_DECIDED, View.RELEASED),
        "made from the manifest and the partial of the epoch alone",
    ),
    Observable(
        "documents",
        "JSON of each epoch: what the estimate says, with its dates",
        Party.READERS,
        (*_DECIDED, View.RELEASED),
        "made from the estimate of the epoch alone",
    ),
    Observable(
        "models",
        "of each epoch of a job that learns: the model that devices compute at in the next one",
        Party.READERS,
        (*_DECIDED, View.RELEASED),
        "made from the partials of the epochs up to it alone",
    ),
    Observable(
        "results",
        "what `estimates` prints, smoothed too",
        Party.READERS,
        (*_DECIDED, View.RELEASED),
        "made from estimates, manifests and partials alone",
    ),
    Observable(
        "page",
        "every answer of the API, and every message to the page, which is made of them",
        Party.READERS,
        (*_DECIDED, Fact.COINS, View.RELEASED),
        "made from estimates, manifests and what operators see",
    ),
    Observable(
        "deployments",
        "the job as deployed, its charge, budget and phase",
        Party.READERS,
        (Fact.JOB, Fact.TIMES),
        "written before there are reports",
    ),
    Observable(
        "decisions",
        "manifests: fate, producers that are in, contributors, population, offsets",
        Party.AGGREGATORS,
        (*_DECIDED, Fact.COINS),
        "made from registrations, punctuations and the offsets of reports",
    ),
    Observable(
        "windows",
        "number and sizes of the records of released windows; of others there is none",
        Party.AGGREGATORS,
        (*_DECIDED, View.RELEASED),
        "words in canonical or random order, cut where their number alone says; ids are random",
    ),
    Observable(
        "partials",
        "number and sizes of records; integers of each window",
        Party.AGGREGATORS,
        (*_DECIDED, View.RELEASED),
        "a function of the words of the window",
    ),
    Observable(
        "recording",
        "files, their sizes, and what `record` says",
        Party.AGGREGATORS,
        (*_DECIDED, View.RELEASED),
        "made from the four records of each epoch, in the order of epochs",
    ),
    Observable(
        "registrations",
        "names of producers, random ids, first and last epochs",
        Party.OPERATORS,
        (Fact.PRESENCE, Fact.COINS),
        "a producer registers before it has seen a value",
    ),
    Observable(
        "heartbeats",
        "what workers say of themselves: open windows, whom they wait for, counts",
        Party.OPERATORS,
        (*_DECIDED, Fact.COINS, View.RELEASED),
        "where messages are hidden they are not counted before they are released: devices are",
    ),
    Observable(
        "metrics",
        "what Prometheus is told",
        Party.OPERATORS,
        (*_DECIDED, Fact.COINS, View.RELEASED),
        "made from heartbeats, windows decided, lags, and the latest estimates",
    ),
    Observable(
        "log lines",
        "of workers, as text and JSON",
        Party.OPERATORS,
        _DECIDED,
        "a line for a window says its epoch, fate and contributors",
    ),
    Observable(
        "status",
        "what `status`, `list`, `producers` and `dead-letters` say",
        Party.OPERATORS,
        (*_DECIDED, Fact.COINS, View.RELEASED),
        "made from all of the above, offsets, and the headers of dead letters",
    ),
    Observable(
        "exit codes",
        "of `produce`",
        Party.OPERATORS,
        (Fact.JOB, Fact.PEOPLE),
        "rows that cannot be used are told to whoever gives them, and skipped",
    ),
    Observable(
        "reports",
        "number, sizes and order of batches, what stands in their headers, punctuations",
        Party.NETWORK,
        (*_DECIDED, Fact.COINS),
        "where messages are hidden, room for the most there can be, and at least one batch; "
        "elsewhere the words that are due by coins drawn at enrolment",
    ),
    Observable(
        "refusals",
        "dead letters, and why",
        Party.NETWORK,
        (Fact.JOB, Fact.PRESENCE, Fact.COINS),
        "records are refused by form, epoch and registration, never by what their words mean",
    ),
    Observable(
        "progress",
        "offsets that stages commit, and below which records are deleted",
        Party.NETWORK,
        (*_DECIDED, Fact.COINS, View.RELEASED),
        "follow from the number of records",
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
    yield "| who sees | of the randomized view | and beside it |"
    yield "|---|---|---|"
    for party in Party:
        who, words = party.value
        seen = ", ".join(each.name for each in OBSERVABLES if each.party is party)
        yield f"| {who} | {words} | {seen} |"


def _observables() -> Iterator[str]:
    yield "| what can be seen | | made of | why no value enters otherwise |"
    yield "|---|---|---|---|"
    for each in OBSERVABLES:
        made_of = ", ".join(_name(source) for source in each.made_of)
        yield f"| **{each.name}** | {each.what} | {made_of} | {each.why} |"


def _name(source: Fact | View) -> str:
    return source.value[0] if isinstance(source, Fact) else source.value


if __name__ == "__main__":
    print(markdown())
