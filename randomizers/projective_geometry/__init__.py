"""Counts of items without a trusted party, as accurate as one private message allows.

Items and messages are points of a projective space over a field of q elements
(`dpstream.randomizers.point_spaces`). The set S_x of an item x is a hyperplane: all points y with
<x, y> = 0, about 1/q of all points. A message in S_x has e^epsilon times the probability of a
message outside. Any two sets have the same number of points in common, so every other item
contributes equally to the reports in S_x. With q near e^epsilon + 1 the variance per user is that
of the best local protocol, 4 e^epsilon / (e^epsilon - 1)^2. Point 0 encodes "no item".

Epochs are independent, and each is charged: T epochs lose T epsilon. A user has up to k items in k
slots; the device reports one slot, drawn uniformly.

A domain too large to be listed is searched through prefixes
(`dpstream.randomizers.cell_codes.prefixes`). At every epoch a device draws one of a few prefix
lengths, which is public, and reports the cell of its item's prefix of this length.

Reference: Feldman et al., *Private Frequency Estimation via Projective Geometry*, ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.prefixes import PrefixCells
from dpstream.randomizers.composed import ComposedLaw, log_rounded_up
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.given_sets import set_rows
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import Guarantee, held_by_a_user, rounded_up, shuffle_to_mix
from dpstream.randomizers.item_domains import Bits, ItemDomain, Strings, domain_size
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import (
    check_approximate,
    check_domain,
    check_epsilon,
    check_items_held,
)
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.topics.message_formats import MessageFormat, narrowest

# The guarantee with shuffling is stated if its epsilon is below this fraction of the local loss.
_WORTH_SAYING = 0.99


@dataclass(frozen=True, slots=True)
class ProjectiveGeometryParameters:
    """Parameters of projective geometry.

    Attributes:
        epsilon: Privacy loss for a user's set at one epoch, against all parties.
        domain: At most 2^20 listed items, or any number of integers or strings.
        items: k, the maximum number of items per user and epoch.
        delta: Delta of the additional guarantee, which trusts the shuffler to shuffle. The
            guarantee of the reports themselves has delta 0.
    """

    epsilon: float
    domain: ItemDomain
    items: int = 1
    delta: float = 1e-6

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_approximate(self.epsilon, self.delta)
        check_items_held(self.items, self.domain)
        if not isinstance(self.domain, Bits | Strings):
            check_domain(domain_size(self.domain))
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class ProjectiveGeometryLaw(Constants):
    """All constants of a job.

    Attributes:
        slots: k, the maximum number of items per user and epoch.
        order, coordinates: q and t, the numbers of field elements and of a point's coordinates.
        odds: Weights of each point in the item's set and of each point outside.
        shuffled_epsilon: Epsilon of one epoch if the shuffler is trusted to shuffle.
        shuffled_stream_epsilon: Epsilon of all epochs together; both are with `shuffled_delta`.
        prefixes: Prefix lengths and the cells of each; None if every item has its own point.
    """

    items: int
    slots: int
    order: int
    coordinates: int
    minimum: int
    last_epoch: int
    odds: ComposedLaw
    shuffled_epsilon: float
    shuffled_stream_epsilon: float
    shuffled_delta: float
    prefixes: PrefixCells | None = None

    def __post_init__(self) -> None:
        if self.prefixes is None:
            check_domain(self.items)
        elif self.items != 1 << self.prefixes.bits:
            raise ValueError(
                f"'items' is {self.items:,}; expected 2^{self.prefixes.bits}, the number of "
                f"{self.prefixes.bits}-bit items"
            )
        if not 1 <= self.slots <= self.items:
            raise ValueError(f"'slots' is {self.slots}; expected 1 to {self.items:,}")
        if self.odds.k != 1 or self.odds.weights[0] <= self.odds.weights[1]:
            raise ValueError(
                f"odds are {self.odds.weights}; expected two weights, the larger first"
            )
        if self.minimum < 1 or self.last_epoch < 1:
            raise ValueError(
                f"got {self.minimum} contributors and {self.last_epoch} epochs; expected at least "
                "1 of each"
            )
        most = max(self.cells)
        if self.space.points <= most:
            raise ValueError(
                f"the space has {self.space.points:,} points; expected more than {most:,}: one for "
                "each item or cell and one for 'no item'"
            )

    def of_one_epoch(self) -> ProjectiveGeometryLaw:
        """Return the constants for one epoch; jobs that differ only in their horizon share them."""
        return replace(self, last_epoch=1, shuffled_stream_epsilon=self.shuffled_epsilon)

    @property
    def space(self) -> PointSpace:
        return PointSpace(self.order, self.coordinates)

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of cells per level: all items, or the cells of each prefix length."""
        if self.prefixes is None:
            return (self.items,)
        return tuple(level.buckets for level in self.prefixes.levels)

    @property
    def words(self) -> int:
        """Number of distinct messages: the points of all levels, one level after the other."""
        return self.space.points * len(self.cells)

    @property
    def message_weights(self) -> tuple[int, int]:
        """Total weight of all points in the item's set, and of all points outside."""
        own, other = self.odds.weights
        return own * self.space.block, other * self.space.outside

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """Probabilities that a message is in an item's set, if its user has the item and if not."""
        reported = Fraction(self.message_weights[0], sum(self.message_weights))
        elsewhere = self.space.elsewhere(reported)
        return (reported + (self.slots - 1) * elsewhere) / self.slots, elsewhere

    def epsilon_of(self, epochs: int) -> float:
        return log_rounded_up(Fraction(*self.odds.weights), epochs)

    @property
    def message_format(self) -> MessageFormat:
        return MessageFormat(narrowest(self.words), distinct=self.words)


