"""What people are charged and may be: the ledger, and what it has lost.

Charges and budgets have a copy in ``dpstream.jobs``. What a damaged ledger has lost counts by it,
and is carried over by the next who may write an entry. Of a charge that both have, the larger
counts: whoever was interrupted between the two has charged too much rather than too little.

Manifests tell who was in every released window. A manifest names the producers that are in, how
many devices are enrolled with each of them, and how many of all these devices were there. It does
not say which: so of the devices of producers that were in every window, as many may have been
missing once as were missing from all windows together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.jobs_topic import JobsTopic
from dpstream.pipeline.jobs.receipts import Receipt
from dpstream.pipeline.jobs.stated_budgets import StatedBudget
from dpstream.pipeline.ledger.chain import Chain
from dpstream.randomizers.accounting.whole_streams import there_throughout
from dpstream.topics.manifests import Manifest

_Each = TypeVar("_Each", bound=np.generic)
_TOGETHER = b"those who were always in"


class Presence:
    """Who was in every window of those that were taken in.

    Attributes:
        windows: how many were taken in.
    """

    def __init__(self) -> None:
        self.windows = 0
        self._ever: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._always: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._enrolled: NDArray[np.int64] = np.zeros(0, np.int64)
        self._missing: list[int] = []

    def take(self, manifest: Manifest) -> None:
        """Take in the manifest of another released window of the same horizon."""
        inside = np.array(manifest.producers, np.bool_)
        enrolled = np.zeros(len(inside), np.int64)
        enrolled[inside] = manifest.populations
        self._missing.append(sum(manifest.populations) - manifest.contributors)
        if not self.windows:
            self._ever, self._always, self._enrolled = inside, inside, enrolled
        else:
            # Whoever registers later is named after all others, and was in no window before.
            size = max(len(inside), len(self._ever))
            inside, enrolled = _longer(inside, size), _longer(enrolled, size)
            self._ever = _longer(self._ever, size) | inside
            self._always = _longer(self._always, size) & inside
            # Who enrols meanwhile was not there from the first window on.
            self._enrolled = np.minimum(_longer(self._enrolled, size), enrolled)
        self.windows += 1

    @property
    def producers(self) -> int:
        """How many producers were in every window."""
        return int(np.count_nonzero(self._always))

    @property
    def other_producers(self) -> int:
        """How many were in some windows and not in all."""
        return int(np.count_nonzero(self._ever)) - self.producers

    @property
    def devices(self) -> int:
        """How many devices were there at every window, at least."""
        enrolled = int(self._enrolled[self._always].sum())
        windows = [{_TOGETHER: max(0, enrolled - missing)} for missing in self._missing]
        return there_throughout({_TOGETHER: enrolled}, windows)


def _longer(each: NDArray[_Each], size: int) -> NDArray[_Each]:
    return np.pad(each, (0, size - len(each)))


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
