"""What ``dpstream.jobs`` says: the deployed jobs, their phases, people's charges and budgets.

What people are charged and may be stands in the ledger (`dpstream.pipeline.ledger`); here is a copy
of it, from which `ledger --reopen` carries over what a damaged ledger has lost, with receipts for
the ledger's entries.
"""

from __future__ import annotations

from contextlib import suppress

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.listed_jobs import BUDGET_KEY, RECEIPT_KEY, ListedJobs
from dpstream.pipeline.jobs.receipts import Receipt
from dpstream.pipeline.jobs.stated_budgets import StatedBudget
from dpstream.topics.frames import CodecError


class JobsTopic(ListedJobs):
    """The state of the topic after the records that were applied, with what people are charged."""

    def __init__(self) -> None:
        super().__init__()
        self._charges: dict[bytes, Charge] = {}
        self._stated: dict[bytes, StatedBudget] = {}
        self._receipts: dict[bytes, Receipt] = {}

    @property
    def charges(self) -> list[Charge]:
        """What every deployment so far has charged its population."""
        return list(self._charges.values())

    @property
    def receipts(self) -> list[Receipt]:
        """Which entries stood in the ledger."""
        return list(self._receipts.values())

    @property
    def stated(self) -> list[StatedBudget]:
        """Every budget ever stated, in order."""
        return list(self._stated.values())

    def _apply_charge(self, key: bytes, value: bytes | None) -> None:
        if key.startswith(BUDGET_KEY):
            self._stated.pop(key, None)
            with suppress(CodecError):
                self._stated[key] = StatedBudget.from_bytes(value or b"")
        elif key.startswith(RECEIPT_KEY):
            self._receipts.pop(key, None)
            with suppress(CodecError):
                self._receipts[key] = Receipt.from_bytes(value or b"")
        else:
            with suppress(CodecError):
                self._charges[key] = Charge.from_bytes(value or b"")
