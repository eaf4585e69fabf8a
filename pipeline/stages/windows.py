"""Open windows: what has arrived of an epoch, producer by producer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.window_states import Event, Reaction, State, next_state
from dpstream.topics.batches import Batch, Punctuation, drawing_of
from dpstream.topics.frames import U4_MAX

# Of one producer for one epoch: the counts of all producers together stay below 2^53.
REPORTS_MAX = U4_MAX


def public_size(record: Batch | Punctuation, *, hides_messages: bool) -> int:
    """What a record adds to the numbers that a heartbeat tells.

    Args:
        record: of a producer.
        hides_messages: whether devices are counted, since how many messages they send is a secret.
    """
    if hides_messages:
        return record.contributors if isinstance(record, Punctuation) else 0
    return record.words.messages if isinstance(record, Batch) else 0


class PunctuationError(ValueError):
    """What a producer sends for an epoch contradicts itself, or is more than can be."""


@dataclass(slots=True)
class Drawing:
    """What one drawing of an epoch's reports sent: never put together with what another did.

    Attributes:
        words: of its batches.
        batches: their ids.
        messages: how many they are of.
        punctuation: the one that names this drawing; None until it has arrived.
    """

    words: WordMultiset
    batches: set[bytes] = field(default_factory=set)
    messages: int = 0
    punctuation: Punctuation | None = None

    @property
    def whole(self) -> bool:
        """Whether its punctuation and all its batches are there."""
        said = self.punctuation
        return said is not None and len(self.batches) == said.batches


@dataclass(slots=True)
class Contribution:
    """What one producer sent for one epoch, until it is complete.

    There is one drawing, unless its folder was copied and the copy draws too.

    Attributes:
        drawings: by what their batches and punctuation say, in the order of their first records;
            none once it is complete.
        complete: the punctuation of the drawing that has joined the window; None before.
    """

    drawings: dict[bytes, Drawing] = field(default_factory=dict)
    complete: Punctuation | None = None

    @property
    def punctuation(self) -> Punctuation | None:
        """The one that is in, or the first that has arrived; None without any."""
        said = (drawing.punctuation for drawing in self.drawings.values())
        return self.complete or next((each for each in said if each is not None), None)

    @property
    def contributors(self) -> int:
        """Devices, as far as it has been said."""
        return 0 if self.punctuation is None else self.punctuation.contributors

    def said_before(self, name: bytes) -> Punctuation | None:
        """What makes another punctuation of a drawing of no use: its own, or the one that is in."""
        drawing = self.drawings.get(name)
        return self.complete or (None if drawing is None else drawing.punctuation)

    def close(self) -> None:
        """Give back scratch files."""
        for drawing in self.drawings.values():
            drawing.words.close()


class OpenWindow(ABC):
    """The window of one epoch as long as it is not decided, whoever reports in it.

    Attributes:
        epoch: of the window.
        state: see `dpstream.pipeline.stages.window_states`.
        opened_at: when its first record was read, or when it was found to have none.
        due_at: when its time was found to have come; None before.
        checked_with: what was known when its time was last checked.
        first_offset: of its first record; None while it has none.
        closing_end: the end of the partition when its grace was over; None before.
        set_aside: whether its words were dropped, to be read again when it is written.
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
    def held_bytes(self) -> int:
        """Memory that its words hold."""

    @property
    @abstractmethod
    def messages(self) -> int:
        """Messages that have arrived, whether or not they will be in."""

    @property
    @abstractmethod
    def contributors(self) -> int:
        """Devices of which anything has arrived, as far as that is known."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Changes with what is known of who is in."""

    @property
    @abstractmethod
    def words(self) -> WordMultiset:
        """The words of those who are in."""

    @abstractmethod
    def drop_words(self) -> None:
        """Hold as little in memory as can be: the topic has it all."""

    @abstractmethod
    def close(self) -> None:
        """Give back scratch files."""

    def happens(self, event: Event) -> Reaction:
        """Enter the state that follows an event; returns what is to be done about it."""
        self.state, reaction = next_state(self.state, event)
        return reaction

    def grace_ends(self, grace: float) -> float | None:
        """When the window need not wait any longer; None while its time has not come."""
        return None if self.due_at is None else max(self.opened_at, self.due_at) + grace

    def note_record(self, offset: int, now: float) -> None:
        """A record of the epoch was read; the first one starts the grace period."""
        if self.first_offset is None:
            self.happens(Event.FIRST_RECORD)
            self.first_offset = offset
            self.opened_at = now
            self.closing_end = None


