"""Shuffled counts without public randomness: tuples of columns of a Hadamard matrix.

Row r of the Sylvester-Hadamard matrix of size B has the entry +1 in the columns c with an even
popcount(r & c). These columns form the set H_r, half of all columns. Two such sets share a quarter
of all columns. Row 0 is +1 everywhere, so items are numbered from 1, and item x has row x. A
message is a tuple of tau columns. For every item x of its user, a device sends a tuple drawn
uniformly from H_x^tau. That tuple is also in the set of any other item with probability q = 2^-tau.
Devices add the blanket: tuples drawn uniformly from [B]^tau, each of which is in the set of any
item with probability q.

Every user sends exactly k real messages: k rows after the rows of the domain encode "no item", so B
is the least power of two above items + k.

Reference: Ghazi et al., *On the Power of Multiple Anonymous Messages*, 2019, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.devices import Devices
from dpstream.randomizers.dummies import PoissonDummies
from dpstream.randomizers.given_sets import set_rows
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import UNPROTECTED, Guarantee, held_by_a_user
from dpstream.randomizers.item_domains import ItemDomain, domain_size
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import check_approximate, check_domain, check_items_held
from dpstream.topics.message_formats import MessageFormat, narrowest

MAX_ROWS = 40
"""Maximum number of columns in a message: more would make no difference for any number of users."""

Blanket = Literal["poisson", "bernoulli"]


@dataclass(frozen=True, slots=True)
class HadamardParameters:
    """Parameters of counts by Hadamard tuples.

    Attributes:
        epsilon, delta: Privacy loss for a user's set at one epoch.
        domain: Domain of at most 2^20 items.
        items: k, the maximum number of items per user and epoch.
        rows: tau, the number of columns per message; None for the most accurate number within
            `messages_per_user`, at most log2 of the minimum number of contributors, as in the
            paper.
        calibration: "exact"; or "published", the much larger blanket of Count-Min with one row,
            since the value of rho in Lemma 4.4 is not known.
        dummies: Number of blanket tuples per contributor: "poisson", a Poisson number; or
            "bernoulli", a fixed integer, as in the paper.
        messages_per_user: Maximum average number of messages per user and epoch.
    """

    epsilon: float
    delta: float
    domain: ItemDomain
    items: int = 1
    rows: int | None = None
    calibration: Literal["exact", "published"] = "exact"
    dummies: Blanket = "poisson"
    messages_per_user: float | None = None

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        check_items_held(self.items, self.domain)
        check_domain(domain_size(self.domain))
        if self.rows is not None and (type(self.rows) is not int or not 1 <= self.rows <= MAX_ROWS):
            raise ValueError(f"'rows' is {self.rows!r}; expected an integer from 1 to {MAX_ROWS}")
        if self.calibration not in ("exact", "published"):
            raise ValueError(
                f"calibration is {self.calibration!r}; expected 'exact' or 'published'"
            )
        if self.dummies not in ("poisson", "bernoulli"):
            raise ValueError(f"'dummies' is {self.dummies!r}; expected 'poisson' or 'bernoulli'")
        if self.messages_per_user is not None and not self.messages_per_user > self.items:
            raise ValueError(
                f"messages_per_user is {self.messages_per_user!r}; expected more than 'items', "
                f"{self.items}: a user sends a real message for each item"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class HadamardLaw(Constants):
    """All constants of a hadamard job.

    Attributes:
        slots: k, the maximum number of items per user.
        rows: tau, the number of columns per message.
        minimum: Minimum number of contributors, for which the blanket is calibrated.
        blanket: Mean number of blanket tuples per contributor.
        dummies: Distribution of the number of blanket tuples; "bernoulli" is a fixed number.
        epsilon: Privacy loss of an epoch, with `delta`.
        stream_epsilon: Privacy loss of all epochs together, with `delta`.
    """

    items: int
    slots: int
    rows: int
    minimum: int
    last_epoch: int
    blanket: float
    dummies: Blanket
    epsilon: float
    delta: float
    stream_epsilon: float

    def __post_init__(self) -> None:
        check_domain(self.items)
        if not 1 <= self.slots <= self.items:
            raise ValueError(f"'slots' is {self.slots}; expected 1 to {self.items:,}")
        if not 1 <= self.rows <= MAX_ROWS:
            raise ValueError(f"'rows' is {self.rows}; expected 1 to {MAX_ROWS}")
        if self.minimum < 1 or self.last_epoch < 1:
            raise ValueError(
                f"got {self.minimum} contributors and {self.last_epoch} epochs; expected 1 or more"
            )
        if self.dummies not in ("poisson", "bernoulli"):
            raise ValueError(f"'dummies' is {self.dummies!r}; expected 'poisson' or 'bernoulli'")
        if not self.blanket > 0:
            raise ValueError(f"'blanket' is {self.blanket}; expected a positive number")
        if self.dummies == "bernoulli" and self.blanket != int(self.blanket):
            raise ValueError(
                f"'blanket' is {self.blanket}; with bernoulli dummies, expected an integer"
            )

    def of_one_epoch(self) -> HadamardLaw:
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def columns(self) -> int:
        """B, the size of the matrix: the least power of two above items + slots."""
        return 1 << (self.items + self.slots).bit_length()

    @property
    def overlap(self) -> float:
        """q, the probability that a message is in the set of an item that it is not about."""
        return 0.5**self.rows

    def capacity(self, epoch: int, contributors: int) -> int:
        if self.dummies == "poisson":
            blanket = PoissonDummies(self.blanket).most(contributors)
        else:
            blanket = int(self.blanket) * contributors
        return contributors * self.slots + blanket

    @property
    def message_format(self) -> MessageFormat:
        return MessageFormat(narrowest(self.columns), self.rows)


class Hadamard(Devices[HadamardLaw]):
    """Devices of a hadamard job for one horizon. They draw nothing in advance.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> law = HadamardLaw(2, 1, 3, 1, 1, 2.0, "bernoulli", 1.0, 0.1, 1.0)
    >>> devices = Hadamard(law)
    >>> devices.enroll(2, seeded_generator(1))
    >>> devices.report(1, np.array([[1], [2]]), None, seeded_generator(2)).shape
    (6, 3)
    """

    @cached_property
    def _dummies(self) -> PoissonDummies:
        return PoissonDummies(self.law.blanket)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=self.law.delta,
            unit="epoch",
            neighbors=held_by_a_user(self.law.slots),
            trust=(
                "the shuffler to shuffle and to suppress windows below the minimum, and "
                f"{self.law.minimum:,} honest users in each window to send dummy messages; "
                f"{UNPROTECTED}"
            ),
            basis="bound",
            stream_epsilon=self.law.stream_epsilon,
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        """Return the messages of all present devices: all real messages, then the blanket."""
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        rows = set_rows(epoch, values, present, self.population, law.slots, law.items)
        rows = np.where(rows == 0, law.items + 1 + np.arange(law.slots), rows)
        if law.dummies == "poisson":
            blanket = self._dummies.total(len(rows), rng)
        else:
            blanket = int(law.blanket) * len(rows)
        dtype = law.message_format.dtype
        messages = rng.integers(0, law.columns, (rows.size + blanket, law.rows), dtype.type)
        move_into_sets(messages[: rows.size], rows.ravel())
        self.epoch = epoch
        return messages.astype(dtype, copy=False)


def move_into_sets(messages: NDArray[np.unsignedinteger], rows: NDArray[np.int64]) -> None:
    """Map uniform tuples of columns to uniform tuples in the sets of rows, in place.

    To move a column outside H_r into H_r, its bit at the position of r's lowest 1 is flipped. So
    every column of H_r is the image of two columns. `messages`, shape (n, tau), are columns; `rows`
    are nonzero.
    """
    row = rows.astype(messages.dtype)[:, None]
    outside = (np.bitwise_count(messages & row) & 1).astype(messages.dtype)
    lowest = (rows & -rows).astype(messages.dtype)[:, None]
    messages ^= outside * lowest
