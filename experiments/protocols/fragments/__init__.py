"""Fragmented reports: each bit of a user's set that is 1 is sent as a separate message.

A user's set of at most k items, from a domain of d items, is encoded as d bits. Each bit is
reversed with a small probability. Each bit that is then 1 is sent as one message: the number of its
cell. After the shuffle, only the number of messages for each cell is visible.

With several reports, each bit is first reversed once, with the backstop's probability. For each
report, it is then reversed again, with a larger probability. The message also contains the number
of its report. A party that sees t of a device's reports together learns at most
`FragmentsLaw.exposure`, and never more than the backstop allows.

This bound is for one epoch. With a permanent backstop, a device reverses the same bits at every
epoch (`experiments.protocols.fragments.permanent_bits`). A party that sees all reports from all
epochs about an unchanged value then never learns more than the backstop allows. A value that
changes is hidden only by the reversals of each report, as in memoized randomized response, which is
the case of a single bit. Unlike protocols that hide users among dummies, fragments also protect a
user without any trusted party, but with a larger epsilon: a shuffler that keeps the messages of
each device together sees randomized response.

Reference: Erlingsson et al., *Encode, Shuffle, Analyze Privacy Revisited*, 2020, Alg. 1 and 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import ComposedLaw, log_rounded_up
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.dummies import REDRAW_PROBABILITY
from dpstream.randomizers.given_sets import set_rows
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import (
    Guarantee,
    held_by_a_user,
    held_or_nothing,
    of_messages_apart,
    rounded_up,
    shuffle_and_others,
)
from dpstream.randomizers.item_domains import ItemDomain, domain_size
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import check_approximate, check_domain, check_items_held
from dpstream.topics.message_formats import MessageFormat, narrowest
from experiments.protocols.fragments.permanent_bits import (
    KEY_BYTES,
    WORD_BITS,
    FlippedBits,
    PermanentBits,
)
from experiments.protocols.permanent_loss import stream_loss, unchanged_loss

Calibration: TypeAlias = Literal["exact", "published"]
"""Basis of the noise: the exact privacy loss of the blanket ("exact"), or the paper's closed
formula ("published")."""

Neighbors: TypeAlias = Literal["replacement", "removal"]
"""Neighboring inputs: any two sets of a user ("replacement"), or a set and no set ("removal")."""

MAX_REPORTS: Final = 1 << 10

_EXPONENTS: Final = np.geomspace(1e-9, 40.0, 400)


@dataclass(frozen=True, slots=True)
class FragmentsParameters:
    """Parameters of fragments.

    Attributes:
        epsilon, delta: Privacy loss for a user's set at one epoch, after shuffling.
        domain: Domain of at most 2^20 items.
        items: k, the maximum number of items per user and epoch.
        reports: tau, the number of reports per bit.
        calibration: Choice of probabilities; "published" is for single items and removal.
        permanent: True if a device's backstop reverses the same bits at all epochs.
    """

    epsilon: float
    delta: float
    domain: ItemDomain
    items: int = 1
    reports: int = 1
    neighbors: Neighbors = "replacement"
    calibration: Calibration = "exact"
    permanent: bool = False

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        check_items_held(self.items, self.domain)
        check_domain(domain_size(self.domain))
        _check_choices(self.neighbors, self.calibration, self.reports)
        if self.calibration == "published" and (self.items > 1 or self.neighbors != "removal"):
            raise ValueError(
                "'calibration: published' requires 'items: 1' and 'neighbors: removal'. Set "
                "both, or use 'calibration: exact'"
            )
        if type(self.permanent) is not bool:
            raise ValueError(f"'permanent' is {self.permanent!r}; expected true or false")
        if self.permanent and self.calibration == "published":
            raise ValueError(
                "'calibration: published' does not support 'permanent: true'. Use 'calibration: "
                "exact', or remove 'permanent'"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))


def _check_choices(neighbors: str, calibration: str, reports: int) -> None:
    if neighbors not in get_args(Neighbors):
        raise ValueError(f"'neighbors' is {neighbors!r}; expected 'replacement' or 'removal'")
    if calibration not in get_args(Calibration):
        raise ValueError(f"calibration is {calibration!r}; expected 'exact' or 'published'")
    if type(reports) is not int or not 1 <= reports <= MAX_REPORTS:
        raise ValueError(f"'reports' is {reports!r}; expected 1 to {MAX_REPORTS:,}")


def differing_bits(items: int, slots: int, neighbors: Neighbors) -> int:
    """Return the maximum number of bits in which neighboring inputs differ.

    >>> differing_bits(100, 3, "replacement"), differing_bits(4, 3, "replacement")
    (6, 4)
    """
    return min(items, slots * (2 if neighbors == "replacement" else 1))


@dataclass(frozen=True, slots=True)
class FragmentsLaw(Constants):
    """All constants of a fragments job.

    Attributes:
        items: d, the size of the domain.
        slots: k, the maximum number of items per user.
        reports: tau, the number of reports per bit.
        minimum: Minimum number of contributors among whom messages are hidden.
        odds: Weights of keeping and of reversing a bit, drawn independently for every report.
        backstop: Weights of keeping and of reversing a bit once, before reports are made from it.
            None if a single report is made from the true bits.
        epsilon: Privacy loss of an epoch after shuffling, with `delta`.
        stream_epsilon: Privacy loss of all epochs together after shuffling, with `delta`.
        permanent: True if the backstop reverses the same bits at all epochs; weights sum to 2^32.
    """

    last_epoch: int
    items: int
    slots: int
    reports: int
    minimum: int
    neighbors: Neighbors
    calibration: Calibration
    odds: ComposedLaw
    backstop: ComposedLaw | None
    epsilon: float
    delta: float
    stream_epsilon: float
    permanent: bool = False

    def __post_init__(self) -> None:
        check_domain(self.items)
        _check_choices(self.neighbors, self.calibration, self.reports)
        if not 1 <= self.slots <= self.items:
            raise ValueError(f"'slots' is {self.slots}; expected 1 to {self.items:,}")
        for odds in (self.odds, *([self.backstop] if self.backstop else [])):
            if odds.k != 1 or odds.weights[0] < odds.weights[1]:
                raise ValueError(f"odds are {odds.weights}; expected two weights, the larger first")
        if (self.reports > 1 or self.permanent) != (self.backstop is not None):
            raise ValueError(
                "the backstop is missing; several reports or 'permanent: true' require one"
                if self.backstop is None
                else "got a backstop; a single report without 'permanent: true' has none"
            )
        if self.permanent and self.backstop and sum(self.backstop.weights) != 1 << WORD_BITS:
            raise ValueError(
                f"weights of the permanent backstop are {self.backstop.weights}; expected a sum of "
                "2^32"
            )
        if self.minimum < 1 or self.last_epoch < 1:
            raise ValueError(
                f"got {self.minimum} contributors and {self.last_epoch} epochs; expected at least "
                "1 of each"
            )

    def of_one_epoch(self) -> FragmentsLaw:
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def flips(self) -> FlippedBits:
        return _flips(self.odds)

    @property
    def backstop_flips(self) -> FlippedBits | None:
        """Reversals of the bits that reports are made from; None if reports use the true bits."""
        return None if self.backstop is None else _flips(self.backstop)

    @property
    def permanent_bits(self) -> PermanentBits | None:
        if not self.permanent or self.backstop is None:
            return None
        return PermanentBits(self.items, self.backstop.weights[1])

    @property
    def differing_bits(self) -> int:
        return differing_bits(self.items, self.slots, self.neighbors)

    def exposure(self, reports: int) -> float:
        """Return the loss of one bit to a party that sees t (`reports`) reports from a device.

        Let b be the loss of the backstop and f that of a report. The result is
        ln((e^(b + t f) + 1) / (e^b + e^(t f))), rounded up. This is the loss of t identical bits,
        the most revealing case. With a permanent backstop, the reports may be from any epochs at
        which the bit was the same; otherwise all are from one epoch.
        """
        return self._exposed(reports, 1)

    def exposed_epsilon(self, reports: int) -> float:
        """Return the `exposure` of a user, over all bits in which neighboring inputs differ."""
        return self._exposed(reports, self.differing_bits)

    @property
    def reports_seen(self) -> tuple[int, ...]:
        """Numbers of reports for which to state the exposure: powers of two, and the maxima."""
        doubled = {1 << power for power in range(self.reports.bit_length())} | {self.reports}
        return tuple(
            sorted(doubled | ({self.reports * self.last_epoch} if self.permanent else set()))
        )

    def exposure_to_instance(self, seen: int, instances: int) -> float:
        """Return the loss of one bit to one of K parallel shufflers that sees it set in t reports.

        Each message goes to a random shuffler. Of the tau reports of a bit, the shuffler sees t in
        which the bit is set. It cannot tell whether the others were not set or went elsewhere. The
        loss is ln((e^b r + 1) / (e^b + r)), or the same with 1 / r if larger, rounded up. Here b is
        the loss of the backstop, and r = (q / p)^t ((1 - q / K) / (1 - p / K))^(tau - t). A set bit
        is reported as set with probability q, and an unset bit with probability p = 1 - q.
        """
        set_, unset = self.odds.weights
        whole = instances * (set_ + unset)
        likelihood_ratio = Fraction(set_, unset) ** seen
        likelihood_ratio *= Fraction(whole - set_, whole - unset) ** (self.reports - seen)
        return log_rounded_up(self._stopped(max(likelihood_ratio, 1 / likelihood_ratio)))

    @property
    def local_epsilon(self) -> float:
        """Privacy loss of an epoch, rounded up, if the shuffler links the messages of each device.

        Other epochs may have revealed the answers of a permanent backstop. A difference at one
        epoch is then hidden only by that epoch's reports.
        """
        if self.permanent:
            return min(self._of_reports(self.reports), self.changing_epsilon)
        return self._exposed(self.reports, self.differing_bits)

    @property
    def unchanged_epsilon(self) -> float:
        """Like `local_epsilon`, but over all epochs of a set that never changes.

        Longer horizons lose more, but always less than `limit_epsilon`.
        """
        return self._exposed(self.reports * self.last_epoch, self.differing_bits)

    @property
    def limit_epsilon(self) -> float:
        """Upper limit of `exposed_epsilon` with a backstop, for any number of reports."""
        assert self.backstop is not None
        return log_rounded_up(Fraction(*self.backstop.weights), self.differing_bits)

    @property
    def changing_epsilon(self) -> float:
        """Like `local_epsilon`, but over all epochs of any stream, with a permanent backstop."""
        assert self.backstop is not None
        reports = self.reports * self.last_epoch
        return stream_loss(self.backstop, self.odds, reports, self.differing_bits)

    def _exposed(self, reports: int, bits: int) -> float:
        if self.backstop is None:
            return log_rounded_up(Fraction(*self.odds.weights) ** reports, bits)
        return unchanged_loss(self.backstop, self.odds, reports, bits)

    def _stopped(self, likelihood_ratio: Fraction) -> Fraction:
        if self.backstop is None:
            return likelihood_ratio
        stopped = Fraction(*self.backstop.weights)
        return (stopped * likelihood_ratio + 1) / (stopped + likelihood_ratio)

    def _of_reports(self, reports: int) -> float:
        return log_rounded_up(Fraction(*self.odds.weights), self.differing_bits * reports)

    @property
    def message_probabilities(self) -> tuple[Fraction, Fraction]:
        """Probabilities of a message about an item, if the user has it and if not."""
        reversed_ = self.flips.probability
        if self.backstop_flips is None:
            return 1 - reversed_, reversed_
        stopped = self.backstop_flips.probability
        other = stopped * (1 - reversed_) + (1 - stopped) * reversed_
        return 1 - other, other

    @property
    def messages_per_user(self) -> float:
        """Average number of messages per epoch for a user with the maximum number of items."""
        held, other = map(float, self.message_probabilities)
        return self.reports * (self.slots * held + (self.items - self.slots) * other)

    def capacity(self, epoch: int, contributors: int) -> int:
        """Return an epoch's message capacity, independent of the contributors' values.

        By the Chernoff bound, the probability of exceeding it is at most
        `dpstream.randomizers.dummies.REDRAW_PROBABILITY`. Let M(s) be the exponential moment of a
        user's number of messages. For every s, n contributors exceed (n ln M(s) +
        ln(1 / REDRAW_PROBABILITY)) / s with at most that probability.
        """
        if contributors == 0:
            return 0
        moments = self.slots * self._log_moments(1) + (self.items - self.slots) * self._log_moments(
            0
        )
        # A margin above what is needed: the bound is computed with rounding errors.
        wanted = 1e-3 - math.log(REDRAW_PROBABILITY)
        bounds = (contributors * (1 + 1e-12) * moments + wanted) / _EXPONENTS
        return min(math.ceil(float(bounds.min())), contributors * self.items * self.reports)

    def _log_moments(self, bit: int) -> NDArray[np.float64]:
        """Return ln E e^(s X), for the number X of messages about a bit and s in `_EXPONENTS`."""
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
        """Number of distinct messages, tau d."""
        return self.reports * self.items

    @property
    def message_format(self) -> MessageFormat:
        """Format of a message: (number of the report, from 0) * d + (number of the cell)."""
        return MessageFormat(narrowest(self.words), distinct=self.words)


class Fragments(Devices[FragmentsLaw]):
    """Devices of a fragments job for one horizon. They store a key for a permanent backstop.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> law = FragmentsLaw(
    ...     1, 3, 1, 1, 1, "replacement", "exact", ComposedLaw((9, 1)), None, 1.0, 0.1, 1.0
    ... )
    >>> devices, rng = Fragments(law), seeded_generator(1)
    >>> devices.enroll(100_000, rng)
    >>> devices.report(1, np.full((100_000, 1), 2), None, rng).counts.round(-3).tolist()
    [10000, 90000, 10000]
    """

    def __init__(self, law: FragmentsLaw) -> None:
        super().__init__(law)
        self._bits = law.permanent_bits
        if self._bits is not None:
            self._key = self._declare("key", np.uint8, (KEY_BYTES,), new=None)

    @property
    def guarantee(self) -> Guarantee:
        law = self.law
        held = held_by_a_user if law.neighbors == "replacement" else held_or_nothing
        return Guarantee(
            epsilon=law.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbors=held(law.slots),
            trust=shuffle_and_others(law.minimum, self._apart),
            basis="bound",
            stream_epsilon=law.stream_epsilon,
        )

    @property
    def without_shuffling(self) -> Guarantee:
        law = self.law
        apart = of_messages_apart(self.guarantee, law.local_epsilon, law.last_epoch)
        if not law.permanent:
            return apart
        return replace(apart, stream_epsilon=law.changing_epsilon)

    @property
    def _apart(self) -> str:
        law = self.law
        if not law.permanent:
            return f"{rounded_up(law.local_epsilon)} at every epoch"
        return (
            f"{rounded_up(law.unchanged_epsilon)} for a value that stays the same at all "
            f"{law.last_epoch:,} epochs of a horizon (at most {rounded_up(law.limit_epsilon)} for "
            f"any number of epochs), {rounded_up(law.local_epsilon)} for a value that differs at "
            f"one epoch and {rounded_up(law.changing_epsilon)} for one that differs at many"
        )

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[np.uint8]]:
        if self._bits is None:
            return {}
        keys = np.frombuffer(rng.bytes(KEY_BYTES * count), np.uint8)
        return {"key": keys.reshape(count, KEY_BYTES)}

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger] | CountedMessages:
        """Return the messages of all present devices, in the mechanism's dtype.

        The result has counts if more messages are expected, for any values, than distinct ones
        exist; otherwise it is sorted, shape (messages, 1).
        """
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        sets = set_rows(epoch, values, present, self.population, law.slots, law.items)
        if self._bits is None:
            held = np.bincount(sets.reshape(-1), minlength=law.items + 1)[1:]
            counts = self._messages(
                epoch, held.astype(np.int64), law.backstop_flips, len(sets), rng
            )
        else:
            keys = self._key if present is None else self._key[present]
            counts = self._messages(epoch, self._bits.ones(keys, sets), None, len(sets), rng)
        self.epoch = epoch
        counted = CountedMessages.of_cells(counts, law.message_format.dtype)
        if len(sets) * law.messages_per_user < law.words:
            return counted.written_out()
        return counted

    def _messages(
        self,
        epoch: int,
        bits: NDArray[np.int64],
        backstop: FlippedBits | None,
        users: int,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Draw the count of each distinct message, shape (words,), within the capacity.

        Permanent answers are not redrawn: averaged over keys, they do not make exceeding the
        capacity more likely. `bits` is the number of ones in each cell, out of `users` bits, shape
        (items,). `backstop` reverses the bits first; None if they are final.
        """
        law, most = self.law, self.law.capacity(epoch, users)
        while True:
            ones = bits if backstop is None else backstop.ones(bits, users, rng)
            counts = np.concatenate([law.flips.ones(ones, users, rng) for _ in range(law.reports)])
            if counts.sum() <= most:
                return counts


def _flips(odds: ComposedLaw) -> FlippedBits:
    kept, reversed_ = odds.weights
    return FlippedBits(Fraction(reversed_, kept + reversed_))
