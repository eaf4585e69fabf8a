"""Sampled response: a device answers at few epochs of a horizon, with all of its epsilon.

On enrollment, a device draws a public *phase*, and r secret flips from one joint mechanism. It
answers at r epochs, spread evenly over the horizon from its phase on. Each answer is a uniform
point inside the set of the device's value at that epoch (`dpstream.randomizers.set_systems`), or
outside it, as the flip decides. For yes or no, an answer is the value or its opposite. It does not
matter how often values change: every epoch is estimated from a random sample of r / T of the users.

The first users, who enroll all at once, get phases by a uniformly random assignment in which the
numbers of users per phase differ by at most one. Later users, and devices on their own, draw their
phases uniformly, even if none of their epochs is left. So every user answers at every epoch with
the same probability.

In a recurring job a device keeps its phase forever. It draws its flip again for each horizon, and
answers once per horizon. Any T consecutive epochs then contain one answer. Two streams that differ
only within these epochs are as similar as two streams of one horizon, however many horizons are
published. If phases were drawn again, two answers could follow each other, at twice the epsilon.
Several answers in a horizon share one distribution of flips, so parts of two horizons would cost
more than epsilon.

References: population division, Ren et al., *LDP-IDS*, 2022. The joint mechanism of r answers is
that of the signs in *Randomize the Future*. Subsets are those of Ye and Barg, *Optimal schemes for
discrete distribution estimation under locally differential privacy*, 2018.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.equal_buckets import check_numbers
from dpstream.randomizers.given_sets import set_rows
from dpstream.randomizers.given_values import check_epoch, check_items
from dpstream.randomizers.guarantee import Guarantee, RollingGuarantee
from dpstream.randomizers.item_domains import Bits, ItemDomain, Numbers, Strings, domain_size
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import (
    MOST_ITEMS,
    check_domain,
    check_epsilon,
    check_items_held,
)
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.set_systems import Subsets
from dpstream.topics.message_formats import MessageFormat, narrowest

MAX_EPOCHS = 1 << 20
MAX_REPORTS = 8
"""Maximum number of answers per device and horizon."""


SHARE = 0.1
"""Share of the users with value 1 for which `reports` is chosen by default."""

AnswerSets: TypeAlias = Subsets | PointSpace
ShareT = TypeVar("ShareT", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class SampledResponseParameters:
    """Parameters of a sampled response.

    Attributes:
        epsilon: Privacy loss of a user's stream in a horizon.
        reports: Number of answers per device and horizon; None selects the number with the smallest
            error. With more than `MOST_VALUES` values, a device answers once.
        share: For yes or no, the share of users with value 1 for which `reports` is chosen.
        domain: At most 2^20 listed items, or any number of integers or strings, of which a user has
            one at a time; None for yes or no.
        items: Maximum number of items per user. If above one, a value is a set, new at every epoch.
        complete: True if every user has an item at every epoch. A device without one then answers
            for a random item.
        low, high: For numbers, the range of values; `high` is exclusive.
        buckets: For numbers, the number of buckets of equal width, a power of two. A device answers
            once, about its node on one level of a tree of buckets.
        initial: For numbers, the value of a user before its first row; None for `low`.
        window: For a domain too large to list, the number of latest epochs that are searched
            together; None for all epochs of the horizon so far.
    """

    epsilon: float
    reports: int | None = None
    share: float = SHARE
    domain: ItemDomain | None = None
    items: int = 1
    complete: bool = False
    low: float | None = None
    high: float | None = None
    buckets: int | None = None
    initial: float | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        reports = self.reports
        if reports is not None and (type(reports) is not int or not 1 <= reports <= MAX_REPORTS):
            raise ValueError(f"reports is {reports!r}; expected an integer from 1 to {MAX_REPORTS}")
        share = self.share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise ValueError(f"share is {share!r}; expected a number above 0 and below 1")
        if type(self.complete) is not bool:
            raise ValueError(f"complete is {self.complete!r}; expected true or false")
        self._check_numbers()
        self._check_domain()
        window = self.window
        if window is not None and (type(window) is not int or window < 1 or not self.searched):
            raise ValueError(
                f"window is {window!r}; expected an integer of at least 1, with a domain of "
                f"integers or strings that has more than {MOST_ITEMS:,} items"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "share", float(share))

    @property
    def numbers(self) -> Numbers | None:
        low, high, buckets = self.low, self.high, self.buckets
        if low is None or high is None or buckets is None:
            return None
        return Numbers(low, high, buckets)

    @property
    def searched(self) -> bool:
        domain = self.domain
        return isinstance(domain, Bits | Strings) and domain_size(domain) > MOST_ITEMS

    def _check_numbers(self) -> None:
        given = {"low": self.low, "high": self.high, "buckets": self.buckets}
        if all(value is None for value in given.values()) and self.initial is None:
            return
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given) and self.domain is not None:
            raise ValueError("'initial' applies to numbers only. Remove it, or remove 'domain'")
        if missing:
            raise ValueError(
                f"'{missing[0]}' is missing; numbers require 'low', 'high' and 'buckets'"
            )
        if self.domain is not None:
            raise ValueError("'domain' is set together with 'buckets'. Remove one of them")
        if self.reports not in (None, 1):
            raise ValueError(f"'reports' is {self.reports}; expected 1 with numbers")
        if self.share != SHARE:
            raise ValueError(
                "'share' applies only to yes or no, not to buckets. Remove one of them"
            )
        assert self.low is not None
        assert self.high is not None
        assert self.buckets is not None
        check_numbers(self.low, self.high, self.initial, self.buckets)
        for name in ("low", "high", "initial"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))

    def _check_domain(self) -> None:
        if self.domain is None:
            if self.complete or self.items != 1:
                name = "complete" if self.complete else "items"
                raise ValueError(f"'{name}' requires a domain of items. Set 'domain'")
            return
        if self.share != SHARE:
            raise ValueError(
                "'share' applies only to yes or no, not to items. Remove 'share', or 'domain'"
            )
        check_items_held(self.items, self.domain)
        if self.items > 1 and (self.complete or self.reports not in (None, 1)):
            raise ValueError(
                f"'items' is {self.items}; expected 1 with 'complete' or several 'reports'"
            )
        if self.searched:
            if self.complete or self.reports not in (None, 1):
                name = "complete" if self.complete else "reports"
                raise ValueError(
                    f"'{name}' requires a domain of at most {MOST_ITEMS:,} items; with more of "
                    "them, a device answers once, about a prefix or none. Remove it"
                )
            return
        check_domain(domain_size(self.domain))
        if self.complete and domain_size(self.domain) < 2:
            raise ValueError("domain has 1 item; 'complete' requires at least 2")


def _read_sets(body: Mapping[str, Any]) -> AnswerSets:
    return Subsets.from_json(body) if "values" in body else PointSpace.from_json(body)


@dataclass(frozen=True, slots=True)
class SampledResponseLaw(Constants):
    """Constants of a sampled_response job.

    Attributes:
        last_epoch: T, the number of epochs of a horizon.
        flips: Weight of every sequence of r answers, by the number of answers outside their sets.
        sets: Set of points for each value.
        items: Number of items; 1 for yes or no.
        complete: True if every user has an item, so that value 0 has no set.
        slots: Maximum number of items per user; an answer is about one of these slots.
    """

    last_epoch: int
    epsilon: float
    flips: ComposedLaw
    sets: AnswerSets = field(metadata={"read": _read_sets})
    items: int
    complete: bool
    slots: int

    def __post_init__(self) -> None:
        if type(self.last_epoch) is not int or not 1 <= self.last_epoch <= MAX_EPOCHS:
            raise ValueError(f"last_epoch is {self.last_epoch}; expected 1 to {MAX_EPOCHS}")
        if not self.reports <= min(MAX_REPORTS, self.last_epoch):
            raise ValueError(
                f"'reports' is {self.reports} with {self.last_epoch} epochs; expected at most one "
                f"answer per epoch, and at most {MAX_REPORTS} in all"
            )
        if self.flips.loss > self.epsilon:
            raise ValueError(f"loss is {self.flips.loss}; expected at most {self.epsilon}")
        check_domain(self.items)
        values = self.items + (not self.complete)
        if type(self.complete) is not bool or values > self.sets.most_values:
            raise ValueError(
                f"'complete' is {self.complete!r} and there are {values:,} values; expected true "
                f"or false, and at most {self.sets.most_values:,} values"
            )

        if not 1 <= self.slots <= self.items or (
            self.slots > 1 and (self.complete or self.reports > 1)
        ):
            raise ValueError(
                f"'slots' is {self.slots}; expected 1, or at most {self.items:,} with one answer "
                "about an item or none"
            )

    @property
    def reports(self) -> int:
        """r, the number of answers per device and horizon."""
        return self.flips.k

    @property
    def loss(self) -> float:
        return self.flips.loss

    @property
    def masses(self) -> tuple[int, ...]:
        """Total weight of all sequences with d answers outside their sets, for d = 0 to r."""
        sets, reports = self.sets, self.reports
        return tuple(
            math.comb(reports, flips) * sets.block ** (reports - flips) * sets.outside**flips * each
            for flips, each in enumerate(self.flips.weights)
        )

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """Probabilities that an answer is in the set of its user's item (a), or of another (b)."""
        masses = self.masses
        inside = sum((self.reports - flips) * mass for flips, mass in enumerate(masses))
        own = Fraction(inside, self.reports * sum(masses))
        other = self.sets.elsewhere(own)
        return (own + (self.slots - 1) * other) / self.slots, other

    @property
    def c_gap(self) -> float:
        own, other = self.probabilities
        return float(own - other)

    def flip_variance(self, share: ShareT) -> ShareT:
        """Return the variance that flips cause in one answer's estimate of a value.

        `share` is the share of the users who have the value, a number or an array.
        """
        own, other = map(float, self.probabilities)
        return (share * own * (1 - own) + (1 - share) * other * (1 - other)) / (own - other) ** 2

    @property
    def message_format(self) -> MessageFormat:
        return MessageFormat(narrowest(self.sets.points), distinct=self.sets.points)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Number of epochs from a phase to each answer, modulo `last_epoch`; ascending from 0."""
        return tuple(answer * self.last_epoch // self.reports for answer in range(self.reports))


class PhasedLaw(Protocol):
    @property
    def last_epoch(self) -> int: ...

    @property
    def loss(self) -> float: ...

    @property
    def items(self) -> int: ...

    @property
    def complete(self) -> bool: ...

    @property
    def slots(self) -> int: ...

    @property
    def offsets(self) -> tuple[int, ...]: ...

    @property
    def message_format(self) -> MessageFormat: ...


LawT = TypeVar("LawT", bound=PhasedLaw)


class PhasedDevices(Devices[LawT]):
    """Devices of one horizon, each with a public phase; a subclass defines what they answer."""

    lasting = ("phase",)

    def __init__(self, law: LawT) -> None:
        super().__init__(law)
        self._phase = self._declare("phase", np.uint32, new=None, allowed=range(law.last_epoch))

    @abstractmethod
    def _answers(
        self,
        devices: NDArray[np.intp],
        answer: int,
        numbers: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        """Draw the messages of `devices`, in order: unsigned, same shape.

        `answer` is the number of answers that each has given before. `numbers` are their items,
        from 1, or 0 for none; never 0 if all users have an item.
        """

    @property
    def answers(self) -> int:
        return len(self.law.offsets)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for a user's stream in a horizon, from the weights of the mechanism.

        Phases are drawn before any value is read. The probability of the answers depends on the
        number of flips alone, even if values are chosen in view of earlier answers: all values have
        equally many points inside and outside their sets.
        """
        return Guarantee(
            epsilon=self.law.loss,
            delta=0.0,
            unit="stream",
            neighbors="any two streams of a user's values",
            trust=(
                "none; it holds against everyone who sees the reports; which devices exist, and "
                "when they are asked and report, is public"
            ),
            # With several slots, the slot of an answer is rarely the one that differs.
            basis="exact" if self.law.slots == 1 else "bound",
        )

    @property
    def rolling(self) -> RollingGuarantee | None:
        if self.answers > 1:
            return None
        return RollingGuarantee(self.law.last_epoch, self.law.loss)

    def due(self, epoch: int) -> NDArray[np.intp]:
        return np.concatenate([devices for devices, _ in self._due(epoch)])

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        if law.slots > 1:
            values = self._slots(epoch, values, present, rng)
        check_items(epoch, values, present, self.population, law.items)
        answers = []
        for devices, answer in self._due(epoch):
            here = devices if present is None else devices[present[devices]]
            numbers = values[here].astype(np.int64)
            if law.complete:
                random = 1 + rng.integers(0, law.items, len(here))
                numbers = np.where(numbers, numbers, random)
            answers.append(self._answers(here, answer, numbers, rng))
        self.epoch = epoch
        return np.concatenate(answers).astype(law.message_format.dtype)[:, None]

    def _slots(
        self,
        epoch: int,
        values: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Return the item in a random slot of each present device, 0 if it is empty."""
        slots, items = self.law.slots, self.law.items
        sets = set_rows(epoch, values, present, self.population, slots, items)
        found = sets[np.arange(len(sets)), rng.integers(0, slots, len(sets))]
        if present is None:
            return np.asarray(found, np.int64)
        numbers = np.zeros(self.population, np.int64)
        numbers[present] = found
        return numbers

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        last_epoch = self.law.last_epoch
        if self.population or count <= 1:
            phases = rng.integers(0, last_epoch, count, np.uint32)
        else:
            dealt = np.tile(np.arange(last_epoch, dtype=np.uint32), count // last_epoch)
            others = rng.permutation(last_epoch)[: count % last_epoch].astype(np.uint32)
            phases = rng.permutation(np.concatenate([dealt, others]))
        return {"phase": phases}

    def keep_phases(self, phases: NDArray[np.unsignedinteger]) -> None:
        """Replace the phases of the latest devices by those that they had before."""
        self._phase[len(self._phase) - len(phases) :] = phases
        self._index()

    def _index(self) -> None:
        self._by_phase = np.argsort(self._phase, kind="stable")
        counts = np.bincount(self._phase, minlength=self.law.last_epoch)
        self._ends = np.concatenate([[0], np.cumsum(counts)])

    def _due(self, epoch: int) -> Iterator[tuple[NDArray[np.intp], int]]:
        """Yield the devices that answer, and the number of answers each gives before this one."""
        last_epoch, offsets = self.law.last_epoch, self.law.offsets
        for number, offset in enumerate(offsets):
            phase = (epoch - 1 - offset) % last_epoch
            # Answers beyond the end of the horizon are given at its start, before all others.
            earlier = sum(phase + each >= last_epoch for each in offsets)
            devices = self._by_phase[self._ends[phase] : self._ends[phase + 1]]
            yield devices, (number + earlier) % len(offsets)


class SampledResponse(PhasedDevices[SampledResponseLaw]):
    """The devices of one horizon.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> from dpstream.randomizers.sampled_response.calibration import calibrate
    >>> rng = seeded_generator(1)
    >>> devices = SampledResponse(calibrate(SampledResponseParameters(1), last_epoch=4))
    >>> devices.enroll(1000, rng)
    >>> devices.report(1, np.ones(1000, np.int8), None, rng).shape
    (250, 1)
    """

    def __init__(self, law: SampledResponseLaw) -> None:
        super().__init__(law)
        # Bit i, counted from the lowest: the i-th answer in time is outside the set of its value.
        self._flips = self._declare("flips", np.uint8, new=None, allowed=range(1 << law.reports))
        self._index()

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        drawn = super()._draw(count, rng)
        reversed_ = self.law.flips.sample(count, rng, self.law.masses) < 0
        flips = np.packbits(reversed_, axis=1, bitorder="little")[:, 0]
        return {**drawn, "flips": flips}

    def _answers(
        self,
        devices: NDArray[np.intp],
        answer: int,
        numbers: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        inside = self._flips[devices] >> answer & 1 == 0
        return self.law.sets.draw(numbers - self.law.complete, inside, rng)
