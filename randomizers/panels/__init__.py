"""Panels: several questions to users in public groups, each device in exactly one panel.

A panel is a public group and a question. A device's group is given when it is enrolled, and its
question is drawn then, with integer weights; both are public, permanent for the horizon, and
independent of values. At every epoch the device reports its answer to its own question by the
mechanism of `dpstream.randomizers.value_stream` for Booleans, or of `hadamard_values` for labels,
with all of epsilon. A device's reports show nothing about its other answers, so the loss of a
user's stream is that of one panel, once.

In `sampled_panels`, every panel has a mechanism of `dpstream.randomizers.sampled_response`, again
with all of epsilon: a device answers at few epochs of the horizon. Which ones follows from a public
phase, drawn at enrollment. At all other epochs its message states only that it is not asked, so
that the devices of every panel can be counted at every epoch.

A number with a mean is an integer x from 0 to 2^32, its position in the range. The device draws a
permanent threshold U, uniform on the integers from 0 to 2^32 - 1 and independent of values, and
tracks the Boolean x > U. Its expectation over U is exactly x / 2^32. If the shuffler sums the
messages, the device needs no threshold: it sends x itself, rounded at random, as in
`dpstream.randomizers.shuffled_counts.shuffled_value_stream`.

A message is the panel's number above the message of its mechanism: in 2 bytes if all messages are
symbols, otherwise in 4. With a single panel, it is the message of the mechanism: 1 byte for a
symbol, 2 for a message to be summed, 4 for a label's.

Reference: Ding, Kulkarni, Yekhanin, *Collecting Telemetry Data Privately*, NIPS 2017, Section 3
(means from permanent thresholds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.devices import Devices
from dpstream.randomizers.given_values import reject_wrong
from dpstream.randomizers.guarantee import Guarantee, RollingGuarantee
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.panel_rows import MOST_PANELS, MOST_SHARE
from dpstream.randomizers.panel_rows import ONE as ONE
from dpstream.randomizers.panel_rows import Answer as Answer
from dpstream.randomizers.panel_rows import PanelGroup as PanelGroup
from dpstream.randomizers.panel_rows import PanelQuestion as PanelQuestion
from dpstream.randomizers.panel_rows import PanelRow as PanelRow
from dpstream.randomizers.panels.parameters import AskedPanels as AskedPanels
from dpstream.randomizers.panels.parameters import PanelsParameters as PanelsParameters
from dpstream.randomizers.panels.parameters import (
    SampledPanelsParameters as SampledPanelsParameters,
)
from dpstream.randomizers.panels.parameters import (
    ShuffledPanelsParameters as ShuffledPanelsParameters,
)
from dpstream.randomizers.sampled_response import (
    PhasedDevices,
    SampledResponse,
    SampledResponseLaw,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    ShuffledNumberStream,
    ShuffledValueStream,
    ShuffledValueStreamLaw,
)
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw
from dpstream.randomizers.value_stream.divided import DividedDevices
from dpstream.randomizers.value_stream.hadamard_values import HadamardValues, HadamardValuesLaw
from dpstream.topics.message_formats import MessageFormat, narrowest

AnswerLaw: TypeAlias = (
    ValueStreamLaw | HadamardValuesLaw | ShuffledValueStreamLaw | SampledResponseLaw
)


class _Mechanism(NamedTuple):
    """Devices of a mechanism, the exclusive bound of their messages, and who adds their noise."""

    devices: Callable[[Any], ValueStream | HadamardValues | ShuffledValueStream | SampledResponse]
    messages: Callable[[Any], int]
    kind: str = "followed"


_MECHANISMS: Final[Mapping[type[AnswerLaw], _Mechanism]] = {
    ValueStreamLaw: _Mechanism(ValueStream, lambda law: 1 << 8),
    ShuffledValueStreamLaw: _Mechanism(ShuffledValueStream, lambda law: 1 << 16, "summed"),
    HadamardValuesLaw: _Mechanism(HadamardValues, lambda law: 1 << 24),
    SampledResponseLaw: _Mechanism(SampledResponse, lambda law: unasked(law) + 1, "sampled"),
}
_SUMMED_NUMBERS: Final = _Mechanism(ShuffledNumberStream, lambda law: 1 << 16, "summed")


def unasked(law: SampledResponseLaw) -> int:
    """Return the message of a device that is not asked at an epoch: the number of points."""
    return law.sets.points


def _answer_law(body: Mapping[str, Any]) -> AnswerLaw:
    if "booleans" in body:
        return HadamardValuesLaw.from_json(body)
    if "flips" in body:
        return SampledResponseLaw.from_json(body)
    law = ValueStreamLaw if "theta" in body else ShuffledValueStreamLaw
    return law.from_json(body)


@dataclass(frozen=True, slots=True)
class QuestionLaw(Constants):
    """Constants of a question.

    Attributes:
        answer: Kind of the answer.
        share: Integer weight with which a device draws the question.
        law: Constants of the mechanism that reports the answer.
    """

    answer: Answer
    share: int
    law: AnswerLaw = field(metadata={"read": _answer_law})

    def __post_init__(self) -> None:
        if self.answer not in get_args(Answer):
            raise ValueError(f"'answer' is {self.answer!r}; expected one of {get_args(Answer)}")
        if type(self.share) is not int or not 1 <= self.share <= MOST_SHARE:
            raise ValueError(f"share is {self.share!r}; expected an integer from 1 to {MOST_SHARE}")
        labels = self.answer == "labels"
        if isinstance(self.law, SampledResponseLaw):
            fits = labels or self.law.items == 1
            fits = fits and not self.law.complete and self.law.slots == 1
        else:
            fits = labels == isinstance(self.law, HadamardValuesLaw)
        if not fits:
            raise ValueError(f"answer {self.answer!r} has the constants of another answer")

    @property
    def largest(self) -> int:
        """Largest answer; the smallest one is 0."""
        if self.answer == "labels" and isinstance(self.law, HadamardValuesLaw | SampledResponseLaw):
            return self.law.items
        return ONE if self.answer == "mean" else 1

    @property
    def thresholds(self) -> bool:
        """True if a device compares its number with a threshold, instead of sending it."""
        return self.answer == "mean" and not isinstance(self.law, ShuffledValueStreamLaw)

    @property
    def mechanism(self) -> _Mechanism:
        if self.answer == "mean" and not self.thresholds:
            return _SUMMED_NUMBERS
        return _MECHANISMS[type(self.law)]


@dataclass(frozen=True, slots=True)
class PanelsLaw(Constants):
    """All constants of a job, for devices and estimators.

    Attributes:
        groups: Number of public groups.
        questions: Constants of each question; all have the same last epoch.
    """

    groups: int
    questions: tuple[QuestionLaw, ...]

    def __post_init__(self) -> None:
        if type(self.groups) is not int or self.groups < 1 or not self.questions:
            raise ValueError(
                f"got {self.groups!r} groups and {len(self.questions)} questions; expected at "
                "least one of each"
            )
        if self.panels > MOST_PANELS:
            raise ValueError(f"got {self.panels:,} panels; expected at most {MOST_PANELS}")
        kinds = dict.fromkeys(each.mechanism.kind for each in self.questions)
        if len(kinds) > 1:
            raise ValueError(
                f"questions are {' and '.join(kinds)}; expected mechanisms of the same kind"
            )
        if len(horizons := {question.law.last_epoch for question in self.questions}) != 1:
            raise ValueError(
                f"questions end with epochs {horizons}; expected the same last epoch for all"
            )

    @property
    def last_epoch(self) -> int:
        return self.questions[0].law.last_epoch

    @property
    def panels(self) -> int:
        return self.groups * len(self.questions)

    @property
    def message_format(self) -> MessageFormat:
        # The panel's number needs 8 more bits.
        bits = self.shift if self.panels == 1 else self.shift + 8
        return MessageFormat(narrowest(1 << bits))

    @property
    def shift(self) -> int:
        """Bit offset of the panel's number in a message, a multiple of 8."""
        most = max(question.mechanism.messages(question.law) for question in self.questions)
        return 8 * math.ceil((most - 1).bit_length() / 8)

    @property
    def summed(self) -> bool:
        """True if the shuffler releases noisy sums instead of messages."""
        return isinstance(self.questions[0].law, ShuffledValueStreamLaw)

    @property
    def sum_form(self) -> MessageFormat:
        """Format of a window's release: the number of messages of each panel, then noisy sums."""
        return MessageFormat(np.dtype("<u8"), 2 * self.panels)

    def capacity(self, epoch: int, contributors: int) -> int:
        return contributors

    def panel_of(self, words: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        """Return the panel of each message, from 0; out of range for messages of no panel."""
        if self.panels == 1:
            return np.zeros(len(words), np.int64)
        return (words[:, 0] >> self.shift).astype(np.int64) - 1

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """Raise `ValueError` unless devices can send these messages, shape (n, 1), to be summed."""
        panels = self.panel_of(words)
        wrong = (panels < 0) | (panels >= self.panels)
        if wrong.any():
            raise ValueError(
                f"message {words[wrong][0, 0]} at epoch {epoch} has panel "
                f"{panels[wrong][0] + 1}; expected 1 to {self.panels}"
            )
        for index, law in enumerate(self.summed_laws):
            asked = panels % len(self.questions) == index
            law.check_messages(epoch, self._steps(words[asked]))

    def noisy_sums(
        self,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint64]:
        """Return the release of a window, uint64, shape (1, 2 panels); see `sum_form`.

        Every panel has noise of its own: a user's messages are in the sums of a single panel.
        Arguments are those of `ShuffledValueStreamLaw.noisy_sum`.
        """
        panels, steps = self.panel_of(words), self._steps(words)
        times = np.ones(len(words), np.int64) if counts is None else counts.astype(np.int64)
        heads = np.bincount(panels, times, self.panels).astype(np.uint64)
        sums = []
        for panel in range(self.panels):
            law, here = self.summed_laws[panel % len(self.questions)], panels == panel
            sums.append(law.noisy_sum(steps[here], times[here].astype(np.uint64), rng)[0, 0])
        return np.concatenate([heads, np.array(sums, np.uint64)])[None]

    @property
    def summed_laws(self) -> list[ShuffledValueStreamLaw]:
        """Constants of the questions, if the shuffler sums their answers."""
        laws = [question.law for question in self.questions]
        assert all(isinstance(law, ShuffledValueStreamLaw) for law in laws)
        return laws  # type: ignore[return-value]

    def _steps(self, words: NDArray[np.unsignedinteger]) -> NDArray[np.uint16]:
        return (words & ((1 << self.shift) - 1)).astype(np.uint16)

    def panel(self, group: int, question: int) -> int:
        """Return the number of a panel, from 1, given a group and a question from 0."""
        return 1 + group * len(self.questions) + question


class PanelDevices(DividedDevices[PanelsLaw]):
    """Devices of one horizon, each in a public group, with a public question.

    The question is drawn independently of values, so the guarantee is that of the question with the
    largest loss.

    >>> from dpstream.randomizers.panels.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> groups = PanelGroup({"os": "ios"}), PanelGroup({"os": "web"})
    >>> questions = PanelQuestion("active", "boolean"), PanelQuestion("paid", "boolean")
    >>> parameters = PanelsParameters(4.0, 2, questions, groups)
    >>> devices = PanelDevices(calibrate(parameters, last_epoch=16))
    >>> devices.enroll(1000, rng, {"group": np.arange(1000) % 2})
    >>> reports = devices.report(1, np.ones((1000, 2), np.int64), None, rng)
    >>> np.unique(reports >> 8)  # both questions in both groups
    array([1, 2, 3, 4], dtype=uint16)
    """

    lasting: ClassVar[tuple[str, ...]] = ("group",)
    public_draws: ClassVar[str] = "group and question"

    def __init__(self, law: PanelsLaw) -> None:
        parts: list[Devices[Any]] = [each.mechanism.devices(each.law) for each in law.questions]
        super().__init__(law, parts, [question.share for question in law.questions], "question")
        # Groups and questions are public.
        self._group = self._declare("group", np.uint8, new=None, allowed=range(law.groups))
        self._compared = [question.thresholds for question in law.questions]
        if any(self._compared):
            # U, which may become known: values must not influence it.
            self._threshold = self._declare("threshold", np.uint32, new=None)

    @property
    def guarantee(self) -> Guarantee:
        stated = super().guarantee
        public = (
            f"which devices exist, each one's {self.public_draws}, and when they report is public"
        )
        if self.law.summed:
            return replace(stated, trust=f"{stated.trust}; {public}")
        held = "none; it holds against everyone who sees the reports"
        return replace(stated, trust=f"{held}; {public}")

    def enroll(
        self,
        count: int,
        rng: np.random.Generator,
        kept: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add devices; see `Devices.enroll`.

        `kept` has the number of each device's group, from 0, as "group". It may be missing if there
        is only one group. Raises `ValueError` for groups that do not exist.
        """
        groups = np.zeros(count, np.uint8) if self.law.groups == 1 or not count else None
        if kept is not None and "group" in kept:
            groups = kept["group"]
        if groups is None:
            raise ValueError(
                f"devices have no group; expected a number from 0 to {self.law.groups - 1} for each"
            )
        if groups.shape != (count,) or not np.isin(groups, range(self.law.groups)).all():
            raise ValueError(
                f"groups have shape {groups.shape}; expected ({count},), with numbers from 0 to "
                f"{self.law.groups - 1}"
            )
        super().enroll(count, rng, {"group": groups})

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        drawn = super()._draw(count, rng)
        if any(self._compared):
            drawn["threshold"] = rng.integers(0, ONE, count, dtype=np.uint32)
        return drawn

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        """Return a message for each present device: `PanelsLaw.message_format`, shape (reports, 1).

        `values` has every answer of every device, shape (population, questions).
        """
        asked = self.law.questions
        if values.shape != (self.population, len(asked)) or values.dtype.kind not in "biu":
            raise ValueError(
                f"values are {values.dtype} of shape {values.shape}; expected integers of shape "
                f"({self.population}, {len(asked)}): the answers of each device to all questions"
            )
        for question, answers in zip(asked, values.T, strict=True):
            wrong = (answers < 0) | (answers > question.largest)
            reject_wrong(epoch, answers, wrong, present, f"0 to {question.largest}")
        return self._report(epoch, values, present, rng)

    def _words(
        self,
        number: int,
        epoch: int,
        values: NDArray[np.int64],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        members = self._members[number - 1]
        answers: NDArray[Any] = values[:, number - 1]
        if self._compared[number - 1]:
            answers = answers > self._threshold[members]
        law, dtype = self.law, self.law.message_format.dtype
        words = self._messages(number, epoch, answers, present, rng).astype(dtype, copy=False)
        if law.panels == 1:
            return words
        groups = self._group[members if present is None else members[present]]
        panels = 1 + groups.astype(np.uint32) * len(law.questions) + number - 1
        return np.asarray(words | (panels[:, None] << law.shift).astype(dtype), dtype)


class SampledPanelDevices(PanelDevices):
    """Devices of one horizon that answer their question at few epochs, from a public phase on.

    >>> from dpstream.randomizers.panels.calibration import calibrate_sampled
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng, questions = seeded_generator(1), (PanelQuestion("active", "boolean"),)
    >>> law = calibrate_sampled(SampledPanelsParameters(1.0, questions), last_epoch=4)
    >>> devices = SampledPanelDevices(law)
    >>> devices.enroll(1000, rng)
    >>> reports = devices.report(1, np.zeros((1000, 1), np.int64), None, rng)
    >>> int((reports < unasked(law.questions[0].law)).sum()), len(reports)
    (250, 1000)
    """

    lasting = ("group", "phase")
    public_draws = "group, question and phase"
    _parts: list[PhasedDevices[SampledResponseLaw]]  # type: ignore[assignment]

    @property
    def rolling(self) -> RollingGuarantee | None:
        # A phase lasts, so T consecutive epochs contain one answer, to whichever question.
        spans = [part.rolling for part in self._parts]
        if not all(spans):
            return None
        return RollingGuarantee(self.law.last_epoch, self.guarantee.epsilon)

    def enroll(
        self,
        count: int,
        rng: np.random.Generator,
        kept: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        before = self.population
        super().enroll(count, rng, kept)
        if kept is not None and "phase" in kept:
            for part, members in zip(self._parts, self._members, strict=True):
                part.keep_phases(kept["phase"][members[members >= before] - before])

    def _messages(
        self,
        number: int,
        epoch: int,
        values: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        part = self._parts[number - 1]
        due = part.due(epoch)
        answers = super()._messages(number, epoch, values, present, rng)
        words = np.full((part.population, 1), unasked(part.law), np.uint32)
        words[due if present is None else due[present[due]]] = answers
        return words if present is None else words[present]
