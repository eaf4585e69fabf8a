"""Open windows: what has arrived of an epoch, producer by producer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.multisets import WordMultiset
from topics.batches import Batch, Punctuation
from topics.frames import U4_MAX

# Of one producer for one epoch: the counts of all producers together stay below 2^53.
REPORTS_MAX = U4_MAX


class PunctuationError(ValueError):
    """What a producer sends for an epoch contradicts itself, or is more than can be."""


@dataclass(slots=True)
class Contribution:
    """What one producer sent for one epoch, until it is complete."""

    words: WordMultiset
    messages: int = 0
    batches: set[bytes] = field(default_factory=set)
    punctuation: Punctuation | None = None
    complete: bool = False


class Window:
    """The records of one epoch read so far.

    A producer's words join the window's own only when its punctuation and all its batches are
    there: a producer is in a window with everything it has or with nothing.

    Attributes:
        epoch: of the window.
        opened_at: when its first record was read, or when it was found to have none.
        due_at: when its time was found to have come; None before.
        looked_at: what was known when its time was last looked for.
        first_offset: of its first record; None while it has none.
        closing_end: the end of the partition when its grace was over; None before.
        contributions: what has arrived, by enrolment.
        words: of the producers that are complete.
        held_bytes: memory that its words hold.
        set_aside: whether its words were dropped, to be read again when it is written.
    """

    def __init__(self, epoch: int, opened_at: float, multiset: Callable[[], WordMultiset]) -> None:
        self.epoch = epoch
        self.opened_at = opened_at
        self.due_at: float | None = None
        self.looked_at: object = None
        self.first_offset: int | None = None
        self.closing_end: int | None = None
        self.contributions: dict[bytes, Contribution] = {}
        self.words = multiset()
        self.held_bytes = 0
        self.set_aside = False
        self._multiset = multiset

    def grace_ends(self, grace: float) -> float | None:
        """When the window need not wait any longer; None while its time has not come."""
        return None if self.due_at is None else max(self.opened_at, self.due_at) + grace

    def note_record(self, offset: int, now: float) -> None:
        """A record of the epoch was read; the first one starts the grace period."""
        if self.first_offset is None:
            self.first_offset = offset
            self.opened_at = now
            self.closing_end = None

    def add(self, record: Batch | Punctuation) -> bool:
        """Take a record in; False when it is a duplicate.

        Raises:
            PunctuationError: what the producer sends contradicts itself, or is more than can be.
        """
        before = self._held_with(record.enrolment)
        new = self._add_batch(record) if isinstance(record, Batch) else self._punctuate(record)
        self.held_bytes += self._held_with(record.enrolment) - before
        return new

    def drop_words(self) -> None:
        """Hold no words any more, and none of those to come: the topic has them all."""
        self.set_aside = True
        self.held_bytes = 0
        self.close()

    def _held_with(self, enrolment: bytes) -> int:
        contribution = self.contributions.get(enrolment)
        own = 0 if contribution is None else contribution.words.held_bytes
        return self.words.held_bytes + own

    def _add_batch(self, batch: Batch) -> bool:
        contribution = self._contribution(batch.enrolment)
        if contribution.complete or batch.batch in contribution.batches:
            return False
        announced = contribution.punctuation
        if announced is not None and len(contribution.batches) >= announced.batches:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer announced {announced.batches} batches "
                "and sends more"
            )
        if contribution.messages + batch.words.messages > REPORTS_MAX:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer sends more than {REPORTS_MAX} reports"
            )
        contribution.batches.add(batch.batch)
        contribution.messages += batch.words.messages
        if not self.set_aside:
            contribution.words.add(batch.words)
        self._complete(contribution)
        return True

    def _punctuate(self, punctuation: Punctuation) -> bool:
        if punctuation.population > U4_MAX:
            raise PunctuationError(
                f"epoch {self.epoch}: {punctuation.population} devices enrolled with one producer, "
                f"at most {U4_MAX} can be"
            )
        contribution = self._contribution(punctuation.enrolment)
        if contribution.punctuation is not None:
            if contribution.punctuation != punctuation:
                raise PunctuationError(
                    f"epoch {self.epoch}: a second punctuation differs from the producer's first"
                )
            return False
        if len(contribution.batches) > punctuation.batches:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer announces {punctuation.batches} batches "
                f"and has sent {len(contribution.batches)}"
            )
        contribution.punctuation = punctuation
        self._complete(contribution)
        return True

    def holds(self, enrolment: bytes) -> bool:
        """Whether anything of a producer has arrived."""
        return enrolment in self.contributions

    def complete(self, enrolment: bytes) -> Punctuation | None:
        """A producer's punctuation if all it announced has arrived."""
        contribution = self.contributions.get(enrolment)
        return (
            contribution.punctuation if contribution is not None and contribution.complete else None
        )

    @property
    def messages(self) -> int:
        """Messages that have arrived, of producers that are complete or not."""
        return sum(contribution.messages for contribution in self.contributions.values())

    @property
    def contributors(self) -> int:
        """Devices of the producers whose punctuation has arrived."""
        return sum(
            contribution.punctuation.contributors
            for contribution in self.contributions.values()
            if contribution.punctuation is not None
        )

    def close(self) -> None:
        """Give back scratch files."""
        self.words.close()
        for contribution in self.contributions.values():
            contribution.words.close()

    def _contribution(self, enrolment: bytes) -> Contribution:
        contribution = self.contributions.get(enrolment)
        if contribution is None:
            contribution = self.contributions[enrolment] = Contribution(self._multiset())
        return contribution

    def _complete(self, contribution: Contribution) -> None:
        announced = contribution.punctuation
        if announced is not None and len(contribution.batches) == announced.batches:
            contribution.complete = True
            contribution.batches = set()
            if not self.set_aside:
                self.words.merge(contribution.words)
