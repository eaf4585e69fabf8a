"""A dyadic tree of changes for whoever trusts the shuffle stage to shuffle.

At the end of every interval of 2^h epochs a device looks at how its value changed over it: if it
became 1 it sends the word 2h, if it became 0 the word 2h + 1, and otherwise nothing. Of each order
h it sends so for its first k intervals with a change, and is frozen after that. Dummies hide who
sends what (`randomizers.cell_noise_law`), in different numbers by order; they are charged once for
the whole stream, and the error of the counts does not grow with the number of users.

A device that is silent at the end of an interval sends nothing for it, and the others speak for it.
One that was silent when the interval began takes the value it was last seen with for the one it had
then. What it had missed before it adds late, on top of those who spoke for it in time; so estimates
are unbiased where, among silent devices, as many become 1 as become 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from randomizers.cell_dummies import (
    DummyKind,
    ItemCells,
    dummies_in_cell,
    stage_dummies_in_cell,
)
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.count_min import trusted
from randomizers.counted_words import CountedWords
from randomizers.devices import Devices
from randomizers.dyadic import orders_due
from randomizers.future_rand import MAX_HORIZON
from randomizers.given_values import check_epoch, checked_booleans
from randomizers.guarantee import Guarantee
from randomizers.item_domains import StreamDomain
from randomizers.laws import Constants
from randomizers.shuffled_counts import MAX_CHANGES
from randomizers.shuffled_parameters import check_item_cells, check_shuffled_parameters
from topics.word_forms import WordForm

_WORD_DTYPE = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class ShuffledTreeParameters:
    """What a job says about a shuffled tree.

    Attributes:
        epsilon: the privacy loss of a user's whole stream.
        delta: the same.
        changes: how many changes of a user's value are followed.
        calibration: "exact", from the whole law of what is seen.
        dummies: of which kind, and whose.
        messages_per_user: the most that a job may ask of a user, over the whole horizon.
        domain: labels of items, or numbers, as for `ShuffledCountsParameters`; None: values are 0
            or 1. With items `randomizers.shuffled_item_tree` is what runs.
        cells: of items, as there.
        buckets: the same.

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    delta: float
    changes: int
    calibration: Literal["exact"] = "exact"
    dummies: DummyKind = "poisson"
    messages_per_user: float | None = None
    domain: StreamDomain | None = None
    cells: ItemCells | None = None
    buckets: int | None = None

    def __post_init__(self) -> None:
        check_shuffled_parameters(self.epsilon, self.delta, self.dummies, self.messages_per_user)
        check_item_cells(self.domain, self.cells, self.buckets, self.dummies)
        if type(self.changes) is not int or not 1 <= self.changes <= MAX_CHANGES:
            raise ValueError(
                f"changes is {self.changes!r}, must be a whole number from 1 to {MAX_CHANGES:,}"
            )
        if self.calibration != "exact":
            raise ValueError(f"calibration is {self.calibration!r}, must be 'exact'")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))


@dataclass(frozen=True, slots=True)
class ShuffledTreeLaw(Constants):
    """All constants of a job.

    Attributes:
        last_epoch: number of epochs.
        epsilon: of a user's whole stream.
        delta: the same.
        changes: k.
        noises: of a cell of each order, from 0 up; longer intervals are left out.

    Raises:
        ValueError: the fields contradict each other.
    """

    last_epoch: int
    epsilon: float
    delta: float
    changes: int
    noises: tuple[CellNoiseLaw, ...]

    def __post_init__(self) -> None:
        if type(self.last_epoch) is not int or not 1 <= self.last_epoch <= MAX_HORIZON:
            raise ValueError(f"{self.last_epoch!r} epochs, must be from 1 to 2^63")
        if type(self.changes) is not int or not 1 <= self.changes <= MAX_CHANGES:
            raise ValueError(f"{self.changes!r} changes, must be from 1 to {MAX_CHANGES:,}")
        if not 1 <= len(self.noises) <= self.last_epoch.bit_length():
            raise ValueError(
                f"{len(self.noises)} orders for {self.last_epoch} epochs, must be from 1 to "
                f"{self.last_epoch.bit_length()}"
            )
        if len({(noise.minimum, noise.dummies) for noise in self.noises}) > 1:
            raise ValueError("the dummies of the orders have different contributors")

    @property
    def horizon(self) -> int:
        """The epochs rounded up to a power of two."""
        return 1 << (self.last_epoch - 1).bit_length()

    @property
    def minimum(self) -> int:
        """The fewest contributors a window is released with."""
        return self.noises[0].minimum

    @property
    def cells(self) -> int:
        """Cells of an interval: without those for changes to 0 if the only change is one to 1."""
        return 1 if self.changes == 1 else 2

    def orders_due(self, epoch: int) -> int:
        """How many intervals that are followed end at an epoch."""
        return min(orders_due(epoch), len(self.noises))

    def capacity(self, epoch: int, contributors: int) -> int:
        """The most messages that so many contributors send at an epoch, dummies included."""
        due = self.noises[: self.orders_due(epoch)]
        dummies = sum(noise.most(1, contributors) for noise in due)
        return len(due) * contributors + self.cells * dummies

    def dummies_of_user(self, last_epoch: int) -> NDArray[np.float64]:
        """How many dummies a contributor sends on average, shape (last_epoch,)."""
        sent = np.zeros(last_epoch)
        for order, noise in enumerate(self.noises):
            sent[(1 << order) - 1 :: 1 << order] += self.cells * noise.per_contributor(1)
        return sent

    @property
    def most_sums(self) -> tuple[int, ...]:
        """The most messages, dummies apart, that a device sends of each order."""
        return tuple(
            min(self.changes, self.last_epoch >> order) for order in range(len(self.noises))
        )

    @property
    def messages(self) -> float:
        """The most messages expected of a user over the horizon."""
        return sum(self.most_sums) + float(self.dummies_of_user(self.last_epoch).sum())

    @property
    def dummies(self) -> str:
        """Who adds them, by which law."""
        return self.noises[0].dummies

    @property
    def word_form(self) -> WordForm:
        """Of messages: two words for each order."""
        return WordForm(_WORD_DTYPE, distinct=2 * len(self.noises))

    def stage_dummies(self, epoch: int, rng: np.random.Generator) -> CountedWords:
        """What the shuffle stage adds to a window; nothing unless dummies are its business."""
        words = np.zeros((self.orders_due(epoch), 2), np.int64)
        for order in range(len(words)):
            for cell in range(self.cells):
                words[order, cell] = stage_dummies_in_cell(self.noises[order], rng)
        return CountedWords.of_cells(words.ravel(), _WORD_DTYPE)


