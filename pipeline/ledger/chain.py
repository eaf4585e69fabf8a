"""Which entries of the ledger count: a pure function of its log.

Several may write at once. The one partition orders what they write, and an entry counts exactly if
its `previous` is the hash of the last entry before it that counts. All others are void: whoever
wrote one has lost a race, reads to the end, and writes anew under the new head, or gives up.

Honest writers name an entry that counts, and find out whether theirs does before they write on. So
every log that only they have written consists of entries that count and of some that name an
earlier one which counts. What else is found was done by somebody else, and is an `Oddity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dpstream.pipeline.ledger.entries import GENESIS, Entry, EntryKind, hash_of, read_entry
from dpstream.topics.frames import CodecError


class ChainProblem(Enum):
    """What no honest writer does; whether entries that were written may count no more by it."""

    CUT = "records before it are gone"
    UNREADABLE = "it is no entry that this version can read"
    UNCHAINED = "no record before it has the hash that it names as the one before it"
    FORKED = "it follows a record that does not count"
    DOUBLED = "the same record stands before it"
    KEYED = "it has a key, which no entry has"

    @property
    def loses(self) -> bool:
        """Whether entries may be missing, or have been made void."""
        return self in (
            ChainProblem.CUT,
            ChainProblem.UNREADABLE,
            ChainProblem.UNCHAINED,
            ChainProblem.FORKED,
        )


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """A record of the ledger.

    Attributes:
        offset: in the topic.
        written: when the broker took it, milliseconds since 1970.
        entry: what it says; None where it cannot be read.
        counts: whether it counts.
    """

    offset: int
    written: int
    entry: Entry | None
    counts: bool


@dataclass(frozen=True, slots=True)
class Oddity:
    """What is wrong with a record, and which one.

    Attributes:
        problem: what.
        offset: of the record.
        written: when the broker took it, milliseconds since 1970.
        detail: more of it, in words; may be empty.
    """

    problem: ChainProblem
    offset: int
    written: int
    detail: str = ""


class Chain:
    """The ledger after the records that were applied, in the order of the topic.

    Attributes:
        places: every record, whether it counts or not.
        oddities: what no honest writer can have left.
        head: the hash of the last entry that counts; `GENESIS` before the first.
        next: the offset of the next record.
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
        """The records that count, in order."""
        return [place for place in self.places if place.counts]

    @property
    def entries(self) -> list[Entry]:
        """The entries that count, in order."""
        return [place.entry for place in self.places if place.counts and place.entry is not None]

    @property
    def damage(self) -> list[Oddity]:
        """By which entries may be lost, unless an operator has gone on since."""
        return [
            each for each in self.oddities if each.problem.loses and each.offset > self._reopened
        ]

    def forgiven(self, entry: str) -> bool:
        """Whether an operator has gone on without an entry that is gone."""
        return entry in self._forgiven

    def has(self, entry: str) -> bool:
        """Whether an entry of that hash counts."""
        return entry in self._counting

    def offset_of(self, entry: str) -> int | None:
        """Where the entry of a hash stands that counts; None: there is none."""
        return self._counting.get(entry)

    def apply(self, offset: int, value: bytes, written: int = 0, key: bytes | None = None) -> None:
        """Take in the next record of the topic."""
        if offset > self.next and not self.places:
            self._note(
                ChainProblem.CUT,
                offset,
                written,
                f"the first record left is that of offset {offset}",
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
            # What is left goes on counting, so that nobody is charged less by a cut.
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
            if entry.said.kind == EntryKind.REOPENED:
                self._reopened = offset
                self._forgiven.update(map(str, entry.said.facts.get("without", ())))
        else:
            self._void[own] = offset

    def _judge(self, entry: Entry, offset: int, written: int) -> None:
        """Note what is odd about an entry that does not count; having lost a race is not."""
        if entry.previous in self._counting:
            return
        if entry.previous in self._void:
            detail = f"the one at offset {self._void[entry.previous]}"
            self._note(ChainProblem.FORKED, offset, written, detail)
        else:
            self._note(ChainProblem.UNCHAINED, offset, written)

    def _note(self, problem: ChainProblem, offset: int, written: int, detail: str = "") -> None:
        self.oddities.append(Oddity(problem, offset, written, detail))
