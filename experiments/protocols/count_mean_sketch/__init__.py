"""Count-mean sketch whose bits are sent as fragments, for comparison with other protocols.

The sketch is for domains too large to send a bit for every item. A device draws one of k rows,
which is public. The row's hash maps the device's item to one of m buckets. Each of the m bits of
the bucket's one-hot encoding is reversed with the same small probability. Each bit that is then 1
is sent as a message: the row and the bit's bucket. A user without an item has only bits that are 0.

A message is hidden only among the messages of the same row, from about n / k of n contributors; the
paper assumes n. The number of other users in a row is random, and delta includes the probability
that it is too small.

Reference: Erlingsson et al., *Encode, Shuffle, Analyze Privacy Revisited*, 2020, Section VII.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
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
from dpstream.randomizers.pairwise_hash import PairwiseHash
from dpstream.randomizers.parameter_checks import check_approximate, check_domain, check_items_held
from dpstream.topics.message_formats import MessageFormat, narrowest
from experiments.protocols.fragments import FragmentsLaw, Neighbors

ROWS: Final = 1 << 10
BUCKETS: Final = 1 << 16
"""Numbers of rows and buckets in the paper."""

MOST_CELLS: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class CountMeanSketchParameters:
    """Parameters of the count-mean sketch.

    Attributes:
        epsilon, delta: Privacy loss for a user's item at one epoch, after shuffling.
        domain: Items, at most 2^20.
        rows: k, the number of rows.
        buckets: m, the number of buckets per row.
    """

    epsilon: float
    delta: float
    domain: ItemDomain
    rows: int = ROWS
    buckets: int = BUCKETS
    neighbors: Neighbors = "replacement"

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        check_items_held(1, self.domain)
        check_domain(domain_size(self.domain))
        check_shape(self.rows, self.buckets)
        if self.neighbors not in ("replacement", "removal"):
            raise ValueError(
                f"neighbors is {self.neighbors!r}; expected 'replacement' or 'removal'"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))


def check_shape(rows: int, buckets: int) -> None:
    for name, number, least in (("rows", rows, 1), ("buckets", buckets, 2)):
        if type(number) is not int or not least <= number <= BUCKETS:
            raise ValueError(f"{name} is {number!r}; expected {least} to {BUCKETS:,}")
    if rows * buckets > MOST_CELLS:
        raise ValueError(f"rows * buckets is {rows * buckets:,}; expected at most {MOST_CELLS:,}")


@dataclass(frozen=True, slots=True)
class CountMeanSketchLaw(Constants):
    """All constants of a job.

    Attributes:
        items, rows: d, the size of the domain, and k, the number of rows.
        delta: Delta for an epoch, and for all epochs together.
        bits: Mechanism of the m bits of a row. Its minimum is a lower bound on the contributors of
            the row, which fails with a probability that delta includes.
    """

    items: int
    rows: int
    minimum: int
    delta: float
    bits: FragmentsLaw

    def __post_init__(self) -> None:
        check_domain(self.items)
        check_shape(self.rows, self.bits.items)
        if self.bits.slots != 1 or self.bits.reports != 1 or self.minimum < self.bits.minimum:
            raise ValueError(
                f"'bits' has {self.bits.slots} slots, {self.bits.reports} reports and a minimum of "
                f"{self.bits.minimum}; expected 1 slot, 1 report and at most {self.minimum}"
            )

    def of_one_epoch(self) -> CountMeanSketchLaw:
        """Return the constants for one epoch; jobs that differ only in their horizon share them."""
        return replace(self, bits=self.bits.of_one_epoch())

    @property
    def last_epoch(self) -> int:
        return self.bits.last_epoch

    @property
    def buckets(self) -> int:
        return self.bits.items

    @property
    def words(self) -> int:
        """Number of distinct messages, k m."""
        return self.rows * self.buckets

    @property
    def message_format(self) -> MessageFormat:
        """Format of a message: the row times m, plus the bucket."""
        return MessageFormat(narrowest(self.words))

    def capacity(self, epoch: int, contributors: int) -> int:
        return self.bits.capacity(epoch, contributors)

    def buckets_of(self, row: int, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the buckets of items by a row's hash, int64 of the same shape, from 0."""
        text = f"count_mean_sketch of {self.items} items in {self.rows} rows, row {row}"
        return PairwiseHash.of(text).buckets(items, self.buckets)


class CountMeanSketch(Devices[CountMeanSketchLaw]):
    """Devices of one horizon. They store nothing between epochs."""

    @property
    def guarantee(self) -> Guarantee:
        law, bits = self.law, self.law.bits
        held = held_by_a_user if bits.neighbors == "replacement" else held_or_nothing
        return Guarantee(
            epsilon=bits.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbors=held(1),
            trust=shuffle_and_others(
                law.minimum, f"{rounded_up(bits.local_epsilon)} at every epoch"
            ),
            basis="bound",
            stream_epsilon=bits.stream_epsilon,
        )

    @property
    def without_shuffling(self) -> Guarantee:
        """Guarantee for unshuffled messages, against any party that knows their sender."""
        bits = self.law.bits
        return of_messages_apart(self.guarantee, bits.local_epsilon, bits.last_epoch)

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger] | CountedMessages:
        """Return the messages of all present devices, like `Fragments.report`."""
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        items = set_rows(epoch, values, present, self.population, 1, law.items)[:, 0]
        rows = rng.integers(0, law.rows, len(items))
        most = law.capacity(epoch, len(items))
        while True:
            counted = self._messages(rows, items, rng)
            # Redrawn if over capacity.
            if counted.messages <= most:
                break
        self.epoch = epoch
        if len(items) * law.bits.messages_per_user < law.words:
            return counted.written_out()
        return counted

    def _messages(
        self, rows: NDArray[np.int64], items: NDArray[np.int64], rng: np.random.Generator
    ) -> CountedMessages:
        law, dtype = self.law, self.law.message_format.dtype
        words, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        order = np.argsort(rows, kind="stable")
        drawn, starts = np.unique(rows[order], return_index=True)
        for row, alike in zip(drawn.tolist(), np.split(items[order], starts[1:]), strict=False):
            buckets = law.buckets_of(row, alike[alike > 0])
            ones = np.bincount(buckets, minlength=law.buckets).astype(np.int64)
            messages = law.bits.flips.ones(ones, len(alike), rng)
            (seen,) = np.nonzero(messages)
            words.append(row * law.buckets + seen)
            counts.append(messages[seen])
        return CountedMessages(
            np.concatenate(words).astype(dtype)[:, None],
            np.concatenate(counts).astype(np.uint32),
        )
