"""Determine which entries of the ledger are valid: a pure function of its log.

* Several writers can append concurrently; the single partition orders their records. An entry is
  valid if and only if its `previous` is the hash of the last valid entry before it.
* All other entries are void. Their writers have lost a race: these writers read to the end, and
  write again with the new head as `previous`, or give up.
* The `previous` of an honest writer is a valid entry, and the writer checks that its own entry is
  valid before it writes another one. If all writers are honest, every entry is therefore valid, or
  void with a valid entry as its `previous`.
* Any other record was written by another party, and is an `Oddity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dpstream.pipeline.ledger.entries import GENESIS, Entry, EntryKind, hash_of, read_entry
from dpstream.topics.frames import CodecError


class ChainProblem(Enum):
    CUT = "records before it no longer exist"
    UNREADABLE = "this version cannot read the entry"
    UNCHAINED = "no earlier record has the hash that 'previous' states"
    FORKED = "it follows an invalid record"
    DOUBLED = "it duplicates an earlier record"
    KEYED = "it has a key; expected no key"

    @property
    def loses(self) -> bool:
        """True if this problem might have caused entries to be missing or void."""
        return self in (
            ChainProblem.CUT,
            ChainProblem.UNREADABLE,
            ChainProblem.UNCHAINED,
            ChainProblem.FORKED,
        )


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """A record of the ledger; `entry` is None if unreadable, `counts` is True if it is valid."""

    offset: int
    written: int
    entry: Entry | None
    counts: bool


@dataclass(frozen=True, slots=True)
class Oddity:
    problem: ChainProblem
    offset: int
    written: int
    detail: str = ""


class Chain:
    """State of the ledger after the records applied so far, in the order of the topic.

    `places` are all records, valid or not. `head` is the hash of the last valid entry, or
    `GENESIS`. `next` is the offset of the next record.
    """

    def __init__(self) -> None:
        self.places: list[LedgerLocation] = []
        self.oddities: list[Oddity] = []
        self.head = GENESIS
        self.next = 0
        self._counting: dict[str, int] = {GENESIS: -1}
        self._void: dict[str, int] = {}
        self._reopened = -1
        self._forgiven: set[str] = set()

    @property
    def counting(self) -> list[LedgerLocation]:
        return [place for place in self.places if place.counts]

    @property
    def entries(self) -> list[Entry]:
        return [place.entry for place in self.places if place.counts and place.entry is not None]

    @property
    def damage(self) -> list[Oddity]:
        """Oddities after the latest `REOPENED` entry that might have caused the loss of entries."""
        return [
            each for each in self.oddities if each.problem.loses and each.offset > self._reopened
        ]

    def forgiven(self, entry: str) -> bool:
        """Return whether an operator has accepted the loss of the entry with this hash."""
        return entry in self._forgiven

    def has(self, entry: str) -> bool:
        return entry in self._counting

    def offset_of(self, entry: str) -> int | None:
        return self._counting.get(entry)

    def apply(self, offset: int, value: bytes, written: int = 0, key: bytes | None = None) -> None:
        if offset > self.next and not self.places:
            self._note(
                ChainProblem.CUT,
                offset,
                written,
                f"the first remaining record is at offset {offset}",
            )
        self.next = offset + 1
        own = hash_of(value)
        if own in self._counting or own in self._void:
            earlier = self._counting.get(own, self._void.get(own))
            self._note(ChainProblem.DOUBLED, offset, written, f"at offset {earlier}")
            self.places.append(LedgerLocation(offset, written, None, counts=False))
            return
        entry: Entry | None = None
        try:
            entry = read_entry(value)
        except CodecError as error:
            self._note(ChainProblem.UNREADABLE, offset, written, str(error))
        if entry is not None and key is None and not self.places and offset > 0:
            # The remaining entries stay valid, so that a cut reduces no charge.
            self.head = entry.previous
            self._counting = {self.head: -1}
        counts = entry is not None and key is None and entry.previous == self.head
        if key is not None:
            self._note(ChainProblem.KEYED, offset, written)
        elif entry is not None and not counts:
            self._judge(entry, offset, written)
        self.places.append(LedgerLocation(offset, written, entry, counts))
        if counts and entry is not None:
            self._counting[own] = offset
            self.head = own
            if entry.draft.kind == EntryKind.REOPENED:
                self._reopened = offset
                self._forgiven.update(map(str, entry.draft.facts.get("without", ())))
        else:
            self._void[own] = offset

    def _judge(self, entry: Entry, offset: int, written: int) -> None:
        """Record the problem of a void entry, unless its writer has only lost a race."""
        if entry.previous in self._counting:
            return
        if entry.previous in self._void:
            detail = f"the record at offset {self._void[entry.previous]}"
            self._note(ChainProblem.FORKED, offset, written, detail)
        else:
            self._note(ChainProblem.UNCHAINED, offset, written)

    def _note(self, problem: ChainProblem, offset: int, written: int, detail: str = "") -> None:
        self.oddities.append(Oddity(problem, offset, written, detail))
