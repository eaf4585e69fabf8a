"""Fragments of a report: every bit of a user's set is a message of its own, or several.

"Encode, Shuffle, Analyze Privacy Revisited" (Erlingsson, Feldman, Mironov, Raghunathan, Song,
Talwar, Thakurta 2020), Algorithms 1 and 2. A user's set of at most k items of a domain of d is d
bits. Each is reversed with a small probability, and each that is 1 then is a message: the number of
its cell. What is seen of shuffled messages is how many there are of each cell.

With several reports each bit is first reversed with the backstop's probability, once; then for each
report anew, with a larger one, and the message also says which report it is of. Whoever sees t of
the reports of a device together learns no more than `FragmentsLaw.exposure` says, and never more
than the backstop allows.

Unlike protocols that hide users by dummies, these protect a user who trusts nobody, too, if by a
larger epsilon: a stage that keeps messages apart sees randomized response.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from randomizers.composed import ComposedLaw, log_rounded_up
from randomizers.counted_words import CountedWords
from randomizers.devices import Devices
from randomizers.dummies import MISFIT
from randomizers.flipped_bits import FlippedBits
from randomizers.given_values import check_epoch
from randomizers.guarantee import Guarantee, held_by_a_user, held_or_nothing
from randomizers.hadamard import check_domain, narrowest
from randomizers.item_domains import ItemDomain, domain_size
from randomizers.laws import Constants
from randomizers.set_rows import set_rows
from randomizers.shuffled_parameters import check_approximate, check_items_held
from topics.word_forms import WordForm

Calibration: TypeAlias = Literal["exact", "published", "conditional"]
"""Sized on the exact privacy loss of the blanket; by the paper's closed formula; or on the exact
loss if all others hold the same bit, which is numerically the worst case but not proven to be."""

Neighbours: TypeAlias = Literal["replacement", "removal"]
"""Which inputs cannot be told apart: any two sets of a user, or a set and none."""

MAX_REPORTS: Final = 1 << 10

_EXPONENTS: Final = np.geomspace(1e-9, 40.0, 400)


@dataclass(frozen=True, slots=True)
class FragmentsParameters:
    """What a job says.

    Attributes:
        epsilon: the privacy loss of a user's set of one epoch, shuffled.
        delta: the same.
        domain: the items, up to 2^20.
        items: k, the most that a user holds at an epoch.
        reports: tau, how often a bit is reported.
        neighbours: what cannot be told apart.
        calibration: how the probabilities are chosen; the published one is of single items, for
            neighbours by removal.

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    delta: float
    domain: ItemDomain
    items: int = 1
    reports: int = 1
    neighbours: Neighbours = "replacement"
    calibration: Calibration = "exact"

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        check_items_held(self.items, self.domain)
        check_domain(domain_size(self.domain))
        _check_choices(self.neighbours, self.calibration, self.reports)
        if self.calibration == "published" and (self.items > 1 or self.neighbours != "removal"):
            raise ValueError(
                "the published calibration is about single items that are removed: give items: 1 "
                "and neighbours: removal, or take calibration: exact"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))


def _check_choices(neighbours: str, calibration: str, reports: int) -> None:
    if neighbours not in get_args(Neighbours):
        raise ValueError(f"neighbours is {neighbours!r}, must be 'replacement' or 'removal'")
    if calibration not in get_args(Calibration):
        raise ValueError(
            f"calibration is {calibration!r}, must be 'exact', 'published' or 'conditional'"
        )
    if type(reports) is not int or not 1 <= reports <= MAX_REPORTS:
        raise ValueError(f"reports is {reports!r}, must be from 1 to {MAX_REPORTS:,}")


def differing_bits(items: int, slots: int, neighbours: Neighbours) -> int:
    """In how many bits two neighbours differ at most.

    >>> differing_bits(100, 3, "replacement"), differing_bits(4, 3, "replacement")
    (6, 4)
    """
    return min(items, slots * (2 if neighbours == "replacement" else 1))


