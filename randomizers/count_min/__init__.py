"""Item counts in the shuffle model: the shuffler alone separates messages from their senders.

At every epoch a user has a set of at most k items. Each item raises a cell in each of several rows,
or on each level of a tree. A message is the number of a cell. A contributor also sends dummies to
random cells. After the shuffle only the count of each message remains, and the dummies of all
contributors hide the messages of any single user. The error does not grow with the number of users.

In a row, two items of a user may share a cell. With the exact calibration, a device sends that cell
only once: a set raises every cell by at most 1, as the guarantee assumes.

Reference: Ghazi et al., *On the Power of Multiple Anonymous Messages*, 2019, Alg. 2, Section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers import least_delta
from dpstream.randomizers.cell_codes.codes import CellCode, code_from_json
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, DummyLaw, trusted
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.given_sets import checked_sets
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import Guarantee, held_by_a_user
from dpstream.randomizers.item_domains import ItemDomain
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import (
    check_approximate,
    check_items_held,
    check_messages,
)

Calibration: TypeAlias = Literal["exact", "published"]
"""Basis of the noise: the exact privacy loss ("exact"), or the paper's formulas ("published")."""

Queries: TypeAlias = Literal["items", "top", "ranges", "published_ranges"]
"""Queries that the counts must answer; they determine the cells:

* "items": single items (rows of buckets);
* "top": the top items of an open domain (prefixes);
* "ranges": ranges, boxes and quantiles (a tree of any branching);
* "published_ranges": the same queries (the tree of the paper: the root and all left children).
"""

Estimator: TypeAlias = Literal["min", "mean", "median"]
"""Method that combines the rows into one estimate."""


@dataclass(frozen=True, slots=True)
class OneSided:
    """Upper-bound estimates: the smallest row count of an item, minus a low quantile of its noise.

    Attributes:
        underestimated: For an item fixed in advance, the maximum probability that its estimate is
            below its number of contributors, if all contributors add their dummies.
    """

    underestimated: float

    def __post_init__(self) -> None:
        if not 1e-9 <= self.underestimated <= 0.1:
            raise ValueError(f"'underestimated' is {self.underestimated!r}; expected 1e-9 to 0.1")


@dataclass(frozen=True, slots=True)
class CountMinParameters:
    """Parameters of count_min; planning chooses those that are None.

    Attributes:
        epsilon, delta: Privacy loss for a user's items at one epoch.
        items: k, the maximum number of items per user and epoch.
        rows, buckets: Number of rows, tau, and of buckets per row, s.
        estimator: Estimator of single items; None selects, for each epoch, the two-sided estimator
            that is predicted to be best.
        dummies: Party that adds the dummies, and their distribution.
        messages_per_user: Maximum average number of messages per user and epoch.
    """

    epsilon: float
    delta: float
    domain: ItemDomain
    items: int = 1
    queries: Queries | None = None
    rows: int | None = None
    buckets: int | None = None
    estimator: Estimator | OneSided | None = None
    calibration: Calibration = "exact"
    dummies: DummyLaw = "poisson"
    messages_per_user: float | None = None

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        check_items_held(self.items, self.domain)
        for name, kind in (("calibration", Calibration), ("dummies", DummyLaw)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"'{name}' is {getattr(self, name)!r}; expected one of {get_args(kind)}"
                )
        if self.calibration == "published" and self.dummies not in ("poisson", "bernoulli"):
            raise ValueError("'calibration: published' requires bernoulli or poisson dummies")
        for name in ("rows", "buckets"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"'{name}' is {value!r}; expected an integer of at least 1")
        check_messages(self.messages_per_user)


@dataclass(frozen=True, slots=True)
class CountMinLaw(Constants):
    """All constants of a count_min job; k is `items`, the maximum number of items per user.

    `stream_epsilon` is the loss of all epochs of a horizon together, with the same delta.
    """

    last_epoch: int
    epsilon: float
    delta: float
    stream_epsilon: float
    items: int
    code: CellCode = field(metadata={"read": code_from_json})
    noise: CellNoiseLaw
    calibration: Calibration

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        for name, value in (("last_epoch", self.last_epoch), ("items", self.items)):
            if type(value) is not int or value < 1:
                raise ValueError(f"'{name}' is {value!r}; expected an integer of at least 1")
        if self.calibration not in get_args(Calibration):
            raise ValueError(
                f"calibration is {self.calibration!r}; expected 'exact' or 'published'"
            )
        if not self.epsilon <= self.stream_epsilon < math.inf:
            raise ValueError(
                f"stream_epsilon is {self.stream_epsilon!r}; expected a finite number of at least "
                f"epsilon, {self.epsilon!r}"
            )
        if self.code.cells > 1 << 32:
            raise ValueError(f"the sketch has {self.code.cells:,} cells; expected at most 2^32")

    def of_one_epoch(self) -> CountMinLaw:
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def messages_per_user(self) -> float:
        return self.items * self.code.messages + self.noise.per_contributor(self.code.cells)

    def capacity(self, epoch: int, contributors: int) -> int:
        real = contributors * self.items * self.code.messages
        return real + self.noise.most(self.code.cells, contributors)


