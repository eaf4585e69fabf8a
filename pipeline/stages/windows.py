"""Open windows: the records received for an epoch, by producer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.window_states import Event, Reaction, State, next_state
from dpstream.topics.batches import Batch, Punctuation, drawing_of
from dpstream.topics.frames import U4_MAX

# Maximum reports of a producer per epoch, so that the counts of all producers stay below 2^53.
REPORTS_MAX = U4_MAX


def public_size(record: Batch | Punctuation, *, hides_messages: bool) -> int:
    """Return a record's public size: its devices if the number of messages is secret."""
    if hides_messages:
        return record.contributors if isinstance(record, Punctuation) else 0
    return record.words.messages if isinstance(record, Batch) else 0


class PunctuationError(ValueError):
    """A producer's records for an epoch contradict each other, or exceed a limit."""


@dataclass(slots=True)
class Drawing:
    """Records of one draw of a producer's reports; records of two draws are never combined."""

    words: MessageMultiset
    batches: set[bytes] = field(default_factory=set)
    messages: int = 0
    punctuation: Punctuation | None = None

    @property
    def whole(self) -> bool:
        punctuation = self.punctuation
        return punctuation is not None and len(self.batches) == punctuation.batches


@dataclass(slots=True)
class Contribution:
    """Records of one producer for one epoch, until they are complete.

    There is one draw, unless the producer's folder was copied and the copy also draws the epoch.
    `drawings` are in the order of their first records; empty once one is `complete`.
    """

    drawings: dict[bytes, Drawing] = field(default_factory=dict)
    complete: Punctuation | None = None

    @property
    def punctuation(self) -> Punctuation | None:
        """Punctuation of the draw in the window; before that, the first to arrive, if any."""
        arrived = (drawing.punctuation for drawing in self.drawings.values())
        return self.complete or next((each for each in arrived if each is not None), None)

    @property
    def contributors(self) -> int:
        return 0 if self.punctuation is None else self.punctuation.contributors

    def earlier_punctuation(self, name: bytes) -> Punctuation | None:
        """Return the earlier punctuation that makes one from draw `name` redundant, or None."""
        drawing = self.drawings.get(name)
        return self.complete or (None if drawing is None else drawing.punctuation)

    def close(self) -> None:
        for drawing in self.drawings.values():
            drawing.words.close()


class OpenWindow(ABC):
    """Window of an undecided epoch, for every kind of sender.

    Attributes:
        opened_at: Time when the first record was read, or when the window opened without records.
        due_at: Time when the window's epoch was first known to be due; None until then.
        closing_end: End offset of the partition when the grace period ended; None until then.
        set_aside: True if messages were dropped, and must be read again to write the window.
    """

    def __init__(self, epoch: int, opened_at: float) -> None:
        self.epoch = epoch
        self.state = State.COLLECTING
        self.opened_at = opened_at
        self.due_at: float | None = None
        self.checked_with: object = None
        self.first_offset: int | None = None
        self.closing_end: int | None = None
        self.set_aside = False

    @property
    @abstractmethod
    def buffered_bytes(self) -> int: ...

    @property
    @abstractmethod
    def messages(self) -> int:
        """Number of messages received, including those that might not be in the window."""

    @property
    @abstractmethod
    def contributors(self) -> int: ...

    @property
    @abstractmethod
    def version(self) -> int:
        """Counter that changes whenever more is known about the senders in the window."""

    @property
    @abstractmethod
    def words(self) -> MessageMultiset: ...

    @abstractmethod
    def drop_messages(self) -> None:
        """Free as much memory as possible; all messages are still in the topic."""

    @abstractmethod
    def close(self) -> None: ...

    def happens(self, event: Event) -> Reaction:
        """Enter the state that follows an event, and return the reaction."""
        self.state, reaction = next_state(self.state, event)
        return reaction

    def grace_ends(self, grace: float) -> float | None:
        return None if self.due_at is None else max(self.opened_at, self.due_at) + grace

    def note_record(self, offset: int, now: float) -> None:
        """Note a record for the epoch; the grace period starts no earlier than the first record."""
        if self.first_offset is None:
            self.happens(Event.FIRST_RECORD)
            self.first_offset = offset
            self.opened_at = now
            self.closing_end = None