class ShuffledTree(Devices[ShuffledTreeLaw]):
    """The devices of one horizon.

    >>> from randomizers.shuffled_tree.calibration import calibrate
    >>> from randomizers.randomness import seeded_generator
    >>> law = calibrate(ShuffledTreeParameters(epsilon=1, delta=1e-6, changes=4), 64, minimum=1000)
    >>> devices, rng = ShuffledTree(law), seeded_generator(1)
    >>> devices.enrol(1000, rng)
    >>> sent = devices.report(1, np.ones(1000, np.int8), None, rng)
    >>> sent.values[:, 0].tolist()  # only intervals of one epoch are over
    [0, 1]

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ShuffledTreeLaw) -> None:
        super().__init__(law)
        orders = len(law.noises)
        self._dummies = [noise.of_contributors(1) for noise in law.noises]
        # The last one seen, at first 0; and that when the present interval of each order began.
        self._value = self._declare("value", np.int8)
        self._boundary = self._declare("boundary", np.int8, (orders,))
        # Intervals with a change, up to one more than are followed: then the device is frozen.
        self._sums = self._declare("sums", np.min_scalar_type(law.changes + 2), (orders,))

    @property
    def frozen(self) -> int:
        """Number of devices that had to leave out a change: they had made too many before."""
        return int(np.count_nonzero((self._sums > self.law.changes).any(axis=1)))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's whole stream, from the laws of all cells that it can touch.

        That one stream has as many messages of every order as it may have, and the other as many in
        other cells, is more than any two streams do unless k is small.
        """
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=self.law.delta,
            unit="stream",
            neighbours=(
                "any two streams of a user's values, reported at the same epochs (changes are "
                "followed up to the budget, after that the device freezes)"
            ),
            trust=trusted(self.law.noises[0]),
            basis="bound",
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> CountedWords:
        """Send what is due, and dummies.

        Returns:
            how often each word is sent, uint8 of width 1: 2 * order for intervals over which the
            value became 1, and 1 more for those over which it became 0.
        """
        check_epoch(epoch, after=self.epoch, last_epoch=self.law.last_epoch)
        now = checked_booleans(epoch, values, present, self.population)
        # Boundaries that were left out.
        for order in range(len(self.law.noises)):
            if (epoch - 1) >> order > self.epoch >> order:
                self._boundary[:, order] = self._value
        here = np.ones(self.population, np.bool_) if present is None else present
        self._value[here] = now[here]
        contributors = int(np.count_nonzero(here))
        words = np.zeros((self.law.orders_due(epoch), 2), np.int64)
        for order in range(len(words)):
            words[order] = self._sums_of(order, here)
            for cell in range(self.law.cells):
                words[order, cell] += dummies_in_cell(self._dummies[order], contributors, rng)
        self.epoch = epoch
        return CountedWords.of_cells(words.ravel(), _WORD_DTYPE)

    def _sums_of(self, order: int, here: NDArray[np.bool_]) -> tuple[int, int]:
        """Present devices that became 1 over an interval, and that became 0; begins the next."""
        changed = np.flatnonzero((self._value != self._boundary[:, order]) & here)
        self._boundary[:, order] = self._value
        made = self._sums[changed, order]
        self._sums[changed, order] = np.minimum(made, self.law.changes) + 1
        followed = self._value[changed[made < self.law.changes]]
        up = int(np.count_nonzero(followed))
        # Whoever becomes 0 has become 1 before, if only while it was silent: that were two changes.
        return up, len(followed) - up if self.law.cells == 2 else 0
