"""Shuffled counts of items over time: `shuffled_counts` with separate messages for every item.

At every epoch a device sends one message about its item. For each of its first k changes to another
item, it sends r more messages about the new item, and r messages about the old one, in separate
cells for items that users left. Without a boost, a hash is drawn for every message
(`dpstream.randomizers.affine_hashes`). With a boost, or with as many buckets as items, messages are
not hashed. Dummies are uniform over the possible messages of each kind.

No device has an item before its first epoch; the first item counts as a change. Absent devices are
handled as in `shuffled_counts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers import least_delta
from dpstream.randomizers.affine_hashes import AffineHashes
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, trusted
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.dummies import PoissonDummies
from dpstream.randomizers.given_values import check_epoch, reject_wrong
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import MAX_HORIZON, MOST_ITEMS
from dpstream.randomizers.shuffled_counts import MAX_BOOST, MAX_CHANGES
from dpstream.topics.message_formats import MessageFormat

MOST_TABULAR: Final = 1 << 20
"""Maximum number of distinct messages that are counted in tables."""
NEIGHBORS = "any two streams of a user's items, reported at the same epochs"
# State of a device's last item.
_KNOWN, _ABSENT, _NEW = 0, 1, 2


class ItemStreamLaw(Protocol):
    @property
    def last_epoch(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def max_changes(self) -> int: ...

    @property
    def boost(self) -> int: ...

    @property
    def noises(self) -> tuple[CellNoiseLaw, ...]:
        """Noise for current items and, with a boost, for items that users left."""

    @property
    def noisy_cells(self) -> int:
        """Total noise over all messages of a kind, as a multiple of the noise of one cell."""

    @property
    def apart(self) -> int:
        """Number of cells that the first item raises and the last item does not."""

    @property
    def words(self) -> int:
        """Number of distinct messages of each kind."""

    def capacity(self, epoch: int, contributors: int) -> int: ...

    @property
    def message_format(self) -> MessageFormat: ...

    @property
    def guarantee(self) -> Guarantee: ...

    def messages_of(
        self, items: NDArray[np.int64], kind: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return messages about current items (kind 0) or items that users left (kind 1)."""


