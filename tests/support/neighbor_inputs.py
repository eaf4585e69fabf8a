"""Neighboring inputs: the same users, some with different values and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.panels import ONE, PanelQuestion
from tests.conformance.cases import Case
from tests.conformance.jobs import LAST_EPOCH, case_job_file

PRODUCERS = {"gateway": 6, "house": 4, "phone-1": 1, "phone-2": 1}
"""Number of users of each producer: gateways, and devices that are producers themselves."""
USERS = {
    name: tuple(f"{name}-{number}" for number in range(count)) for name, count in PRODUCERS.items()
}
CHANGED = (USERS["gateway"][-1], USERS["phone-2"][0])
"""Users with different values and rows: one of a gateway's, and one that is a producer."""
NEIGHBORS = ("reference", "other values", "no row to use")
"""Input of the differing users at every epoch."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Input files of a run: enrolled users and their values, by producer."""

    job: Path
    user_lists: Mapping[str, Path]
    rows: Mapping[str, Path]


def write_inputs(
    folder: Path,
    case: Case,
    variant: str,
    *,
    name: str = "case",
    minimum: int,
    dummies: str | None,
    partitions: int = 2,
    sealed: Mapping[str, Any] | None = None,
    instances: int = 1,
) -> Inputs:
    """Write the input files of one of `NEIGHBORS`; other arguments are as in `case_job_file`.

    `sealed` determines how reports are sealed with keys of `tests.support.sealing`. `instances` is
    the number of parallel shufflers.
    """
    if case.protocol.sampled is not None and minimum <= sum(PRODUCERS.values()):
        # Fewer users are asked at an epoch; every window has one.
        minimum = 1
    written = case_job_file(case, name, minimum=minimum, dummies=dummies)
    folder.mkdir()
    written["shuffle"]["producers"] = len(PRODUCERS)
    written["topics"]["partitions"] = partitions
    if instances > 1:
        written["shuffle"]["instances"] = instances
    if sealed is not None:
        written["sealed"] = dict(sealed)
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(written))
    generator = np.random.default_rng(0)
    size = len(case.values)
    user_lists, rows = {}, {}
    for producer, users in USERS.items():
        user_lists[producer] = folder / f"{producer}.txt"
        user_lists[producer].write_text("".join(f"{user}\n" for user in users))
        rows[producer] = folder / f"{producer}.csv"
        text = "user,epoch,value\n"
        for user in users:
            indices = generator.integers(0, size, LAST_EPOCH)
            if user in CHANGED and variant == "other values":
                indices = (indices + 1 + np.arange(LAST_EPOCH) % (size - 1)) % size
            if user in CHANGED and variant == "no row to use":
                text += f"{user},1,no such value\n{user},soon,1\n{user},99,0\n"
            else:
                text += "".join(_rows(user, case.domain, case.array_of(indices)))
        rows[producer].write_text(text)
    return Inputs(job, user_lists, rows)


EVENT_JOB: Final[dict[str, Any]] = {
    "name": "case",
    "parameters": {"epsilon": 2, "max_changes": 2},
    "epochs": {"count": LAST_EPOCH},
    "topics": {"partitions": 2},
    "measures": {
        "active": {"type": "active", "within": 2},
        "spent": {"type": "sum", "number": "amount", "mean": {"low": 0, "high": 20}},
        "far": {"type": "steps", "steps": ["open", "pay"]},
    },
    "attributes": {
        "os": {"values": ["ios", "web"], "public": True},
        "plan": {"values": ["free", "pro"]},
    },
    "by": ["os"],
}


def write_event_inputs(folder: Path, variant: str, *, minimum: int) -> Inputs:
    """Write inputs of a job with measures: users differ in when and how often events happen."""
    folder.mkdir()
    job = folder / "job.yaml"
    shuffle = {"minimum": minimum, "producers": len(PRODUCERS)}
    job.write_text(yaml.safe_dump({**EVENT_JOB, "shuffle": shuffle}))
    generator = np.random.default_rng(0)
    user_lists, rows = {}, {}
    for producer, users in USERS.items():
        user_lists[producer] = folder / f"{producer}.csv"
        systems = "".join(f"{user},{('ios', 'web', 'tv')[len(user) % 3]}\n" for user in users)
        user_lists[producer].write_text(f"user,os\n{systems}")
        rows[producer] = folder / f"{producer}-events.csv"
        text = "user,epoch,event,amount,plan\n"
        for user in users:
            changed = user in CHANGED and variant != "reference"
            # The same random numbers are drawn for users without events.
            count, drawn = generator.integers(1, 7), generator.integers(0, 1 << 30, (12, 4))
            events = (drawn[6:] if changed else drawn[:count]).tolist()
            if changed and variant == "no row to use":
                events = []
                text += f"{user},1,open,no number,free\n{user},soon,pay,1,pro\n"
            for epoch, event, amount, plan in events:
                name, label = ("open", "pay", "close")[event % 3], ("free", "pro", "old")[plan % 3]
                text += f"{user},{epoch % 6 - 1},{name},{amount % 40},{label}\n"
        rows[producer].write_text(text)
    return Inputs(job, user_lists, rows)


def _rows(user: str, domain: ValueDomain, values: NDArray[Any]) -> Iterator[str]:
    """Yield a row for every item of a set, or for every change of a value."""
    if domain.slots is not None:
        for epoch, held in enumerate(values, 1):
            yield from (f"{user},{epoch},{_text(domain, item)}\n" for item in held if item)
        return
    if isinstance(domain, PanelDomain):
        for epoch, answers in enumerate(values.tolist(), 1):
            texts = map(_answer, domain.questions, answers)
            yield f"{user},{epoch},{';'.join(texts)}\n"
        return
    before = domain.initial
    for epoch, value in enumerate(values.tolist(), 1):
        if value != before:
            yield f"{user},{epoch},{_text(domain, value)}\n"
        before = value


def _answer(question: PanelQuestion, answer: int) -> str:
    if question.labels:
        return question.labels[answer - 1] if answer else ""
    return str(answer if question.low is None else question.low + question.span * answer / ONE)


def _text(domain: ValueDomain, value: int) -> str:
    if isinstance(domain, NumericDomain):
        return repr(domain.edge(value - 0.5)) if value else ""
    labels: Sequence[str] | None = domain.items
    if labels is None:
        return str(value)
    return labels[value - 1] if value else ""