@dataclass(frozen=True, slots=True)
class FragmentsLaw(Constants):
    """All constants of a job.

    Attributes:
        last_epoch: number of epochs.
        items: d, size of the domain.
        slots: k.
        reports: tau.
        minimum: the fewest contributors that messages are hidden among.
        neighbours: what cannot be told apart.
        calibration: how the odds were chosen.
        odds: weights of a bit kept and of one reversed, for every report anew.
        backstop: the same of the bits that reports are made from; None for a single report, which
            is made from the true bits.
        epsilon: of an epoch, shuffled.
        delta: of an epoch, and of all of them.
        stream_epsilon: of all epochs together, shuffled.

    Raises:
        ValueError: a field is out of range.
    """

    last_epoch: int
    items: int
    slots: int
    reports: int
    minimum: int
    neighbours: Neighbours
    calibration: Calibration
    odds: ComposedLaw
    backstop: ComposedLaw | None
    epsilon: float
    delta: float
    stream_epsilon: float

    def __post_init__(self) -> None:
        check_domain(self.items)
        _check_choices(self.neighbours, self.calibration, self.reports)
        if not 1 <= self.slots <= self.items:
            raise ValueError(f"{self.slots} items of a user, there are {self.items:,}")
        for odds in (self.odds, *([self.backstop] if self.backstop else [])):
            if odds.k != 1 or odds.weights[0] < odds.weights[1]:
                raise ValueError(f"odds of {odds.weights}, must be two weights, the larger first")
        if (self.reports > 1) != (self.backstop is not None):
            raise ValueError(f"{self.reports} reports, and the backstop is {self.backstop}")
        if self.minimum < 1 or self.last_epoch < 1:
            raise ValueError(f"{self.minimum} contributors, {self.last_epoch} epochs")

    def of_one_epoch(self) -> FragmentsLaw:
        """The same with a single epoch: equal for laws whose epochs are drawn alike."""
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def flips(self) -> FlippedBits:
        """How bits of a report are reversed."""
        return _flips(self.odds)

    @property
    def backstop_flips(self) -> FlippedBits | None:
        """How the bits that reports are made from are reversed; None if they are the true ones."""
        return None if self.backstop is None else _flips(self.backstop)

    @property
    def differing_bits(self) -> int:
        """In how many bits two neighbours differ at most."""
        return differing_bits(self.items, self.slots, self.neighbours)

    def exposure(self, reports: int) -> float:
        """The loss of one bit to somebody who sees so many reports of a device together.

        ln((e^(b + t f) + 1) / (e^b + e^(t f))) with the losses b of the backstop and f of a report,
        rounded up: that of t equal bits, which tell most.

        Args:
            reports: t, from 0 to tau.
        """
        return log_rounded_up(self._exposed(reports))

    @property
    def local_epsilon(self) -> float:
        """Of an epoch, against a stage that keeps the messages of a device together; rounded up."""
        return log_rounded_up(self._exposed(self.reports), self.differing_bits)

    def _exposed(self, reports: int) -> Fraction:
        """How many times likelier t equal bits are if the true one is equal to them, too."""
        told = Fraction(*self.odds.weights) ** reports
        if self.backstop is None:
            return told
        stopped = Fraction(*self.backstop.weights)
        return (stopped * told + 1) / (stopped + told)

    @property
    def message_probabilities(self) -> tuple[Fraction, Fraction]:
        """That a report has a message about an item its user holds, and about another one."""
        reversed_ = self.flips.probability
        if self.backstop_flips is None:
            return 1 - reversed_, reversed_
        stopped = self.backstop_flips.probability
        other = stopped * (1 - reversed_) + (1 - stopped) * reversed_
        return 1 - other, other

    @property
    def messages_per_user(self) -> float:
        """On average in an epoch, of a user who holds as many items as are allowed."""
        held, other = map(float, self.message_probabilities)
        return self.reports * (self.slots * held + (self.items - self.slots) * other)

    def capacity(self, epoch: int, contributors: int) -> int:
        """How many messages so many contributors have room for at an epoch, whatever they hold.

        More are drawn with a probability of at most `randomizers.dummies.MISFIT`, by Chernoff's
        bound: with the exponential moment M(s) of a user's messages, n contributors have more than
        (n ln M(s) + ln(1 / MISFIT)) / s of them with no larger probability, for every s.
        """
        if contributors == 0:
            return 0
        moments = self.slots * self._log_moments(1) + (self.items - self.slots) * self._log_moments(
            0
        )
        # A little more than is needed: the bound is computed with rounding errors.
        wanted = 1e-3 - math.log(MISFIT)
        bounds = (contributors * (1 + 1e-12) * moments + wanted) / _EXPONENTS
        return min(math.ceil(float(bounds.min())), contributors * self.items * self.reports)

    def _log_moments(self, bit: int) -> NDArray[np.float64]:
        """Ln E e^(s X) of the messages X about a bit, for each s of `_EXPONENTS`."""
        reversed_ = float(self.flips.probability)
        raised = np.expm1(_EXPONENTS)
        of_bit = [self.reports * np.log1p(share * raised) for share in (reversed_, 1 - reversed_)]
        if self.backstop_flips is None:
            return of_bit[bit]
        stopped = float(self.backstop_flips.probability)
        kept = of_bit[bit] + math.log1p(-stopped)
        return np.logaddexp(kept, of_bit[1 - bit] + math.log(stopped))

    @property
    def words(self) -> int:
        """How many different messages there are: tau d."""
        return self.reports * self.items

    @property
    def word_form(self) -> WordForm:
        """The number of the report, counted from 0, times d, plus that of the cell."""
        return WordForm(narrowest(self.words), distinct=self.words)


