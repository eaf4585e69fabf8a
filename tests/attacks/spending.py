"""Attempts to make users lose more privacy than their budget declares.

The attacker deploys the same job repeatedly, recurring jobs, jobs with many epochs, several jobs
concurrently, jobs after undeploying others, and jobs with their own budget. The loss of each
deployment is computed here from its parameters and summed. All operations use the code of
``dpstream deploy``, on in-memory topics. Sums are exact, and a correct program never fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from typing import Any

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job, fingerprint_of
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.jobs_topic import JobsTopic
from dpstream.pipeline.ledger.chain import Chain
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.ledger.writing import DraftEntry, of_deployment, of_end, writing
from dpstream.pipeline.operations.deploy_plan import DeployPlan, plan_deployment
from tests.attacks.promises import broken

_PEOPLE = "students"
_MOST = 5
"""Number of deployments tried in sequence, which exceeds all budgets here."""
_ENDLESS = 10**9


def attack_spending() -> Iterator[str]:
    ways: dict[str, Callable[[], str]] = {
        "a job deployed repeatedly": _again,
        "a job undeployed each time": _undeployed,
        "many epochs, each with fresh randomness": _many_epochs,
        "delta, with ample epsilon": _delta,
        "horizons of recurring jobs and later jobs": _renewing,
        "an unlimited job and one with a budget": _endless,
        "a later job that declares more": _larger_budget,
    }
    limit = "users lose at most their budget"
    promises: dict[str, Callable[[], str]] = {
        "no job runs with constants that lose more than its parameters allow": _loud_constants,
        f"{limit}: two concurrent deployments": _at_once,
        **{f"{limit}: {what}": do for what, do in ways.items()},
    }
    return broken(promises)


@dataclass
class Books:
    """``dpstream.jobs`` and ``dpstream.ledger``, with the sum of all deployments' losses."""

    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    lost: tuple[Fraction, Fraction] = (Fraction(), Fraction())
    _deployments: Iterator[int] = field(default_factory=lambda: count(1))

    def state(self) -> Spending:
        topic, chain = JobsTopic(), Chain()
        for key, value in self.records:
            topic.apply(key, value)
        for offset, record in enumerate(self.entries):
            chain.apply(offset, record)
        return Spending(topic, chain)

    def plan(self, values: Mapping[str, Any]) -> DeployPlan:
        deployment, job = next(self._deployments), make_job(values)
        return plan_deployment(
            self.state(),
            {},
            job,
            deployment=deployment.to_bytes(16, "big"),
            now=deployment,
            replace=True,
        )

    def deploy(self, values: Mapping[str, Any]) -> bool:
        return self.carry_out(self.plan(values))

    def carry_out(self, plan: DeployPlan) -> bool:
        if plan.rejection is not None:
            return False
        job = plan.deployed
        try:
            self.write(of_deployment(job, plan.declared, plan.now))
        except DpstreamError:
            return False
        self.records.append((job.name.encode(), job.to_bytes()))
        self.lost = tuple(  # type: ignore[assignment]
            before + now for before, now in zip(self.lost, _loss(job), strict=True)
        )
        return True

    def undeploy(self, name: str) -> None:
        job = self.state().topic.jobs[name]
        self.write(of_end(job, next(self._deployments)))
        self.records.append((name.encode(), None))

    def write(self, draft_entry: DraftEntry) -> None:
        steps = writing(draft_entry, lambda: str(len(self.entries)), "audit")
        record = next(steps)
        while True:
            try:
                if record is None:
                    record = steps.send(self.state())
                else:
                    self.entries.append(record)
                    record = next(steps)
            except StopIteration:
                return


def _loss(job: DeployedJob) -> tuple[Fraction, Fraction]:
    """Return the maximum loss of a deployment: the sum over its horizons or independent epochs."""
    horizons = (job.horizons or _ENDLESS) if job.epochs.renew else 1
    parameters: Any = job.parameters
    # Pure losses of epochs with fresh randomness add up exactly.
    times = horizons * (job.epochs.count if job.protocol_entry.per_epoch else 1)
    delta = getattr(parameters, "delta", 0.0)
    return times * Fraction(str(parameters.epsilon)), horizons * Fraction(str(delta))


def _job(name: str, epsilon: float = 4.0, **sections: Any) -> dict[str, Any]:
    return {
        "name": name,
        "protocol": "split_budget",
        "parameters": {"epsilon": epsilon},
        "epochs": {"count": 4},
        "population": _PEOPLE,
        **sections,
    }


