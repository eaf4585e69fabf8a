"""Users whose items are drawn from the job's domain, separately for every trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy import integrate
from scipy.stats import norm

from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.devices.rows import BadRows, InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob

MOST_DRAWN: Final = 1 << 16
"""Maximum number of items in a domain from which items are drawn."""

_AT_ONCE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class DrawnItems(ABC):
    """Items for a single epoch, drawn from `seed` and the seed of the `trial`."""

    kind: ClassVar[str]

    users: int
    seed: int
    trial: int = 0

    def of_trial(self, seed: int) -> Self:
        return replace(self, trial=seed)

    def check(self, job: DeployedJob) -> tuple[str, ...]:
        """Raise `InputError` unless the job's values are items or sets that can be drawn."""
        domain = job.domain
        if (domain.slots is None and domain.items is None) or domain.size - 1 > MOST_DRAWN:
            raise InputError(
                f"{self.kind} data require a domain of at most {MOST_DRAWN:,} items; this "
                f"{job.protocol} job has no such domain. Use a 'change_log' instead"
            )
        if domain.slots is None and self.held_at_once > 1:
            raise InputError(
                f"{self.kind} data are sets of several items, but each user in {job.protocol} has "
                "one value. Set 'held: 1' or use another protocol"
            )
        return ()

    def load(self, job: DeployedJob) -> ItemLog | ChangeLog:
        """Draw the items of all users, up to the job's maximum per user."""
        slots = job.domain.slots or 1
        drawn = list(self._drawn(job.domain.size - 1, slots))
        user_indices = np.concatenate([owners for owners, _ in drawn]).astype(np.int32)
        items = np.concatenate([items for _, items in drawn]) + 1
        width = len(str(self.users - 1))
        users = tuple(f"{user:0{width}}" for user in range(self.users))
        epochs = np.ones(len(user_indices), np.int32)
        if job.domain.slots is None:
            return ChangeLog(users, epochs, user_indices, items, 1, 0, BadRows(self.kind))
        return ItemLog(
            users=users,
            epochs=epochs,
            user_indices=user_indices,
            values=items.astype(np.int64),
            slots=slots,
            last_epoch=1,
            bad_rows=BadRows(self.kind),
        )

    @property
    def held_at_once(self) -> int:
        """Maximum number of items drawn per user, capped at 2."""
        return 2

    def ground_truth(self, job: DeployedJob) -> NDArray[np.float64] | None:
        """Return the true sums per item, shape (items,), or None if user counts are estimated."""
        return None

    def drawn_variance(self, job: DeployedJob) -> float:
        """Return the variance of user counts around `ground_truth`, averaged over items."""
        return 0.0

    def _drawn(self, size: int, slots: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield user and item indices, numbered from 0, for one block of users at a time."""
        rows = max(1, _AT_ONCE // size)
        rng = self._generator()
        for start in range(0, self.users, rows):
            owners, items = self._draw(min(rows, self.users - start), size, slots, rng)
            yield owners + start, items

    def identity(self) -> dict[str, Any]:
        return {"drawn": self.kind, **asdict(self)}

    def __str__(self) -> str:
        return self.kind

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.trial, self.users])

    @abstractmethod
    def _draw(
        self, users: int, size: int, slots: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Draw ascending user indices, and item indices, numbered from 0: a pair for each item."""


@dataclass(frozen=True, slots=True)
class ZipfItems(DrawnItems):
    """Distinct items, drawn in proportion to rank^-exponent; item 1 has rank 1.

    Attributes:
        exponent: At least 0; 0 makes all items equally likely.
        held: Number of items per user.
    """

    kind: ClassVar[str] = "zipf"

    exponent: float = 1.1
    held: int = 1

    @property
    def held_at_once(self) -> int:
        return min(2, self.held)

    def _draw(
        self, users: int, size: int, slots: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        weights = -self.exponent * np.log(np.arange(1, size + 1))
        if self.held == 1:
            below = np.cumsum(np.exp(weights))
            return np.arange(users), np.searchsorted(below, below[-1] * rng.random(users), "right")
        # The index of the largest log weight plus Gumbel noise is a draw by weight.
        return _largest(weights + rng.gumbel(size=(users, size)), min(self.held, slots, size))


@dataclass(frozen=True, slots=True)
class ZipfQueries(ZipfItems):
    """Queries with answers from 0 to 1; a user randomly rounds each answer to the bit to report.

    The queries that concern a user are drawn like items. Each answer is uniform, and is rounded to
    1 with a probability equal to the answer. Sums of bits therefore estimate sums of answers.
    """

    kind: ClassVar[str] = "queries"

    @property
    def held_at_once(self) -> int:
        """Always 2: with 1, sets could not be empty, as they are if an answer is rounded to 0."""
        return 2

    def ground_truth(self, job: DeployedJob) -> NDArray[np.float64]:
        size, total = job.domain.size - 1, np.zeros(job.domain.size - 1)
        rows = max(1, _AT_ONCE // size)
        rng = self._generator()
        for start in range(0, self.users, rows):
            _, items, answers, _ = self._answers(
                min(rows, self.users - start), size, job.domain.slots or 1, rng
            )
            total += np.bincount(items, answers, size)
        return total

    def drawn_variance(self, job: DeployedJob) -> float:
        """Return the mean variance of a bit: for probability a it is a (1 - a), on average 1/6."""
        size = job.domain.size - 1
        return self.users * min(self.held, job.domain.slots or 1, size) / size / 6

    def _draw(
        self, users: int, size: int, slots: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        owners, items, _, ones = self._answers(users, size, slots, rng)
        return owners[ones], items[ones]

    def _answers(
        self, users: int, size: int, slots: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64], NDArray[np.bool_]]:
        # Not super(): the class is created twice because of slots.
        owners, items = ZipfItems._draw(self, users, size, slots, rng)
        answers = rng.random(len(items))
        return owners, items, answers, rng.random(len(items)) < answers


@dataclass(frozen=True, slots=True)
class SelectionSets(DrawnItems):
    """Item sets for finding the top item: all users have it; half have any given other item.

    With this distribution, Theorem 3.22 of "On the Power of Multiple Anonymous Messages" shows that
    selection is hard with one message per user. If the job limits the items per user, users name a
    random subset of their items.
    """

    kind: ClassVar[str] = "selection"

    def top_items(self, job: DeployedJob) -> int:
        """Return the index (from 0) of the item all users have; less than 90 % have any other."""
        return int(self._generator().integers(job.domain.size - 1))

    def chance(self, job: DeployedJob, deviation: float) -> float:
        """Return the probability that the estimate of `top_items` is the largest.

        Estimates are approximated as normal; the standard deviation of their noise is `deviation`.
        The number of users who name an item also varies between draws.
        """
        size, slots = job.domain.size - 1, job.domain.slots or 1
        held = (size + 1) / 2
        most = min(1.0, slots / held)
        other = (min(slots, held) - most) / (size - 1)
        own, others = (
            np.sqrt(deviation**2 + self.users * share * (1 - share)) for share in (most, other)
        )

        def right(x: float) -> float:
            above = norm.logcdf((self.users * (most - other) + own * x) / others)
            return float(norm.pdf(x) * np.exp(above * (size - 1)))

        return float(integrate.quad(right, -9, 9, limit=200)[0])

    def _draw(
        self, users: int, size: int, slots: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        favorite = int(self._generator().integers(size))
        held = rng.random((users, size)) < 0.5
        held[:, favorite] = True
        if slots >= size:
            owners, items = np.nonzero(held)
            return owners, items
        keys = np.where(held, rng.random((users, size)), -1.0)
        owners, items = _largest(keys, slots)
        named = keys[owners, items] >= 0
        return owners[named], items[named]


def _largest(keys: NDArray[np.float64], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows and columns of the `count` largest keys of every row."""
    columns = np.argpartition(keys, -count, axis=1)[:, -count:]
    return np.repeat(np.arange(len(keys)), count), columns.reshape(-1)
