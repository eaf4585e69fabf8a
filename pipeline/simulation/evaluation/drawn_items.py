"""Users whose items are drawn anew for every trial, over the domain of whatever job is tried."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy import integrate
from scipy.stats import norm

from pipeline.devices.item_log import ItemLog
from pipeline.devices.rows import BadRows, InputError
from pipeline.jobs.deployed_job import DeployedJob

MOST_DRAWN: Final = 1 << 16
"""The largest domain of which items are drawn."""

_AT_ONCE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class DrawnItems(ABC):
    """Items of a single epoch.

    Attributes:
        users: how many.
        seed: of the draw, together with that of the trial.
        trial: its seed.
    """

    kind: ClassVar[str]

    users: int
    seed: int
    trial: int = 0

    def of_trial(self, seed: int) -> Self:
        """The same, drawn for this trial."""
        return replace(self, trial=seed)

    def check(self, job: DeployedJob) -> tuple[str, ...]:
        """Nothing.

        Raises:
            InputError: the job is not about sets of items that can be drawn.
        """
        if job.domain.slots is None or job.domain.size - 1 > MOST_DRAWN:
            raise InputError(
                f"{self.kind} data are sets of at most {MOST_DRAWN:,} items, which are no values "
                f"of {job.protocol}: give the experiment a change_log"
            )
        return ()

    def load(self, job: DeployedJob) -> ItemLog:
        """What users hold; no more of it than the job takes."""
        assert job.domain.slots is not None
        size, slots = job.domain.size - 1, job.domain.slots
        owners, items = [], []
        rows = max(1, _AT_ONCE // size)
        rng = self._generator()
        for start in range(0, self.users, rows):
            of_users, held = self._draw(min(rows, self.users - start), size, slots, rng)
            owners.append(of_users + start)
            items.append(held + 1)
        width = len(str(self.users - 1))
        user_indices = np.concatenate(owners).astype(np.int32)
        return ItemLog(
            users=tuple(f"{user:0{width}}" for user in range(self.users)),
            epochs=np.ones(len(user_indices), np.int32),
            user_indices=user_indices,
            values=np.concatenate(items).astype(np.int64),
            slots=slots,
            last_epoch=1,
            bad_rows=BadRows(self.kind),
        )

    def identity(self) -> dict[str, Any]:
        """What the results depend on."""
        return {"drawn": self.kind, **asdict(self)}

    def __str__(self) -> str:
        return self.kind

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.trial, self.users])

    @abstractmethod
    def _draw(
        self, users: int, size: int, slots: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Users from 0 on, ascending, and items from 0 on: one of each for every item held."""


@dataclass(frozen=True, slots=True)
class ZipfItems(DrawnItems):
    """Distinct items, drawn in proportion to rank^-exponent; item 1 has rank 1.

    Attributes:
        exponent: at least 0, which is all items alike.
        held: how many a user has.
    """

    kind: ClassVar[str] = "zipf"

    exponent: float = 1.1
    held: int = 1

    def _draw(
        self, users: int, size: int, slots: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        weights = -self.exponent * np.log(np.arange(1, size + 1))
        if self.held == 1:
            below = np.cumsum(np.exp(weights))
            return np.arange(users), np.searchsorted(below, below[-1] * rng.random(users), "right")
        # The largest of the logarithms of weights, each with Gumbel noise, is drawn by weight.
        return _largest(weights + rng.gumbel(size=(users, size)), min(self.held, slots, size))


@dataclass(frozen=True, slots=True)
class SelectionSets(DrawnItems):
    """Which item do most users hold? One is held by all, each other one by half of them.

    The distribution of which Theorem 3.22 of "On the Power of Multiple Anonymous Messages" shows
    that selection is hard, with one message of each user. A user who may name fewer items than it
    holds names some of them, drawn at random.
    """

    kind: ClassVar[str] = "selection"

    def most_held(self, job: DeployedJob) -> int:
        """The item that all users hold, from 0 on. No other is held by nine tenths of so many."""
        return int(self._generator().integers(job.domain.size - 1))

    def chance(self, job: DeployedJob, deviation: float) -> float:
        """That its estimate is the largest, all being normal with this deviation of the noise.

        How many name an item varies from draw to draw, too.
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
        favourite = int(self._generator().integers(size))
        held = rng.random((users, size)) < 0.5
        held[:, favourite] = True
        if slots >= size:
            owners, items = np.nonzero(held)
            return owners, items
        keys = np.where(held, rng.random((users, size)), -1.0)
        owners, items = _largest(keys, slots)
        named = keys[owners, items] >= 0
        return owners[named], items[named]


def _largest(keys: NDArray[np.float64], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of so many of the largest keys of every row."""
    columns = np.argpartition(keys, -count, axis=1)[:, -count:]
    return np.repeat(np.arange(len(keys)), count), columns.reshape(-1)
