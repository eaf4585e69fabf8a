"""Records of ``dpstream.ledger``: charges and budgets, with their times.

An entry is canonical JSON (sorted keys, no spaces): equal entries have identical bytes, and any
changed byte changes the SHA-256. `previous` is the hash of the preceding entry, which chains the
entries. An entry of any kind can contain charges and budgets. A charge replaces an earlier charge
of the same deployment. Budgets are declared in the order of the entries.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.topics.frames import CodecError

VERSION = 1
GENESIS = "0" * 64
"""Predecessor hash in the first entry."""

_HASH = re.compile("[0-9a-f]{64}")
_ENVELOPE = frozenset({"version", "kind", "at", "previous", "nonce", "software"})


class EntryKind(StrEnum):
    CHARGE = "charge"
    """First charge of a deployment, or a change of its charge."""
    BUDGET = "budget"
    """Budget declared by a running job, or set or removed by an operator."""
    CARRIED = "carried"
    """Charges and budgets that the ledger has lost, restored from ``dpstream.jobs``."""
    ENDED = "ended"
    """End of a deployment, which was undeployed or replaced; the charge remains."""
    REPLAY = "replay"
    """Deployment of a replay, which is not charged."""
    REOPENED = "reopened"
    """An operator's decision to continue after the topic was damaged."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry before its predecessor's hash is known; `at` is by its writer's clock (ms)."""

    kind: str
    at: int
    charges: tuple[Charge, ...] = ()
    budgets: tuple[BudgetDeclaration, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def under(self, previous: str, *, nonce: str, software: str) -> bytes:
        """Return the record to append after the entry with the hash `previous`.

        `previous` is a SHA-256 in hexadecimal, or `GENESIS`. `nonce` is random, so that two writers
        never write the same bytes. `software` is the version of the writer.
        """
        body: dict[str, Any] = {
            **self.facts,
            "version": VERSION,
            "kind": str(self.kind),
            "at": self.at,
            "previous": previous,
            "nonce": nonce,
            "software": software,
        }
        if self.charges:
            body["charges"] = [asdict(charge) for charge in self.charges]
        if self.budgets:
            body["budgets"] = [json.loads(budget.to_bytes()) for budget in self.budgets]
        return _canonical(body)


@dataclass(frozen=True, slots=True)
class Entry:
    draft: Draft
    previous: str
    hash: str
    software: str


def hash_of(record: bytes) -> str:
    return hashlib.sha256(record).hexdigest()


def read_entry(record: bytes) -> Entry:
    try:
        body = json.loads(record)
        canonical = isinstance(body, dict) and _canonical(body) == record
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not an entry: {error}") from None
    if not canonical:
        raise CodecError("not an entry: its bytes are not the canonical encoding of its content")
    _check_envelope(body)
    try:
        draft = Draft(
            kind=body["kind"],
            at=body["at"],
            charges=tuple(_charge(each) for each in _list(body, "charges")),
            budgets=tuple(
                BudgetDeclaration.from_bytes(_canonical(each)) for each in _list(body, "budgets")
            ),
            facts={
                name: value
                for name, value in body.items()
                if name not in _ENVELOPE | {"charges", "budgets"}
            },
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise CodecError(f"not an entry: {error}") from None
    return Entry(draft, body["previous"], hash_of(record), str(body.get("software", "")))


def _check_envelope(body: Mapping[str, Any]) -> None:
    if body.get("version") != VERSION:
        raise CodecError(
            f"the entry has version {body.get('version')!r}; expected {VERSION}. Upgrade dpstream"
        )
    previous, at = body.get("previous"), body.get("at")
    if not isinstance(previous, str) or not _HASH.fullmatch(previous):
        raise CodecError("not an entry: 'previous' must be a SHA-256 in hexadecimal")
    if type(at) is not int or at < 0:
        raise CodecError("not an entry: 'at' must be a Unix time in milliseconds")
    if not isinstance(body.get("kind"), str) or not body["kind"]:
        raise CodecError("not an entry: 'kind' must be a non-empty string")


def _charge(values: Mapping[str, Any]) -> Charge:
    known = {name: value for name, value in values.items() if name in Charge.__slots__}
    return Charge.from_bytes(_canonical(known))


def _list(body: Mapping[str, Any], name: str) -> list[Any]:
    values = body.get(name, [])
    if not isinstance(values, list):
        raise CodecError(f"not an entry: '{name}' must be a list")
    return values


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
