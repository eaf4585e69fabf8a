"""Detection of later edits to the ledger, so that charges cannot disappear unnoticed.

The attacker rewrites the topic, as its broker's operator could, with other or fewer records in the
format that dpstream writes. All edits must be detected from the ledger itself, without other data.
Only a truncated end is undetectable without a saved head. Detection is exact, never random.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.ledger.chain import Chain
from dpstream.pipeline.ledger.entries import GENESIS, Draft, EntryKind, hash_of
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.ledger.verification import verify
from tests.attacks.promises import broken

_ENTRIES = 5

Log = Sequence[tuple[int, bytes]]
"""Offsets and records."""


def attack_ledger() -> Iterator[str]:
    promises = {
        "a reduced charge is detected": _smaller,
        "a removed, moved, duplicated or inserted entry is detected": _rearranged,
        "records cut from the front are detected, and later charges still count": _cut,
        "a truncated end is detected with a saved head": _without_end,
    }
    return broken(promises)


def _charge(number: int) -> Charge:
    return Charge("students", f"job {number}", f"{number:032x}", 4.0, 1e-6, number)


def _entry(number: int, previous: str) -> bytes:
    draft = Draft(EntryKind.CHARGE, number, (_charge(number),))
    return draft.under(previous, nonce=str(number), software="audit")


def _honest() -> list[tuple[int, bytes]]:
    log: list[tuple[int, bytes]] = []
    head = GENESIS
    for number in range(_ENTRIES):
        log.append((number, _entry(number, head)))
        head = hash_of(log[-1][1])
    return log


def _numbered(records: Sequence[bytes]) -> Log:
    return list(enumerate(records))


def _state(log: Log) -> Spending:
    chain = Chain()
    for offset, record in log:
        chain.apply(offset, record, written=offset)
    return Spending(chain=chain)


def _finds(log: Log, kept: str | None = None) -> bool:
    return bool(verify(_state(log), None, first_offset=log[0][0] if log else 0, kept=kept))


def _unfound(logs: Iterator[tuple[str, Log]]) -> str:
    """Return the undetected edits, or an empty text."""
    if _finds(_honest()):
        return "an unmodified ledger is reported as damaged"
    return next((f"undetected: {what}" for what, log in logs if not _finds(log)), "")


def _smaller() -> str:
    def edited() -> Iterator[tuple[str, Log]]:
        log = _honest()
        # The last record has no successor that contains its hash.
        for place, (offset, record) in enumerate(log[:-1]):
            for change in ({"epsilon": 0.5}, {"delta": 0.0}, {"population": "teachers"}):
                body = json.loads(record)
                body["charges"][0].update(change)
                text = json.dumps(body, sort_keys=True, separators=(",", ":"))
                changed = [*log[:place], (offset, text.encode()), *log[place + 1 :]]
                yield f"the charge at offset {offset} is changed to {change}", changed

    return _unfound(edited())


def _rearranged() -> str:
    def rearranged() -> Iterator[tuple[str, Log]]:
        records = [record for _, record in _honest()]
        for place in range(_ENTRIES - 1):
            before, here, after = records[:place], records[place], records[place + 1 :]
            yield f"the record at offset {place} is removed", _numbered([*before, *after])
            yield (
                f"the record at offset {place} is moved to {place + 1}",
                _numbered([*before, after[0], here, *after[1:]]),
            )
            yield f"the record at offset {place} is duplicated", _numbered([*records, here])
            previous = hash_of(before[-1]) if before else GENESIS
            forged = _entry(_ENTRIES + place, previous)
            yield (
                f"a record is inserted before offset {place}",
                _numbered([*before, forged, here, *after]),
            )

    return _unfound(rearranged())


def _cut() -> str:
    log = _honest()
    for first in range(1, _ENTRIES):
        left = log[first:]
        if not _finds(left):
            return f"undetected: {first} records are cut from the front"
        charged = {charge.deployment for charge in _state(left).charges}
        missing = [
            number for number in range(first, _ENTRIES) if _charge(number).deployment not in charged
        ]
        if missing:
            return (
                f"after a cut of {first} records from the front, {len(missing)} remaining "
                "charges no longer count: their users can be charged again"
            )
    return ""


def _without_end() -> str:
    log = _honest()
    kept = hash_of(log[-1][1])
    if _finds(log, kept):
        return "an unmodified ledger is reported as damaged"
    for length in range(1, _ENTRIES):
        if not _finds(log[:length], kept):
            return f"undetected: all records after offset {length - 1} are cut"
    return ""