def _with_delta(name: str, **sections: Any) -> dict[str, Any]:
    """Build a job that loses epsilon 1 and delta 1e-6 in every horizon."""
    parameters = {"epsilon": 1, "delta": 1e-6, "max_changes": 1, "dummies": "shuffle"}
    values = _job(name, protocol="shuffled_counts", parameters=parameters)
    return {**values, "shuffle": {"minimum": 2}, "epochs": {"count": 2}, **sections}


def _beyond(books: Books, epsilon: float, delta: float = 0.0, *, room: bool = True) -> str:
    """Return a reason if more was lost or, with `room`, if nothing was deployed."""
    # Losses are rounded up, which shows in the tenth digit.
    for name, lost, most in zip(("epsilon", "delta"), books.lost, (epsilon, delta), strict=True):
        if lost > Fraction(str(most)) * Fraction("1.000001"):
            return f"users lose {name} {float(lost):g} with a budget of {most:g}"
    if room and not any(books.lost):
        return "no job can be deployed within the budget"
    return ""


def _again() -> str:
    books = Books()
    for _ in range(_MOST):
        books.deploy(_job("first", budget={"epsilon": 10}))
        # The budget also limits a job that declares none.
        books.deploy(_job("second"))
    return _beyond(books, 10)


def _undeployed() -> str:
    books = Books()
    for _ in range(_MOST):
        if books.deploy(_job("first", budget={"epsilon": 10})):
            books.undeploy("first")
    return _beyond(books, 10)


def _many_epochs() -> str:
    books = Books()
    parameters = {"epsilon": 1, "domain": ["a", "b"]}
    for _ in range(_MOST):
        books.deploy(
            _job(
                "first",
                protocol="laplace_histogram",
                parameters=parameters,
                epochs={"count": 4},
                budget={"epsilon": 10},
            )
        )
    return _beyond(books, 10)


def _delta() -> str:
    books = Books()
    for _ in range(_MOST):
        books.deploy(_with_delta("first", budget={"epsilon": 100, "delta": 2.5e-6}))
    return _beyond(books, 100, 2.5e-6)


def _renewing() -> str:
    renewed = {"count": 2, "renew": True}
    for epsilon, delta in ((3.5, 0.9), (100, 3.5e-6)):
        books = Books()
        budget = {"epsilon": epsilon, "delta": delta}
        books.deploy(_with_delta("first", epochs=renewed, budget=budget))
        for _ in range(_MOST):
            books.deploy(_with_delta("second", budget=budget))
            books.deploy(_with_delta("third", epochs=renewed, budget=budget))
        reason = _beyond(books, epsilon, delta)
        if reason:
            return reason
    return ""


def _at_once() -> str:
    """Deploy two jobs concurrently, each within the budget on its own; the ledger orders them."""
    for epsilon, delta in ((3.5, 0.9), (100, 3.5e-6)):
        budget = {"epsilon": epsilon, "delta": delta}
        books = Books()
        plans = [
            books.plan(_with_delta("first", budget=budget)),
            books.plan(_with_delta("second", epochs={"count": 2, "renew": True}, budget=budget)),
        ]
        for plan in plans:
            books.carry_out(plan)
        reason = _beyond(books, epsilon, delta)
        if reason:
            return reason
    return ""


def _endless() -> str:
    books = Books()
    books.deploy(_job("endless", epochs={"count": 4, "renew": True}))
    if books.deploy(_job("first", budget={"epsilon": 99})):
        return "a budget is accepted although an unlimited job charges the same users"
    return ""


def _larger_budget() -> str:
    books = Books()
    for name, least in (("first", 10), ("second", 100)):
        for _ in range(_MOST):
            books.deploy(_job(name, budget={"epsilon": least}))
    reason = _beyond(books, 10)
    books = Books()
    for name, delta in (("first", 2.5e-6), ("second", 0.1)):
        for _ in range(3):
            books.deploy(_with_delta(name, budget={"epsilon": 100, "delta": delta}))
    return reason or _beyond(books, 100, 2.5e-6)


def _loud_constants() -> str:
    """Write job records that are valid, except that their constants have another epsilon."""
    for factor in (1.01, 1.5, 4.0):
        honest, loud = (
            deploy_job(make_job(_job("first", epsilon)), deployed_at=0, deployment=bytes(16))
            for epsilon in (1.0, factor)
        )
        values = json.loads(honest.to_bytes())
        values["constants"] = json.loads(loud.to_bytes())["constants"]
        values["fingerprint"] = fingerprint_of(values).hex()
        try:
            DeployedJob.from_bytes(json.dumps(values).encode())
        except JobError:
            continue
        return f"a job runs that loses {factor:g} times what its parameters allow"
    return ""
