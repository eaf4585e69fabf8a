"""Receipts in ``dpstream.jobs``: records that prove that the ledger contained an entry.

A truncated ledger still has an intact chain of hashes, but receipts reveal the missing entries.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from dpstream.pipeline.jobs.listed_jobs import RECEIPT_KEY
from dpstream.topics.frames import CodecError

_HASH = re.compile("[0-9a-f]{64}")
LATEST = "latest"
"""Value of `Receipt.about` if the latest ledger entry is not a deployment's charge."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Receipt for a valid entry of the ledger.

    `about` is the charged deployment, 32 hexadecimal digits, or `LATEST`; `entry` is the record's
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
        """Read a record's value.

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
