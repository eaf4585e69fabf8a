"""What people are charged and may be: the ledger, and what only ``dpstream.jobs`` says.

An earlier version writes to ``dpstream.jobs`` alone, before a cluster has a ledger and beside one.
What it wrote counts from where it stands, and is carried over by the next who writes an entry. Of a
charge that both have, the larger counts: whoever was interrupted between the two has charged too
much rather than too little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.jobs.budgets import Charge
from pipeline.jobs.jobs_topic import JobsTopic
from pipeline.jobs.receipts import Receipt
from pipeline.jobs.stated_budgets import StatedBudget
from pipeline.ledger.chain import Chain
from pipeline.ledger.entries import Entry, Kind


class Spending:
    """What both topics say, as far as they were applied.

    Attributes:
        topic: ``dpstream.jobs``.
        chain: ``dpstream.ledger``.
    """

    def __init__(self, topic: JobsTopic | None = None, chain: Chain | None = None) -> None:
        self.topic = JobsTopic() if topic is None else topic
        self.chain = Chain() if chain is None else chain

    @property
    def charges(self) -> list[Charge]:
        """What every deployment so far has charged its people."""
        written = {charge.deployment: charge for charge in self.topic.charges}
        charges = [
            _larger(charge, written.pop(charge.deployment, charge))
            for charge in self.written_charges.values()
        ]
        return [*charges, *written.values()]

    @property
    def stated(self) -> list[StatedBudget]:
        """Every budget ever stated, in order; what only ``dpstream.jobs`` says is the latest."""
        return [*self.written_budgets.values(), *self.new_budgets]

    @property
    def written_charges(self) -> dict[str, Charge]:
        """What the ledger itself says was charged, by deployment."""
        charges: dict[str, Charge] = {}
        for entry in effective(self.chain):
            charges.update((charge.deployment, charge) for charge in entry.said.charges)
        return charges

    @property
    def written_budgets(self) -> dict[bytes, StatedBudget]:
        """What the ledger itself says was stated, in order, by the key that it has elsewhere."""
        budgets: dict[bytes, StatedBudget] = {}
        for entry in effective(self.chain):
            for budget in entry.said.budgets:
                budgets.pop(budget.key, None)
                budgets[budget.key] = budget
        return budgets

    @property
    def new_charges(self) -> list[Charge]:
        """What is charged by ``dpstream.jobs`` alone, or more than by the ledger."""
        known = self.written_charges
        return [
            charge
            for charge in self.topic.charges
            if (charge.epsilon or charge.delta)
            and _larger(known.get(charge.deployment, _nothing(charge)), charge)
            != known.get(charge.deployment)
        ]

    @property
    def new_budgets(self) -> list[StatedBudget]:
        """What is stated in ``dpstream.jobs`` alone."""
        known = self.written_budgets
        return [
            budget
            for budget in self.topic.stated
            if budget.key not in known and not any(map(budget.repeats, known.values()))
        ]

    @property
    def withdrawn(self) -> dict[str, Entry]:
        """By deployment in hexadecimal, the entry that says its charge counts no more."""
        return {
            str(entry.said.facts.get("deployment")): entry
            for entry in self.chain.entries
            if entry.said.kind == Kind.WITHDRAWN
        }

    @property
    def lost(self) -> list[Receipt]:
        """Receipts for entries that do not stand in the ledger any more."""
        return [each for each in self.topic.receipts if not self.chain.has(each.entry)]

    @property
    def damage(self) -> str | None:
        """Why nothing may be written until an operator says so, in words; None if it may."""
        for oddity in self.chain.damage:
            return f"the record at offset {oddity.offset}: {oddity.problem.value}"
        for receipt in self.lost:
            if not self.chain.forgiven(receipt.entry):
                return (
                    f"the entry {receipt.entry[:12]} that stood at offset {receipt.offset} is gone"
                )
        return None


def effective(chain: Chain) -> Iterator[Entry]:
    """The entries that count and were not withdrawn."""
    withdrawn = {
        entry.said.facts.get("entry")
        for entry in chain.entries
        if entry.said.kind == Kind.WITHDRAWN
    }
    return (entry for entry in chain.entries if entry.hash not in withdrawn)


def _nothing(charge: Charge) -> Charge:
    return replace(charge, epsilon=0.0, delta=0.0, horizons=1)


def _larger(one: Charge, other: Charge) -> Charge:
    """What both charges of one deployment cost at most."""
    endless = one.horizons is None or other.horizons is None
    return replace(
        one,
        epsilon=max(one.epsilon, other.epsilon),
        delta=max(one.delta, other.delta),
        horizons=None if endless else max(one.horizons or 1, other.horizons or 1),
    )
