"""Shuffled counts of numbers over time: `shuffled_item_counts` on a tree of values.

A device reports its value on every level of a tree (`dpstream.randomizers.cell_codes.levels`): it
sends one message to the cell of each node that contains the value. Values follow the rules for
items: values that users left have separate cells, and a boosted change is boosted on every level.
So levels can be combined, and ranges and quantiles at every epoch follow from few cells.

Devices send messages about the root only if there is no boost. The root then costs almost no
privacy, since replacing one value with another does not change it. With a boost it would reveal in
which epochs a value changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, trusted
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import MAX_HORIZON
from dpstream.randomizers.shuffled_counts import MAX_BOOST, MAX_CHANGES
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import (
    NEIGHBORS,
    check_noises,
    item_capacity,
    stage_dummies_of,
)
from dpstream.topics.message_formats import MessageFormat


@dataclass(frozen=True, slots=True)
class ShuffledLevelCountsLaw(Constants):
    """All constants of a job; its devices are `ShuffledItemCounts`.

    >>> from dpstream.randomizers.shuffled_counts.shuffled_level_counts.calibration import calibrate
    >>> from dpstream.randomizers.item_domains import Numbers
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
    >>> from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCounts
    >>> requested = ShuffledCountsParameters(1.0, 1e-6, domain=Numbers(0, 80, 8), dummies="shuffle")
    >>> law = calibrate(requested, last_epoch=8, minimum=1000)
    >>> devices, rng = ShuffledItemCounts(law), seeded_generator(1)
    >>> devices.enroll(1000, rng)
    >>> sent = devices.report(1, np.full(1000, 5), None, rng)
    >>> law.levels.branching, law.encode(np.array([5]))[0].tolist(), sent.counts.max()
    ((8,), [0, 5], np.uint32(1000))

    Attributes:
        epsilon, delta: Privacy loss of a user's whole stream.
        max_changes, boost: Number of boosted changes, and of messages for each; 0 without boost.
        held: Noise of each cell for current values.
        left: Noise of each cell for previous values of users who change; None without boost.
    """

    last_epoch: int
    levels: Levels
    epsilon: float
    delta: float
    max_changes: int
    boost: int
    held: CellNoiseLaw
    left: CellNoiseLaw | None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("last_epoch", 1, MAX_HORIZON),
            ("max_changes", 0, MAX_CHANGES),
            ("boost", 0, MAX_BOOST),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} is {value!r}; expected {least} to {most:,}")
        check_noises(self)

    @property
    def size(self) -> int:
        return self.levels.size

    @property
    def noises(self) -> tuple[CellNoiseLaw, ...]:
        return (self.held,) if self.left is None else (self.held, self.left)

    @property
    def rooted(self) -> bool:
        return not self.boost

    @property
    def levels_sent(self) -> int:
        """Number of messages about a value at an epoch, excluding a boost."""
        return self.levels.messages - (not self.rooted)

    @property
    def apart(self) -> int:
        first, last = self.levels.encode(np.array([1, self.size])).tolist()
        return len(set(first) - set(last)) or 1

    @property
    def words(self) -> int:
        return self.levels.cells - (not self.rooted)

    @property
    def noisy_cells(self) -> int:
        return self.words

    @property
    def message_format(self) -> MessageFormat:
        words = self.words * len(self.noises)
        return MessageFormat(np.min_scalar_type(words - 1).newbyteorder("<"), distinct=words)

    def capacity(self, epoch: int, contributors: int) -> int:
        return item_capacity(self, self.levels_sent, contributors)

    @property
    def dummies_per_user(self) -> float:
        return sum(noise.per_contributor(self.words) for noise in self.noises)

    @property
    def messages(self) -> float:
        boosted = self.boost * max(0, 2 * self.max_changes - 1)
        real = self.levels_sent * (self.last_epoch + boosted)
        return real + self.last_epoch * self.dummies_per_user

    @property
    def dummies(self) -> str:
        return self.held.dummies

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee for a whole stream; see `dpstream.randomizers.accounting.level_streams`.

        With a boost, levels are charged as in `dpstream.randomizers.accounting.item_streams`.
        """
        return Guarantee(
            epsilon=self.epsilon,
            delta=self.delta,
            unit="stream",
            neighbors=NEIGHBORS,
            trust=trusted(self.held),
            basis="bound",
        )

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cells of values (numbered from 1) on all levels sent: (values, levels)."""
        without = int(not self.rooted)
        return self.levels.encode(items)[:, without:] - without

    def messages_of(
        self, items: NDArray[np.int64], kind: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        return self.encode(items).ravel() + kind * self.words

    def stage_dummies(self, epoch: int, rng: np.random.Generator) -> CountedMessages:
        return stage_dummies_of(self, rng)
