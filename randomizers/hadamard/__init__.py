"""Shuffled counts without public randomness: tuples of columns of a Hadamard matrix.

Row r of the Sylvester-Hadamard matrix of size B has the entry +1 in the columns c with an even
popcount(r & c): H_r, half of the columns. H_r and H_s meet in a quarter of them. Item x of a
domain, counted from 1, has row x, as row 0 is +1 everywhere. A message is a tuple of tau columns. A
device sends a tuple uniform in H_x^tau for every item x of its user. It lies in the set of any
other item with probability q = 2^-tau. Among them are tuples uniform in [B]^tau, the blanket, each
of which lies in any item's set with probability q.

Every user sends exactly k real messages: k rows beyond those of the domain encode "no item", so B
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
from dpstream.randomizers.guarantee import Guarantee, held_by_a_user
from dpstream.randomizers.item_domains import ItemDomain, domain_size
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import check_approximate, check_domain, check_items_held
from dpstream.topics.message_formats import MessageFormat, narrowest

MAX_ROWS = 40
"""Maximum number of columns of a message: more change nothing for any number of users."""

Blanket = Literal["poisson", "bernoulli"]


@dataclass(frozen=True, slots=True)
class HadamardParameters:
    """Parameters of counts by Hadamard tuples.

    Attributes:
        epsilon, delta: Privacy loss of a user's set of one epoch.
        domain: Items, at most 2^20.
        items: k, the maximum number of items of a user at an epoch.
        rows: tau, columns of a message; None for the most accurate number within
            `messages_per_user`, or for log2 of the minimum number of contributors, as published.
        calibration: "exact", or the much larger blanket that is "published": that of Count-Min with
            one row, as the rho of Lemma 4.4 is lost.
        dummies: "poisson", a Poisson number of tuples in the blanket of each contributor; or
            "bernoulli", as published, a fixed whole number.
        messages_per_user: Maximum average number of messages of a user in an epoch.
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
            raise ValueError(f"rows is {self.rows!r}; expected a whole number from 1 to {MAX_ROWS}")
        if self.calibration not in ("exact", "published"):
            raise ValueError(
                f"calibration is {self.calibration!r}; expected 'exact' or 'published'"
            )
        if self.dummies not in ("poisson", "bernoulli"):
            raise ValueError(f"dummies is {self.dummies!r}; expected 'poisson' or 'bernoulli'")
        if self.messages_per_user is not None and not self.messages_per_user > self.items:
            raise ValueError(
                f"messages_per_user is {self.messages_per_user!r}; expected a number above "
                f"{self.items}, the real messages of a user"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class HadamardLaw(Constants):
    """All constants of a job.

    Attributes:
        slots, rows: k, and tau columns of a message.
        minimum: Minimum number of contributors, which the blanket is calibrated to.
        blanket: Mean number of tuples in the blanket of a contributor.
        dummies: Distribution of that number; "bernoulli" is the number itself.
        epsilon, stream_epsilon: Of an epoch, and of all epochs together, each with `delta`.
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
            raise ValueError(f"a user has {self.slots} items; expected at most {self.items:,}")
        if not 1 <= self.rows <= MAX_ROWS or self.minimum < 1 or self.last_epoch < 1:
            raise ValueError(f"{self} is not a valid law of Hadamard tuples")
        if not self.blanket > 0 or self.dummies not in ("poisson", "bernoulli"):
            raise ValueError(f"a {self.dummies} blanket of {self.blanket} tuples is invalid")
        if self.dummies == "bernoulli" and self.blanket != int(self.blanket):
            raise ValueError(f"a fixed blanket of {self.blanket} tuples; expected a whole number")

    def of_one_epoch(self) -> HadamardLaw:
        """Return the same with a single epoch: equal for jobs whose epochs are drawn alike."""
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def columns(self) -> int:
        """B, the size of the matrix: the least power of two above items + slots."""
        return 1 << (self.items + self.slots).bit_length()

    @property
    def overlap(self) -> float:
        """Probability q that a message lies in the set of an item it is not about."""
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
    """The devices of one horizon. They draw nothing in advance.

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
                f"{self.law.minimum:,} honest users in each window to add their dummies; the "
                "messages alone do not protect against a shuffler that keeps them apart"
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
        """Return the messages of all present devices: first all real ones, then the blanket."""
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
    """Make uniform tuples uniform in the sets of given rows, in place.

    Flipping the lowest bit of r in a column outside of H_r moves it into H_r; so two uniform
    columns become each column of H_r. `messages`, shape (n, tau), are columns; `rows` are nonzero.
    """
    row = rows.astype(messages.dtype)[:, None]
    outside = (np.bitwise_count(messages & row) & 1).astype(messages.dtype)
    lowest = (rows & -rows).astype(messages.dtype)[:, None]
    messages ^= outside * lowest