class Window(OpenWindow):
    """The records of one epoch that producers have sent.

    A producer's words join the window's own only when its punctuation and all its batches are
    there: a producer is in a window with everything it has or with nothing. Of several drawings,
    which copies of one folder make, the first that is whole is in, and the others are duplicates.

    Attributes:
        contributions: what has arrived, by enrolment.
        inside: the enrolments that are complete, as they came in.
        unfinished: those of which something has arrived, and that are not.
    """

    def __init__(self, epoch: int, opened_at: float, multiset: Callable[[], WordMultiset]) -> None:
        super().__init__(epoch, opened_at)
        self.contributions: dict[bytes, Contribution] = {}
        self.inside: list[bytes] = []
        self.unfinished: set[bytes] = set()
        self._messages = 0
        self._contributors = 0
        self._words = multiset()
        self._held_bytes = 0
        self._multiset = multiset

    @property
    def held_bytes(self) -> int:
        """See `OpenWindow.held_bytes`."""
        return self._held_bytes

    @property
    def words(self) -> WordMultiset:
        """The words of the producers that are complete."""
        return self._words

    @property
    def version(self) -> int:
        """See `OpenWindow.version`."""
        return len(self.contributions)

    def add(self, record: Batch | Punctuation) -> bool:
        """Take a record in; False when it is a duplicate, or a copy of what is in.

        Raises:
            PunctuationError: what the producer sends contradicts itself, or is more than can be.
        """
        return self._add_batch(record) if isinstance(record, Batch) else self._punctuate(record)

    def drop_words(self) -> None:
        """Hold no words any more, and none of those to come."""
        self.set_aside = True
        self._held_bytes = 0
        self.close()

    def _add_batch(self, batch: Batch) -> bool:
        contribution = self._contribution(batch.enrolment)
        if contribution.complete is not None:
            return False
        drawing = self._drawing(contribution, drawing_of(batch.batch))
        if batch.batch in drawing.batches:
            return False
        if drawing.messages + batch.words.messages > REPORTS_MAX:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer sends more than {REPORTS_MAX} reports"
            )
        drawing.batches.add(batch.batch)
        drawing.messages += batch.words.messages
        self._messages += batch.words.messages
        if not self.set_aside:
            before = drawing.words.held_bytes
            drawing.words.add(batch.words)
            self._held_bytes += drawing.words.held_bytes - before
        self._complete(batch.enrolment, drawing)
        return True

    def _punctuate(self, punctuation: Punctuation) -> bool:
        if punctuation.population > U4_MAX:
            raise PunctuationError(
                f"epoch {self.epoch}: {punctuation.population} devices enrolled with one producer, "
                f"at most {U4_MAX} can be"
            )
        contribution = self._contribution(punctuation.enrolment)
        before = contribution.said_before(punctuation.drawing)
        if before is not None:
            if before.drawing == punctuation.drawing and before != punctuation:
                raise PunctuationError(
                    f"epoch {self.epoch}: a second punctuation differs from the producer's first"
                )
            return False
        drawing = self._drawing(contribution, punctuation.drawing)
        if len(drawing.batches) > punctuation.batches:
            raise PunctuationError(
                f"epoch {self.epoch}: the producer announces {punctuation.batches} batches "
                f"and has sent {len(drawing.batches)}"
            )
        said = contribution.contributors
        drawing.punctuation = punctuation
        self._contributors += contribution.contributors - said
        self._complete(punctuation.enrolment, drawing)
        return True

    def complete(self, enrolment: bytes) -> Punctuation | None:
        """The punctuation of the drawing that is in, of a producer that is complete."""
        contribution = self.contributions.get(enrolment)
        return None if contribution is None else contribution.complete

    @property
    def messages(self) -> int:
        """Messages that have arrived, of producers that are complete or not."""
        return self._messages

    @property
    def contributors(self) -> int:
        """Devices of the producers whose punctuation has arrived."""
        return self._contributors

    def close(self) -> None:
        """Give back scratch files."""
        self.words.close()
        for contribution in self.contributions.values():
            contribution.close()

    def _contribution(self, enrolment: bytes) -> Contribution:
        contribution = self.contributions.get(enrolment)
        if contribution is None:
            contribution = self.contributions[enrolment] = Contribution()
            self.unfinished.add(enrolment)
        return contribution

    def _drawing(self, contribution: Contribution, name: bytes) -> Drawing:
        drawing = contribution.drawings.get(name)
        if drawing is None:
            drawing = contribution.drawings[name] = Drawing(self._multiset())
        return drawing

    def _complete(self, enrolment: bytes, changed: Drawing) -> None:
        """Have a drawing join the window if it is whole now: the first, and no other.

        Only the one that has changed is looked at: one that had been whole before would be in.
        """
        contribution = self.contributions[enrolment]
        if not changed.whole:
            return
        if not self.set_aside:
            before = self.words.held_bytes
            drawn = sum(drawing.words.held_bytes for drawing in contribution.drawings.values())
            self.words.merge(changed.words)
            self._held_bytes += self.words.held_bytes - before - drawn
        said = contribution.contributors
        contribution.complete = changed.punctuation
        self._contributors += contribution.contributors - said
        sent = sum(drawing.messages for drawing in contribution.drawings.values())
        self._messages += changed.messages - sent
        self.inside.append(enrolment)
        self.unfinished.discard(enrolment)
        contribution.close()
        contribution.drawings = {}
