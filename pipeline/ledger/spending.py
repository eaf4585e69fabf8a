"""What people are charged and may be: the ledger, and what it has lost.

Charges and budgets have a copy in ``dpstream.jobs``. What a damaged ledger has lost counts by it,
and is carried over by the next who may write an entry. Of a charge that both have, the larger
counts: whoever was interrupted between the two has charged too much rather than too little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.jobs_topic import JobsTopic
from dpstream.pipeline.jobs.receipts import Receipt
from dpstream.pipeline.jobs.stated_budgets import StatedBudget
from dpstream.pipeline.ledger.chain import Chain


class Spending:
    """What both topics say, as far as they were applied.

    Attributes:
        topic: ``dpstream.jobs``.
        chain: ``dpstream.ledger``.
    """

    def __init__(self, topic: JobsTopic | None = None, chain: Chain | None = None) -> None:
        self.topic = JobsTopic() if topic is None else topic
        self.chain = Chain() if chain is None else chain
        self._written = _Written.in_chain(self.chain)

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
        """Every budget ever stated, in order; what the ledger has lost is the latest."""
        return [*self.written_budgets.values(), *self.lost_budgets]

    @property
    def written_charges(self) -> Mapping[str, Charge]:
        """What the ledger itself says was charged, by deployment."""
        return self._in_chain().charges

    @property
    def written_budgets(self) -> Mapping[bytes, StatedBudget]:
        """What the ledger itself says was stated, in order, by the key that it has elsewhere."""
        return self._in_chain().budgets

    @property
    def lost_charges(self) -> list[Charge]:
        """What is charged by the copy alone, or more than by the ledger."""
        known = self.written_charges
        return [
            charge
            for charge in self.topic.charges
            if charge.deployment not in known
            or _larger(known[charge.deployment], charge) != known[charge.deployment]
        ]

    @property
    def lost_budgets(self) -> list[StatedBudget]:
        """What is stated by the copy alone."""
        known = self.written_budgets
        return [budget for budget in self.topic.stated if budget.key not in known]

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

    def _in_chain(self) -> _Written:
        if self._written.records != len(self.chain.places):
            self._written = _Written.in_chain(self.chain)
        return self._written


@dataclass(frozen=True, slots=True)
class _Written:
    """What the ledger itself says.

    Attributes:
        records: how many of it say so.
        charges: by deployment.
        budgets: in order, by the key that each has in ``dpstream.jobs``.
    """

    records: int
    charges: Mapping[str, Charge]
    budgets: Mapping[bytes, StatedBudget]

    @classmethod
    def in_chain(cls, chain: Chain) -> _Written:
        charges: dict[str, Charge] = {}
        budgets: dict[bytes, StatedBudget] = {}
        for entry in chain.entries:
            charges.update((charge.deployment, charge) for charge in entry.said.charges)
            for budget in entry.said.budgets:
                key = budget.key
                budgets.pop(key, None)
                budgets[key] = budget
        return cls(len(chain.places), charges, budgets)


def _larger(one: Charge, other: Charge) -> Charge:
    if one == other:
        return one
    endless = one.horizons is None or other.horizons is None
    return replace(
        one,
        epsilon=max(one.epsilon, other.epsilon),
        delta=max(one.delta, other.delta),
        horizons=None if endless else max(one.horizons or 1, other.horizons or 1),
    )