class ProjectiveGeometry(Devices[ProjectiveGeometryLaw]):
    """Devices of one horizon. They draw nothing in advance.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> odds = ComposedLaw((10**30, 1))
    >>> law = ProjectiveGeometryLaw(2, 1, 2, 2, 1, 1, odds, 1.0, 1.0, 1e-6)
    >>> devices = ProjectiveGeometry(law)
    >>> devices.enroll(3, seeded_generator(1))
    >>> devices.report(1, np.array([[0], [1], [2]]), None, seeded_generator(2)).tolist()
    [[0], [1], [2]]
    """

    @cached_property
    def _space(self) -> PointSpace:
        return self.law.space

    @property
    def guarantee(self) -> Guarantee:
        law = self.law
        return Guarantee(
            epsilon=law.epsilon_of(1),
            delta=0.0,
            unit="epoch",
            neighbors=held_by_a_user(law.slots),
            trust=f"none; {self._shuffled}" if self._shuffling_helps else "none",
            # With several slots, the reported slot is rarely the one that differs.
            basis="exact" if law.slots == 1 else "bound",
            stream_epsilon=law.epsilon_of(law.last_epoch),
        )

    @property
    def if_shuffled(self) -> Guarantee | None:
        """Additional guarantee if the shuffler is trusted; None if it would hardly be better."""
        if not self._shuffling_helps:
            return None
        law = self.law
        return replace(
            self.guarantee,
            epsilon=law.shuffled_epsilon,
            delta=law.shuffled_delta,
            trust=shuffle_to_mix(law.minimum),
            basis="bound",
            stream_epsilon=law.shuffled_stream_epsilon,
        )

    @property
    def _shuffling_helps(self) -> bool:
        return self.law.shuffled_epsilon < _WORTH_SAYING * self.law.epsilon_of(1)

    @property
    def _shuffled(self) -> str:
        law = self.law
        epochs = f"{rounded_up(law.shuffled_epsilon)} at every epoch"
        if law.last_epoch > 1:
            epochs += f" and {rounded_up(law.shuffled_stream_epsilon)} for the whole stream"
        return (
            f"against an observer of shuffled reports only, epsilon is {epochs}, with delta "
            f"{rounded_up(law.shuffled_delta)}; this trusts {shuffle_to_mix(law.minimum)}"
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        sets = set_rows(epoch, values, present, self.population, law.slots, law.items)
        items = sets[:, 0]
        if law.slots > 1:
            items = sets[np.arange(len(sets)), rng.integers(0, law.slots, len(sets))]
        levels = np.zeros(len(items), np.int64)
        if law.prefixes is not None:
            levels = rng.integers(0, len(law.cells), len(items))
            cells = law.prefixes.encode(items) - np.array(law.prefixes.starts[:-1])
            items = np.where(items == 0, 0, 1 + cells[np.arange(len(items)), levels])
        inside = draw_categories(law.message_weights, len(items), rng) == 0
        words = levels * self._space.points + self._space.draw(items, inside, rng)
        self.epoch = epoch
        return words.astype(law.message_format.dtype)[:, None]