class Fragments(Devices[FragmentsLaw]):
    """The devices of one horizon. They keep nothing from one epoch to the next.

    >>> from randomizers.randomness import seeded_generator
    >>> law = FragmentsLaw(
    ...     1, 3, 1, 1, 1, "replacement", "exact", ComposedLaw((9, 1)), None, 1.0, 0.1, 1.0
    ... )
    >>> devices, rng = Fragments(law), seeded_generator(1)
    >>> devices.enrol(100_000, rng)
    >>> devices.report(1, np.full((100_000, 1), 2), None, rng).counts.round(-3).tolist()
    [10000, 90000, 10000]

    Args:
        law: the constants of the job.
    """

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's set of one epoch, and of all of them together."""
        law = self.law
        held = held_by_a_user if law.neighbours == "replacement" else held_or_nothing
        neighbours = held(law.slots)
        conditional = law.calibration == "conditional"
        if conditional:
            neighbours += ", on the assumption that nothing hides a bit less than equal ones"
        return Guarantee(
            epsilon=law.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbours=neighbours,
            trust=(
                "the shuffle stage to shuffle and to refuse windows below the minimum, and "
                f"{law.minimum - 1:,} honest others in each window; against a stage that keeps "
                f"messages apart epsilon is {law.local_epsilon:.6g} at every epoch"
            ),
            basis="conditional" if conditional else "bound",
            stream_epsilon=law.stream_epsilon,
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger] | CountedWords:
        """The messages of everybody present.

        Returns:
            Words of the law's dtype: counted where more messages than words are to be expected,
            whatever users hold; otherwise shape (messages, 1), sorted.
        """
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        sets = set_rows(epoch, values, present, self.population, law.slots, law.items)
        held = np.bincount(sets.reshape(-1), minlength=law.items + 1)[1:]
        counts = self._messages(epoch, held.astype(np.int64), len(sets), rng)
        self.epoch = epoch
        counted = CountedWords.of_cells(counts, law.word_form.dtype)
        if len(sets) * law.messages_per_user < law.words:
            return counted.written_out()
        return counted

    def _messages(
        self, epoch: int, held: NDArray[np.int64], users: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """How many there are of each word, shape (words,); anew where they have no room."""
        law, most = self.law, self.law.capacity(epoch, users)
        while True:
            backstop = law.backstop_flips
            bits = held if backstop is None else backstop.ones(held, users, rng)
            counts = np.concatenate([law.flips.ones(bits, users, rng) for _ in range(law.reports)])
            if counts.sum() <= most:
                return counts


def _flips(odds: ComposedLaw) -> FlippedBits:
    kept, reversed_ = odds.weights
    return FlippedBits(Fraction(reversed_, kept + reversed_))