class Window(OpenWindow):
    """Records of one epoch sent by producers.

    A producer's messages join the window only when its punctuation and all its batches have
    arrived: all its records are in the window, or none. Of several draws, the first complete one is
    in the window, and the others count as duplicates. `inside` has the enrollment IDs of complete
    producers, in order of completion.
    """

    def __init__(
        self, epoch: int, opened_at: float, multiset: Callable[[], MessageMultiset]
    ) -> None:
        super().__init__(epoch, opened_at)
        self.contributions: dict[bytes, Contribution] = {}
        self.inside: list[bytes] = []
        self.unfinished: set[bytes] = set()
        self._messages = 0
        self._contributors = 0
        self._words = multiset()
        self._buffered_bytes = 0
        self._multiset = multiset

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes

    @property
    def words(self) -> MessageMultiset:
        return self._words

    @property
    def version(self) -> int:
        return len(self.contributions)

    def add(self, record: Batch | Punctuation) -> bool:
        """Add a record, and return False if it is a duplicate or from a redundant draw."""
        return self._add_batch(record) if isinstance(record, Batch) else self._punctuate(record)

    def drop_messages(self) -> None:
        self.set_aside = True
        self._buffered_bytes = 0
        self.close()

    def _add_batch(self, batch: Batch) -> bool:
        contribution = self._contribution(batch.enrollment)
        if contribution.complete is not None:
            return False
        drawing = self._drawing(contribution, drawing_of(batch.batch))
        if batch.batch in drawing.batches:
            return False
        if drawing.messages + batch.words.messages > REPORTS_MAX:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer sent more than {REPORTS_MAX} reports"
            )
        drawing.batches.add(batch.batch)
        drawing.messages += batch.words.messages
        self._messages += batch.words.messages
        if not self.set_aside:
            before = drawing.words.buffered_bytes
            drawing.words.add(batch.words)
            self._buffered_bytes += drawing.words.buffered_bytes - before
        self._complete(batch.enrollment, drawing)
        return True

    def _punctuate(self, punctuation: Punctuation) -> bool:
        if punctuation.population > U4_MAX:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer has {punctuation.population} enrolled devices; "
                f"expected at most {U4_MAX}"
            )
        contribution = self._contribution(punctuation.enrollment)
        before = contribution.earlier_punctuation(punctuation.drawing)
        if before is not None:
            if before.drawing == punctuation.drawing and before != punctuation:
                raise PunctuationError(
                    f"epoch {self.epoch}: the producer's second punctuation differs from its first"
                )
            return False
        drawing = self._drawing(contribution, punctuation.drawing)
        if len(drawing.batches) > punctuation.batches:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer announces {punctuation.batches} batches but "
                f"sent {len(drawing.batches)}"
            )
        counted = contribution.contributors
        drawing.punctuation = punctuation
        self._contributors += contribution.contributors - counted
        self._complete(punctuation.enrollment, drawing)
        return True

    def complete(self, enrollment: bytes) -> Punctuation | None:
        contribution = self.contributions.get(enrollment)
        return None if contribution is None else contribution.complete

    @property
    def messages(self) -> int:
        return self._messages

    @property
    def contributors(self) -> int:
        return self._contributors

    def close(self) -> None:
        self.words.close()
        for contribution in self.contributions.values():
            contribution.close()

    def _contribution(self, enrollment: bytes) -> Contribution:
        contribution = self.contributions.get(enrollment)
        if contribution is None:
            contribution = self.contributions[enrollment] = Contribution()
            self.unfinished.add(enrollment)
        return contribution

    def _drawing(self, contribution: Contribution, name: bytes) -> Drawing:
        drawing = contribution.drawings.get(name)
        if drawing is None:
            drawing = contribution.drawings[name] = Drawing(self._multiset())
        return drawing

    def _complete(self, enrollment: bytes, changed: Drawing) -> None:
        contribution = self.contributions[enrollment]
        if not changed.whole:
            return
        if not self.set_aside:
            before = self.words.buffered_bytes
            drawn = sum(drawing.words.buffered_bytes for drawing in contribution.drawings.values())
            self.words.merge(changed.words)
            self._buffered_bytes += self.words.buffered_bytes - before - drawn
        counted = contribution.contributors
        contribution.complete = changed.punctuation
        self._contributors += contribution.contributors - counted
        sent = sum(drawing.messages for drawing in contribution.drawings.values())
        self._messages += changed.messages - sent
        self.inside.append(enrollment)
        self.unfinished.discard(enrollment)
        contribution.close()
        contribution.drawings = {}
