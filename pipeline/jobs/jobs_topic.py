"""Content of ``dpstream.jobs``: deployed jobs, phases, charges and budgets.

The ledger (`dpstream.pipeline.ledger`) holds charges and budgets. The topic has copies, from which
`ledger --accept-loss` restores a damaged ledger, and receipts for the ledger's entries.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass

from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.listed_jobs import BUDGET_KEY, RECEIPT_KEY, ListedJobs
from dpstream.topics.frames import CodecError


class JobsTopic(ListedJobs):
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


_HASH = re.compile("[0-9a-f]{64}")
LATEST = "latest"
"""Value of `Receipt.about` for ledger entries other than a deployment's charge."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Receipt for a valid entry in the ledger.

    Truncating the ledger leaves an intact chain of hashes; receipts reveal the missing entries.

    `about` is the charged deployment, 32 hexadecimal digits, or `LATEST`. `entry` is the entry's
    SHA-256 in hexadecimal, `offset` its offset, and `at` its time in milliseconds since 1970.
    """

    about: str
    entry: str
    offset: int
    at: int

    @property
    def key(self) -> bytes:
        return RECEIPT_KEY + self.about.encode()

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Receipt:
        """Decode a receipt from its record's value.

        >>> receipt = Receipt(LATEST, "0" * 64, 7, 1_700_000_000_000)
        >>> Receipt.from_bytes(receipt.to_bytes()) == receipt
        True
        """
        try:
            values = json.loads(data)
            receipt = cls(*(values[name] for name in cls.__slots__))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"not a receipt: {error!r}") from None
        numbers = (receipt.offset, receipt.at)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise CodecError("not a receipt: 'offset' and 'at' must be integers of at least 0")
        if not isinstance(receipt.about, str) or not receipt.about:
            raise CodecError("not a receipt: 'about' must be a deployment or 'latest'")
        if not isinstance(receipt.entry, str) or not _HASH.fullmatch(receipt.entry):
            raise CodecError("not a receipt: 'entry' must be a SHA-256 in hexadecimal")
        return receipt
