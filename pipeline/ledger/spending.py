"""Charges to populations and the populations' budgets, from the ledger and from its copy.

* ``dpstream.jobs`` contains a copy of charges and budgets. Entries that a damaged ledger has lost
  are taken from the copy, and restored to the ledger by the next permitted writer.
* If the copy of a charge differs from the original, the larger one is used. An interruption between
  the two writes thus charges too much rather than too little.
* Manifests bound the participation in all released windows. A manifest contains the producers, the
  number of devices enrolled with each, and the total number of devices present, but does not
  identify the devices. The number of devices that missed at least one window is at most the sum,
  over all windows, of the number of devices that missed the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.jobs_topic import JobsTopic, Receipt
from dpstream.pipeline.ledger.chain import Chain
from dpstream.randomizers.accounting.whole_streams import there_throughout
from dpstream.topics.manifests import Manifest

_Each = TypeVar("_Each", bound=np.generic)
_TOGETHER = b"those who were always in"


class Presence:
    def __init__(self) -> None:
        self.windows = 0
        self._ever: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._always: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._enrolled: NDArray[np.int64] = np.zeros(0, np.int64)
        self._missing: list[int] = []

    def take(self, manifest: Manifest) -> None:
        """Add the manifest of another released window of the same horizon."""
        inside = np.array(manifest.producers, np.bool_)
        enrolled = np.zeros(len(inside), np.int64)
        enrolled[inside] = manifest.populations
        self._missing.append(sum(manifest.populations) - manifest.contributors)
        if not self.windows:
            self._ever, self._always, self._enrolled = inside, inside, enrolled
        else:
            # Producers that registered later are listed after the others, and were not in earlier
            # windows.
            size = max(len(inside), len(self._ever))
            inside, enrolled = _longer(inside, size), _longer(enrolled, size)
            self._ever = _longer(self._ever, size) | inside
            self._always = _longer(self._always, size) & inside
            # Devices that enrolled later were not present in the first window.
            self._enrolled = np.minimum(_longer(self._enrolled, size), enrolled)
        self.windows += 1

    @property
    def producers(self) -> int:
        return int(np.count_nonzero(self._always))

    @property
    def other_producers(self) -> int:
        """Number of producers that are in some windows but not in all."""
        return int(np.count_nonzero(self._ever)) - self.producers

    @property
    def devices(self) -> int:
        """Lower bound on the number of devices present in every window."""
        enrolled = int(self._enrolled[self._always].sum())
        windows = [{_TOGETHER: max(0, enrolled - missing)} for missing in self._missing]
        return there_throughout({_TOGETHER: enrolled}, windows)


def _longer(each: NDArray[_Each], size: int) -> NDArray[_Each]:
    return np.pad(each, (0, size - len(each)))


class Spending:
    def __init__(self, topic: JobsTopic | None = None, chain: Chain | None = None) -> None:
        self.topic = JobsTopic() if topic is None else topic
        self.chain = Chain() if chain is None else chain
        self._written = _Written.in_chain(self.chain)

    @property
    def charges(self) -> list[Charge]:
        written = {charge.deployment: charge for charge in self.topic.charges}
        charges = [
            _larger(charge, written.pop(charge.deployment, charge))
            for charge in self.written_charges.values()
        ]
        return [*charges, *written.values()]

    @property
    def declared(self) -> list[BudgetDeclaration]:
        """All budgets declared so far, in order; those that the ledger has lost come last."""
        return [*self.written_budgets.values(), *self.lost_budgets]

    @property
    def written_charges(self) -> Mapping[str, Charge]:
        return self._in_chain().charges

    @property
    def written_budgets(self) -> Mapping[bytes, BudgetDeclaration]:
        return self._in_chain().budgets

    @property
    def lost_charges(self) -> list[Charge]:
        """Charges that are only in the copy, or are larger there than in the ledger."""
        known = self.written_charges
        return [
            charge
            for charge in self.topic.charges
            if charge.deployment not in known
            or _larger(known[charge.deployment], charge) != known[charge.deployment]
        ]

    @property
    def lost_budgets(self) -> list[BudgetDeclaration]:
        known = self.written_budgets
        return [budget for budget in self.topic.declared if budget.key not in known]

    @property
    def lost(self) -> list[Receipt]:
        return [each for each in self.topic.receipts if not self.chain.has(each.entry)]

    @property
    def damage(self) -> str | None:
        """Reason why writing requires an operator's decision, or None."""
        for oddity in self.chain.damage:
            return f"the record at offset {oddity.offset}: {oddity.problem.value}"
        for receipt in self.lost:
            if not self.chain.forgiven(receipt.entry):
                return f"the entry {receipt.entry[:12]} at offset {receipt.offset} no longer exists"
        return None

    def _in_chain(self) -> _Written:
        if self._written.records != len(self.chain.places):
            self._written = _Written.in_chain(self.chain)
        return self._written


@dataclass(frozen=True, slots=True)
class _Written:
    records: int
    charges: Mapping[str, Charge]
    budgets: Mapping[bytes, BudgetDeclaration]

    @classmethod
    def in_chain(cls, chain: Chain) -> _Written:
        charges: dict[str, Charge] = {}
        budgets: dict[bytes, BudgetDeclaration] = {}
        for entry in chain.entries:
            charges.update((charge.deployment, charge) for charge in entry.draft.charges)
            for budget in entry.draft.budgets:
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
        # Without these, a charge counts whole.
        rolling_epochs=None,
        epoch_length=None,
    )