class CountMin(Devices[CountMinLaw]):
    """Devices of a count_min job for one horizon. They store nothing between epochs.

    >>> from dpstream.randomizers.count_min.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> parameters = CountMinParameters(1.0, 1e-6, ("red", "green", "blue"))
    >>> law = calibrate(parameters, last_epoch=1, minimum=1000)
    >>> devices, rng = CountMin(law), seeded_generator(1)
    >>> devices.enroll(1000, rng)
    >>> counted = devices.report(1, np.full((1000, 1), 2), None, rng)
    >>> counted.counts.tolist()  # a thousand users with "green", and dummies
    [46, 1040, 42]
    """

    word_dtype: ClassVar[np.dtype[np.uint32]] = np.dtype("<u4")

    def __init__(self, law: CountMinLaw) -> None:
        super().__init__(law)
        self._dummies = law.noise.of_contributors(law.code.cells)

    @property
    def guarantee(self) -> Guarantee:
        law = self.law
        return Guarantee(
            epsilon=law.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbors=held_by_a_user(law.items),
            trust=trusted(law.noise),
            basis="exact" if law.calibration == "exact" else "bound",
            stream_epsilon=law.stream_epsilon,
        )

    @property
    def assumed_contributors(self) -> int:
        return self.law.noise.contributors or 0

    def least_delta(self) -> float:
        """Bound delta from below by comparing the domain's first items with its last items."""
        code, most = self.law.code, min(self.law.items, max(1, self.law.code.size // 2))
        items = np.arange(1, most + 1)
        first, last = (
            set(code.encode(each).ravel().tolist()) for each in (items, code.size + 1 - items)
        )
        apart = len({cell for cell in first - last if cell >= 0}) or 1
        return least_delta.of_cells(self.law.noise, apart, apart, self.law.epsilon)

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint32] | CountedMessages:
        """Return the cells of all present devices' messages and dummies.

        If more messages than cells are expected, for any values, the result has a count per
        cell. Otherwise it is uint32, shape (messages, 1), sorted.
        """
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        owners, items = checked_sets(epoch, values, present, self.population, law.items)
        cells = self._real(owners, items)
        contributors = self.population if present is None else int(np.count_nonzero(present))
        self.epoch = epoch
        dummies, all_cells = self._dummies, law.code.cells
        if contributors * law.messages_per_user < all_cells:
            words = cells.astype(np.uint32)
            if dummies is not None:
                words = np.concatenate([words, dummies.draw(contributors, all_cells, rng)])
            return np.sort(words)[:, None]
        counts = np.bincount(cells, minlength=all_cells)
        if dummies is not None:
            counts += dummies.counts(contributors, all_cells, rng)
        return CountedMessages.of_cells(counts, self.word_dtype)

    @staticmethod
    def stage_dummies(
        law: CountMinLaw,
    ) -> Callable[[int, np.random.Generator], CountedMessages] | None:
        dummies, cells = law.noise.of_stage(law.code.cells), law.code.cells
        if dummies is None:
            return None

        def draw(epoch: int, rng: np.random.Generator) -> CountedMessages:
            return CountedMessages.of_cells(dummies.counts(1, cells, rng), CountMin.word_dtype)

        return draw

    def _real(self, owners: NDArray[np.intp], items: NDArray[np.int64]) -> NDArray[np.int64]:
        cells = self.law.code.encode(items)
        sent = cells >= 0
        if self.law.items == 1 or self.law.calibration == "published":
            return cells[sent]
        # Send each cell once per user.
        keys = (owners[:, None] * self.law.code.cells + cells)[sent]
        distinct: NDArray[np.int64] = np.unique(keys) % self.law.code.cells
        return distinct
