"""Of which drawing of each producer the parts of a window are: the one that was decided.

Two copies of a producer's folder may both have drawn an epoch. What of a window lies with several
shuffle instances, or in several lanes, must then all be of the drawing that was complete where the
window was decided. Manifests name these drawings, or of many producers hold a code of them
(`topics.drawing_codes`), and whoever writes a part finds the drawings that are whole there.

Of each producer that is honest the decided one is among them, since it sends the part by which
windows are decided when all others are acknowledged. Whoever has sent a part something else, or
nothing, costs the code one check word or two: of all that are not so many the drawings are known as
if they had been named. Beyond that, which takes a crowd of producers that lie or have been copied,
whoever has one whole drawing there is in with that, and whoever has several with none, so that
nothing is put together of two. All of it is a function of what lies in the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

from pipeline.jobs.roster import Roster
from pipeline.stages.multisets import WordMultiset
from pipeline.stages.windows import PunctuationError, Window
from topics.batches import DRAWING_BYTES, Batch, Punctuation, drawing_of
from topics.drawing_codes import DrawingCode
from topics.manifests import Manifest
from topics.word_forms import WordForm


def drawing_in(record: Batch | Punctuation) -> bytes | None:
    """Of which drawing a record is; None if it does not say so."""
    return drawing_of(record.batch) if isinstance(record, Batch) else record.drawing


def enrolments_in(manifest: Manifest, roster: Roster) -> list[bytes]:
    """The enrolments that a manifest says are in, in order of registration."""
    return [
        producer.enrolment
        for producer, included in zip(roster, manifest.producers, strict=False)
        if included
    ]


def drawings_in(manifest: Manifest, roster: Roster) -> dict[bytes, bytes | None]:
    """The same, each with its drawing, if that is named."""
    enrolments = enrolments_in(manifest, roster)
    return dict(zip(enrolments, manifest.drawings or [None] * len(enrolments), strict=True))


def holds_decided(window: Window, manifest: Manifest, roster: Roster) -> bool:
    """Whether a window holds those who are in, each with the drawing that was decided."""
    complete = {
        enrolment: contribution.complete.drawing
        for enrolment, contribution in window.contributions.items()
        if contribution.complete is not None
    }
    if manifest.code is None:
        return complete == drawings_in(manifest, roster)
    enrolments = enrolments_in(manifest, roster)
    if complete.keys() != set(enrolments):
        return False
    return manifest.code.is_of([complete[each] or b"" for each in enrolments])


class WholeDrawings:
    """Which drawings of each producer are whole in a topic, of a window's records.

    Args:
        epoch: of the window.
        form: of the words, none of which are held.
    """

    def __init__(self, epoch: int, form: WordForm) -> None:
        self._window = Window(epoch, 0.0, lambda: WordMultiset(form))
        self._window.drop_words()
        self._names: dict[bytes, tuple[bytes, bytes]] = {}

    def add(self, record: Batch | Punctuation) -> None:
        """Take in a record of the epoch: each drawing counts as if it were a producer's only one.

        What contradicts itself is left out, as it is of a window.
        """
        drawing = drawing_in(record)
        if drawing is None:
            return
        name = sha256(record.enrolment + drawing).digest()[: len(record.enrolment)]
        self._names[name] = record.enrolment, drawing
        with suppress(PunctuationError):
            self._window.add(replace(record, enrolment=name))

    def by_enrolment(self) -> dict[bytes, list[bytes]]:
        """The drawings of each producer that has any, in the order in which they were whole."""
        found: dict[bytes, list[bytes]] = {}
        for name in self._window.inside:
            enrolment, drawing = self._names[name]
            found.setdefault(enrolment, []).append(drawing)
        return found


def decided_drawings(
    code: DrawingCode, enrolments: Sequence[bytes], whole: Mapping[bytes, Sequence[bytes]]
) -> dict[bytes, bytes]:
    """The drawing of each producer that is in, as far as that is known.

    Args:
        code: that was decided.
        enrolments: of those that are in, in order of registration.
        whole: the drawings of each that are whole, in the order in which they were.
    """
    found = [whole.get(enrolment, ()) for enrolment in enrolments]
    row = [each[0] if each else bytes(DRAWING_BYTES) for each in found]
    missing = [place for place, each in enumerate(found) if not each]
    several = [place for place, each in enumerate(found) if len(each) > 1]
    # Mostly the first of several is the one: then it need not be taken for unknown.
    for unknown in (missing, missing + several):
        decided = code.recover(row, unknown)
        if decided is not None:
            return dict(zip(enrolments, decided, strict=True))
    return {
        enrolment: each[0]
        for enrolment, each in zip(enrolments, found, strict=True)
        if len(each) == 1
    }