@dataclass(frozen=True, slots=True)
class ShuffledItemCountsLaw(Constants):
    """All constants of a job.

    Attributes:
        max_changes, boost: k boosted changes, each with r more messages; 0 without a boost.
        buckets: Number of hash buckets s, a prime.
        held: Noise of the messages about a current item.
        left: Noise of the messages about an item that users left; None without a boost.
    """

    last_epoch: int
    size: int
    epsilon: float
    delta: float
    max_changes: int
    boost: int
    buckets: int
    held: CellNoiseLaw
    left: CellNoiseLaw | None

    def __post_init__(self) -> None:
        for name, most in (
            ("last_epoch", MAX_HORIZON),
            ("size", MOST_ITEMS),
            ("max_changes", MAX_CHANGES),
            ("boost", MAX_BOOST),
        ):
            value, least = getattr(self, name), int(name in ("last_epoch", "size"))
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} is {value!r}; expected {least} to {most:,}")
        check_noises(self)
        if AffineHashes.for_items(self.buckets, self.size).overlap and self.boost:
            raise ValueError(f"boost is {self.boost}; expected 0 for items that share buckets")

    @property
    def noises(self) -> tuple[CellNoiseLaw, ...]:
        return (self.held,) if self.left is None else (self.held, self.left)

    @property
    def hashes(self) -> AffineHashes:
        return AffineHashes.for_items(self.buckets, self.size)

    @property
    def apart(self) -> int:
        return 1

    @property
    def words(self) -> int:
        return self.hashes.words

    @property
    def noisy_cells(self) -> int:
        return self.buckets

    def capacity(self, epoch: int, contributors: int) -> int:
        return item_capacity(self, 1, contributors)

    @property
    def message_format(self) -> MessageFormat:
        words = self.words * len(self.noises)
        dtype = np.min_scalar_type(words - 1).newbyteorder("<")
        return MessageFormat(dtype, distinct=words if words <= MOST_TABULAR else None)

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee for a whole stream; see `dpstream.randomizers.accounting.item_streams`."""
        overlapping = self.hashes.overlap > 0
        exact = not self.boost and not overlapping and self.size > 1
        return Guarantee(
            epsilon=self.epsilon,
            delta=self.delta,
            unit="stream",
            neighbors=NEIGHBORS,
            trust=trusted(self.held),
            basis="exact" if exact else "bound",
        )

    @property
    def dummies_per_user(self) -> float:
        return sum(noise.per_contributor(self.buckets) for noise in self.noises)

    @property
    def dummy_messages(self) -> float:
        return self.last_epoch * self.dummies_per_user

    @property
    def messages(self) -> float:
        """Maximum expected number of messages per horizon from a user who always has an item."""
        boosted = self.boost * max(0, 2 * self.max_changes - 1)
        return self.last_epoch + boosted + self.dummy_messages

    @property
    def dummies(self) -> str:
        return self.held.dummies

    def stage_dummies(self, epoch: int, rng: np.random.Generator) -> CountedMessages:
        return stage_dummies_of(self, rng)

    def messages_of(
        self, items: NDArray[np.int64], kind: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        return self.hashes.draw(items - 1, rng) + kind * self.words


class ShuffledItemCounts(Devices[ItemStreamLaw]):
    """Devices of one horizon.

    >>> from dpstream.randomizers.shuffled_counts.shuffled_item_counts.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
    >>> requested = ShuffledCountsParameters(1.0, 1e-6, 2, domain=("a", "b"), cells="count_min")
    >>> law = calibrate(requested, last_epoch=64, minimum=1000)
    >>> devices, rng = ShuffledItemCounts(law), seeded_generator(1)
    >>> devices.enroll(1000, rng)
    >>> sent = devices.report(1, np.full(1000, 2), None, rng)
    >>> (sent.counts - 1000 * (1 + law.boost) * (sent.values[:, 0] == 1)).round(-3).tolist()
    [5000, 4000, 1000, 1000]
    """

    def __init__(self, law: ItemStreamLaw) -> None:
        super().__init__(law)
        self._dummies = [_poisson(noise, law.noisy_cells) for noise in law.noises]
        # The last reported item, 0 for none. Without a boost, all arrays are unused.
        self._item = self._declare("item", np.uint32)
        # Last report: 0 at the last epoch, 1 before it, 2 never.
        self._seen = self._declare("seen", np.uint8, new=_NEW)
        # Number of changes, capped at one above `max_changes`.
        self._changes = self._declare("changes", np.min_scalar_type(law.max_changes + 2))

    @property
    def assumed_contributors(self) -> int:
        return self.law.noises[0].contributors or 0

    def least_delta(self) -> float:
        """Bound delta from below by comparing two items, constant or alternating."""
        law = self.law
        epsilon = self.guarantee.epsilon
        turns = (min(law.max_changes, law.last_epoch) + 1) // 2
        tests = [(law.last_epoch, law.last_epoch + law.boost), (turns, turns * (law.boost + 1))]
        return max(
            least_delta.of_cells(law.noises[0], cells * law.apart, shift * law.apart, epsilon)
            for cells, shift in tests
            if cells
        )

    @property
    def exhausted(self) -> int:
        return int(np.count_nonzero(self._changes > self.law.max_changes))

    @property
    def guarantee(self) -> Guarantee:
        return self.law.guarantee

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger] | CountedMessages:
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        values = checked_items(epoch, values, present, self.population, law.size)
        now = values if present is None else values[present]
        held, left = now[now > 0], np.zeros(0, np.int64)
        if law.boost:
            came, gone = self._boosted(epoch, now, present)
            held = np.concatenate([held, np.repeat(came, law.boost)])
            left = np.repeat(gone, law.boost)
        self.epoch = epoch
        real = [law.messages_of(items, kind, rng) for kind, items in enumerate((held, left))]
        form = law.message_format
        dummies = draw_dummies(law, self._dummies, len(now), rng)
        words = np.concatenate([*(each.astype(form.dtype) for each in real), dummies])
        if form.distinct is not None and form.distinct <= len(words):
            return CountedMessages.of_cells(np.bincount(words, minlength=1), form.dtype)
        return words[:, None]

    def _boosted(
        self, epoch: int, now: NDArray[np.int64], present: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if epoch > self.epoch + 1:
            self._seen[self._seen == _KNOWN] = _ABSENT
        here = np.ones(self.population, np.bool_) if present is None else present
        before, made = self._item[here].astype(np.int64), self._changes[here]
        changed = before != now
        boosted = changed & (self._seen[here] != _ABSENT) & (made < self.law.max_changes)
        self._changes[here] = np.minimum(made + changed, self.law.max_changes + 1)
        self._item[here] = now
        self._seen[here] = _KNOWN
        self._seen[~here] = _ABSENT
        came, gone = now[boosted], before[boosted]
        return came[came > 0], gone[gone > 0]


def checked_items(
    epoch: int,
    values: NDArray[np.integer],
    present: NDArray[np.bool_] | None,
    population: int,
    size: int,
) -> NDArray[np.int64]:
    if values.shape != (population,) or values.dtype.kind not in "iu":
        raise ValueError(
            f"values are {values.dtype} of shape {values.shape}; expected integers of shape "
            f"({population},): one item per device"
        )
    wrong = (values < 0) | (values > size)
    reject_wrong(epoch, values, wrong, present, f"from 0 to {size}")
    return values.astype(np.int64, copy=False)


def check_noises(law: ItemStreamLaw) -> None:
    """Raise `ValueError` unless the noises are Poisson, fit the boost and share one minimum."""
    if len({law.boost == 0, law.max_changes == 0, len(law.noises) == 1}) > 1:
        raise ValueError(
            f"boost is {law.boost} and max_changes is {law.max_changes}; expected both positive "
            "with noise for 'left', or both 0 without it"
        )
    for noise in law.noises:
        if noise.dummies not in ("poisson", "shuffle") or noise.minimum != law.noises[0].minimum:
            raise ValueError(
                f"noise has {noise.dummies} dummies and minimum {noise.minimum}; expected poisson "
                f"or shuffle dummies and minimum {law.noises[0].minimum}"
            )


def item_capacity(law: ItemStreamLaw, levels: int, contributors: int) -> int:
    """Return the maximum number of messages: 1 + 2r per contributor and level, plus dummies."""
    dummies = sum(noise.most(law.noisy_cells, contributors) for noise in law.noises)
    return contributors * levels * (1 + 2 * law.boost) + dummies


def stage_dummies_of(law: ItemStreamLaw, rng: np.random.Generator) -> CountedMessages:
    dummies = [noise.of_stage(law.noisy_cells) for noise in law.noises]
    words, counts = np.unique(draw_dummies(law, dummies, 1, rng), return_counts=True)
    return CountedMessages(words[:, None], counts.astype(np.uint32))


def draw_dummies(
    law: ItemStreamLaw,
    dummies: Sequence[PoissonDummies | None],
    contributors: int,
    rng: np.random.Generator,
) -> NDArray[np.unsignedinteger]:
    """Draw the dummies of `contributors` contributors, uniform over the messages of each kind."""
    dtype = law.message_format.dtype
    drawn = [np.zeros(0, dtype)]
    for kind, each in enumerate(dummies):
        number = 0 if each is None else each.total(contributors, rng)
        first = kind * law.words
        drawn.append(rng.integers(first, first + law.words, number, dtype.type))
    return np.concatenate(drawn).astype(dtype, copy=False)


def _poisson(noise: CellNoiseLaw, cells: int) -> PoissonDummies | None:
    dummies = noise.of_contributors(cells)
    assert dummies is None or isinstance(dummies, PoissonDummies)
    return dummies
