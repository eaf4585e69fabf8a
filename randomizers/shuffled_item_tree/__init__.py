"""A shuffled tree of items over time: `randomizers.shuffled_tree`, with a word for every item.

At the end of every interval over which a device came to another item it sends a word of the new
item, and one of the old item among words kept apart for items that were left. Every order of
intervals has words of its own, of both kinds. Every message draws a hash of its own (as in
`randomizers.affine_hashes`), or, with as many buckets as there are items, has none.

Nobody has an item before its first epoch; the first one is a change, and leaves none. So with one
change nothing is ever left. A change counts also if it is not sent, as the device was silent at the
end of the interval. What is said there of devices that were silent holds here too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from randomizers.affine_hashes import AffineHashes
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.count_min import trusted
from randomizers.counted_words import CountedWords
from randomizers.devices import Devices
from randomizers.dummies import PoissonDummies
from randomizers.dyadic import orders_due
from randomizers.future_rand import MAX_HORIZON
from randomizers.given_values import check_epoch
from randomizers.guarantee import Guarantee
from randomizers.laws import Constants
from randomizers.shuffled_counts import MAX_CHANGES
from randomizers.shuffled_item_counts import MOST_TABULAR, checked_items
from randomizers.shuffled_parameters import MOST_ITEMS
from topics.word_forms import WordForm


@dataclass(frozen=True, slots=True)
class ShuffledItemTreeLaw(Constants):
    """All constants of a job.

    Attributes:
        last_epoch: number of epochs.
        size: how many items there are.
        epsilon: of a user's whole stream.
        delta: the same.
        changes: k, the first item included.
        orders: how many are followed; longer intervals are left out.
        buckets: s, a prime.
        noise: the dummies among the words of an item, of each order and kind.

    Raises:
        ValueError: the fields contradict each other.
    """

    last_epoch: int
    size: int
    epsilon: float
    delta: float
    changes: int
    orders: int
    buckets: int
    noise: CellNoiseLaw

    def __post_init__(self) -> None:
        for name, most in (
            ("last_epoch", MAX_HORIZON),
            ("size", MOST_ITEMS),
            ("changes", MAX_CHANGES),
            ("orders", self.last_epoch.bit_length()),
        ):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} is {value!r}, must be from 1 to {most:,}")
        if self.noise.dummies not in ("poisson", "shuffle"):
            raise ValueError(f"{self.noise.dummies} dummies, must be poisson or shuffle")
        AffineHashes.for_items(self.buckets, self.size)

    @property
    def horizon(self) -> int:
        """The epochs rounded up to a power of two."""
        return 1 << (self.last_epoch - 1).bit_length()

    @property
    def hashes(self) -> AffineHashes:
        """What items are hashed with."""
        return AffineHashes.for_items(self.buckets, self.size)

    @property
    def kinds(self) -> int:
        """Kinds of words of an order: of items that users came to, and left."""
        return 1 if self.changes == 1 else 2

    @property
    def dummies(self) -> str:
        """Who adds them."""
        return self.noise.dummies

    @property
    def word_form(self) -> WordForm:
        """Of messages: order by order, words of items come to, then of items left."""
        words = self.hashes.words * self.kinds * self.orders
        dtype = np.min_scalar_type(words - 1).newbyteorder("<")
        return WordForm(dtype, distinct=words if words <= MOST_TABULAR else None)

    def orders_due(self, epoch: int) -> int:
        """How many intervals that are followed end at an epoch."""
        return min(orders_due(epoch), self.orders)

    def capacity(self, epoch: int, contributors: int) -> int:
        """The most messages that so many contributors send at an epoch, dummies included."""
        draws = self.orders_due(epoch) * self.kinds
        return draws * (contributors + self.noise.most(self.buckets, contributors))

    @property
    def most_sums(self) -> tuple[int, ...]:
        """The most intervals with a change that a device reports, by order."""
        return tuple(min(self.changes, self.last_epoch >> order) for order in range(self.orders))

    @property
    def most_messages(self) -> int:
        """The most messages of a device, dummies apart: the first item leaves none."""
        return 2 * sum(self.most_sums) - self.orders

    def dummies_of_user(self, last_epoch: int) -> NDArray[np.float64]:
        """How many dummies a contributor sends on average, shape (last_epoch,)."""
        due = np.array([self.orders_due(epoch) for epoch in range(1, last_epoch + 1)])
        sent: NDArray[np.float64] = due * self.kinds * self.noise.per_contributor(self.buckets)
        return sent

    @property
    def dummy_messages(self) -> float:
        """Over the horizon, on average."""
        return float(self.dummies_of_user(self.last_epoch).sum())

    @property
    def messages(self) -> float:
        """The most messages expected of a user over the horizon."""
        return self.most_messages + self.dummy_messages

    def stage_dummies(self, epoch: int, rng: np.random.Generator) -> CountedWords:
        """What the shuffle stage adds to a window; nothing unless dummies are its business."""
        drawn = self.draw_dummies(self.noise.of_stage(self.buckets), epoch, 1, rng)
        words, counts = np.unique(drawn, return_counts=True)
        return CountedWords(words[:, None], counts.astype(np.uint32))

    def draw_dummies(
        self,
        dummies: PoissonDummies | None,
        epoch: int,
        contributors: int,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        """Words, uniform over those of each kind that is due, as many contributors send them."""
        dtype, words = self.word_form.dtype, self.hashes.words
        drawn = [np.zeros(0, dtype)]
        for first in range(0, self.orders_due(epoch) * self.kinds * words, words):
            number = 0 if dummies is None else dummies.total(contributors, rng)
            drawn.append(rng.integers(first, first + words, number, dtype.type))
        return np.concatenate(drawn).astype(dtype, copy=False)


class ShuffledItemTree(Devices[ShuffledItemTreeLaw]):
    """The devices of one horizon.

    >>> from randomizers.shuffled_item_tree.calibration import calibrate
    >>> from randomizers.randomness import seeded_generator
    >>> from randomizers.shuffled_tree import ShuffledTreeParameters
    >>> asked = ShuffledTreeParameters(1.0, 1e-6, 1, domain=("a", "b"), cells="count_min")
    >>> law = calibrate(asked, last_epoch=64, minimum=1000)
    >>> devices, rng = ShuffledItemTree(law), seeded_generator(1)
    >>> devices.enrol(1000, rng)
    >>> sent = devices.report(1, np.full(1000, 2), None, rng)
    >>> (sent.counts / law.noise.mean).round().tolist()  # a thousand are real
    [1.0, 6.0]

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ShuffledItemTreeLaw) -> None:
        super().__init__(law)
        dummies = law.noise.of_contributors(law.buckets)
        assert dummies is None or isinstance(dummies, PoissonDummies)
        self._dummies = dummies
        # The last one seen, 0 for none; and that when the present interval of each order began.
        self._item = self._declare("item", np.uint32)
        self._boundary = self._declare("boundary", np.uint32, (law.orders,))
        # Intervals with a change, up to one more than are followed: then the device is frozen.
        self._sums = self._declare("sums", np.min_scalar_type(law.changes + 2), (law.orders,))

    @property
    def frozen(self) -> int:
        """Number of devices that had to leave out a change: they had made too many before."""
        return int(np.count_nonzero((self._sums > self.law.changes).any(axis=1)))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's whole stream.

        One stream's messages are all charged for, as well as the other's.
        """
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=self.law.delta,
            unit="stream",
            neighbours=(
                "any two streams of a user's items, reported at the same epochs (changes are "
                "followed up to the budget, after that the device freezes)"
            ),
            trust=trusted(self.law.noise),
            basis="bound",
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger] | CountedWords:
        """Send what is due, and dummies; counted where there are few different words."""
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        now = checked_items(epoch, values, present, self.population, law.size)
        for order in range(law.orders):
            if (epoch - 1) >> order > self.epoch >> order:
                self._begin(order)
        here = np.ones(self.population, np.bool_) if present is None else present
        self._item[here] = now[here]
        form, real = law.word_form, []
        for order in range(law.orders_due(epoch)):
            for kind, items in enumerate(self._changed(order, here)[: law.kinds]):
                first = (order * law.kinds + kind) * law.hashes.words
                real.append((law.hashes.draw(items - 1, rng) + first).astype(form.dtype))
        self.epoch = epoch
        contributors = int(np.count_nonzero(here))
        dummies = law.draw_dummies(self._dummies, epoch, contributors, rng)
        words = np.concatenate([*real, dummies])
        if form.distinct is not None and form.distinct <= len(words):
            return CountedWords.of_cells(np.bincount(words, minlength=1), form.dtype)
        return words[:, None]

    def _changed(
        self, order: int, here: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Items that present devices came to over an interval, and that they left."""
        before = self._boundary[:, order].astype(np.int64)
        followed = self._begin(order) & here
        came, gone = self._item[followed].astype(np.int64), before[followed]
        return came[came > 0], gone[gone > 0]

    def _begin(self, order: int) -> NDArray[np.bool_]:
        """Begin an interval; which devices changed over the one before, and are not frozen."""
        changed = self._item != self._boundary[:, order]
        made = self._sums[:, order]
        followed: NDArray[np.bool_] = changed & (made < self.law.changes)
        self._sums[:, order] = np.minimum(made + changed, self.law.changes + 1)
        self._boundary[:, order] = self._item
        return followed
