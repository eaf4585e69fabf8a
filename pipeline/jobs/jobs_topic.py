"""Content of ``dpstream.jobs``: deployed jobs, phases, charges and budgets.

The ledger (`dpstream.pipeline.ledger`) holds charges and budgets. The topic has copies, from which
`ledger --accept-loss` restores a damaged ledger, and receipts for the ledger's entries.
"""

from __future__ import annotations

from contextlib import suppress

from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.listed_jobs import BUDGET_KEY, RECEIPT_KEY, ListedJobs
from dpstream.pipeline.jobs.receipts import Receipt
from dpstream.topics.frames import CodecError


class JobsTopic(ListedJobs):
    """State of the topic after the applied records, with charges and budgets."""

    def __init__(self) -> None:
        super().__init__()
        self._charges: dict[bytes, Charge] = {}
        self._declared: dict[bytes, BudgetDeclaration] = {}
        self._receipts: dict[bytes, Receipt] = {}

    @property
    def charges(self) -> list[Charge]:
        return list(self._charges.values())

    @property
    def receipts(self) -> list[Receipt]:
        return list(self._receipts.values())

    @property
    def declared(self) -> list[BudgetDeclaration]:
        return list(self._declared.values())

    def _apply_charge(self, key: bytes, value: bytes | None) -> None:
        if key.startswith(BUDGET_KEY):
            self._declared.pop(key, None)
            with suppress(CodecError):
                self._declared[key] = BudgetDeclaration.from_bytes(value or b"")
        elif key.startswith(RECEIPT_KEY):
            self._receipts.pop(key, None)
            with suppress(CodecError):
                self._receipts[key] = Receipt.from_bytes(value or b"")
        else:
            with suppress(CodecError):
                self._charges[key] = Charge.from_bytes(value or b"")
