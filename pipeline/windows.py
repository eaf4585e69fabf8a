"""Open windows: what has arrived of an epoch, producer by producer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.multisets import WordMultiset
from topics.batches import Batch, Punctuation, drawing_of
from topics.frames import U4_MAX

# Of one producer for one epoch: the counts of all producers together stay below 2^53.
REPORTS_MAX = U4_MAX


class PunctuationError(ValueError):
    """What a producer sends for an epoch contradicts itself, or is more than can be."""


@dataclass(slots=True)
class Drawing:
    """Batches of one drawing of an epoch's reports: never put together with those of another."""

    words: WordMultiset
    messages: int = 0
    batches: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Contribution:
    """What one producer sent for one epoch, until it is complete.

    There is one drawing, unless its folder was copied and the copy draws too. Batches of earlier
    versions do not say of which drawing they are, and are taken for one, None.

    Attributes:
        drawings: by what `drawing_of` says of their batches; none once it is complete.
        messages: of all drawings, or of the one that is in.
        punctuation: None until it has arrived.
        complete: whether one drawing has joined the window.
    """

    drawings: dict[bytes | None, Drawing] = field(default_factory=dict)
    messages: int = 0
    punctuation: Punctuation | None = None
    complete: bool = False

    @property
    def held_bytes(self) -> int:
        """Memory that the words of its drawings hold."""
        return sum(drawing.words.held_bytes for drawing in self.drawings.values())

    def close(self) -> None:
        """Give back scratch files."""
        for drawing in self.drawings.values():
            drawing.words.close()


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
        own = 0 if contribution is None else contribution.held_bytes
        return self.words.held_bytes + own

    def _add_batch(self, batch: Batch) -> bool:
        contribution = self._contribution(batch.enrolment)
        drawing = contribution.drawings.get(drawing_of(batch.batch))
        if contribution.complete or (drawing is not None and batch.batch in drawing.batches):
            return False
        announced, sent = contribution.punctuation, 0 if drawing is None else len(drawing.batches)
        if announced is not None and sent >= announced.batches:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer announced {announced.batches} batches "
                "and sends more"
            )
        if contribution.messages + batch.words.messages > REPORTS_MAX:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer sends more than {REPORTS_MAX} reports"
            )
        if drawing is None:
            drawing = contribution.drawings[drawing_of(batch.batch)] = Drawing(self._multiset())
        drawing.batches.add(batch.batch)
        drawing.messages += batch.words.messages
        contribution.messages += batch.words.messages
        if not self.set_aside:
            drawing.words.add(batch.words)
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
        sent = max((len(each.batches) for each in contribution.drawings.values()), default=0)
        if sent > punctuation.batches:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer announces {punctuation.batches} batches "
                f"and has sent {sent}"
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
            contribution.close()

    def _contribution(self, enrolment: bytes) -> Contribution:
        contribution = self.contributions.get(enrolment)
        if contribution is None:
            contribution = self.contributions[enrolment] = Contribution()
        return contribution

    def _complete(self, contribution: Contribution) -> None:
        """Have the first drawing that is whole join the window, and no other."""
        announced = contribution.punctuation
        if announced is None:
            return
        drawings = contribution.drawings.values()
        whole = next((each for each in drawings if len(each.batches) == announced.batches), None)
        if whole is None and announced.batches:
            return
        if whole is not None and not self.set_aside:
            self.words.merge(whole.words)
        contribution.close()
        contribution.messages = 0 if whole is None else whole.messages
        contribution.drawings = {}
        contribution.complete = True
