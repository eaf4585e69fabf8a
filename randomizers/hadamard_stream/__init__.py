"""Items over time, each device tracking one Boolean: the Hadamard lift of FutureRand.

Row r of the Sylvester-Hadamard matrix of size B has the entry H[r, z] = (-1)^popcount(r & z) in
column z. Item z of a domain, counted from 1, has column z; column 0 is left to "no item". A device
draws one row, once and for all and for everybody to see, and follows with FutureRand whether its
item has +1 there: b = (1 + H[r, x]) / 2 for item x, 0 for no item. Over the rows H[r, z] averages 0
for every z from 1 on, and H[r, x] H[r, z] averages 1 if x = z and 0 otherwise. So 2 b H[r, z] is on
average 1 for devices that have item z and 0 for all others: each report speaks for every item.

When the item changes to another one, b flips for half of the rows only. So a device needs fewer
signs than its item may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from randomizers.composed import MAX_SIGNS
from randomizers.future_rand import NEWCOMER, BooleanDevices, FutureRandLaw, check_epsilon
from randomizers.given_values import refuse_wrong
from randomizers.laws import Constants

MIN_ITEMS, MAX_ITEMS = 2, 4096
MAX_ITEMS_ONCE = 1 << 20
"""Of a job with a single epoch, which keeps no more than a number for every row."""

MAX_LABEL = 100
"""Characters of a label."""

ORDER_BITS = 5
NEWCOMER_SHIFT = 19
"""A word is (row * 2^5 + order) * 2 + sign, and 2^19 more for newcomers: see `FutureRand`.

Nobody is a newcomer to a single epoch, so that there rows may take these bits, too.
"""

_MAX_HORIZON = 1 << ((1 << ORDER_BITS) - 1)


@dataclass(frozen=True, slots=True)
class HadamardStreamParameters:
    """What a job says about items over time.

    Attributes:
        epsilon: the privacy loss of a user's whole stream.
        changes: how many times a user's item may change after the first one it has.
        domain: the labels of the items: up to 4,096, or 2^20 in a job with a single epoch.
        signs: how many flips of the tracked Boolean are followed, the budget; None for the number
            with the least error (`randomizers.hadamard_stream.calibration`).
        estimator: "tree", which combines all the intervals there are, or "prefix", the paper's,
            which uses the fewest; a device knows nothing of it.

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    changes: int
    domain: tuple[str, ...]
    signs: int | None = None
    estimator: Literal["tree", "prefix"] = "tree"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if type(self.changes) is not int or not 0 <= self.changes < MAX_SIGNS:
            raise ValueError(
                f"changes is {self.changes!r}, must be a whole number from 0 to {MAX_SIGNS - 1}"
            )
        check_labels(self.domain)
        most = self.changes + 1
        if self.signs is not None and (type(self.signs) is not int or not 1 <= self.signs <= most):
            raise ValueError(
                f"signs is {self.signs!r}, must be a whole number from 1 to changes + 1, {most}: "
                "no more flips than that are possible"
            )
        if self.estimator not in ("tree", "prefix"):
            raise ValueError(f"estimator is {self.estimator!r}, must be 'tree' or 'prefix'")
        object.__setattr__(self, "epsilon", float(self.epsilon))


def check_labels(labels: tuple[str, ...]) -> None:
    """Raise `ValueError` if items cannot have these labels."""
    if not MIN_ITEMS <= len(labels) <= MAX_ITEMS_ONCE:
        raise ValueError(
            f"domain has {len(labels):,} labels, must have from {MIN_ITEMS} to {MAX_ITEMS:,}, or "
            f"up to {MAX_ITEMS_ONCE:,} with a single epoch"
        )
    seen = set[str]()
    for label in labels:
        if not 1 <= len(label) <= MAX_LABEL or label != label.strip() or not label.isprintable():
            raise ValueError(
                f"domain has the label {label[:MAX_LABEL]!a}, a label must have 1 to "
                f"{MAX_LABEL} printable characters and no space at either end"
            )
        if label in seen:
            raise ValueError(f"domain has the label {label!r} twice: take one of them out")
        seen.add(label)


@dataclass(frozen=True, slots=True)
class HadamardStreamLaw(Constants):
    """All constants of a job: what its devices draw from and its estimators divide by.

    Attributes:
        items: size of the domain.
        changes: item changes after the first item that were asked for, as far as epochs allow.
        frozen_share: of the users who change their item as often as that, each time to another one
            chosen at random: the share that runs out of signs.
        future_rand: of the tracked Booleans.

    Raises:
        ValueError: a field is out of range.
    """

    items: int
    changes: int
    frozen_share: float
    future_rand: FutureRandLaw

    def __post_init__(self) -> None:
        check_domain_size(self.items, self.future_rand.horizon)
        if self.future_rand.horizon > _MAX_HORIZON:
            raise ValueError(
                f"a horizon of {self.future_rand.horizon} epochs, must be at most {_MAX_HORIZON}"
            )

    @property
    def rows(self) -> int:
        """Rows and columns of the matrix: the least power of two above the number of items."""
        return rows_for(self.items)

    @property
    def newcomer_shift(self) -> int:
        """Where the bit for newcomers is."""
        return NEWCOMER_SHIFT if self.items <= MAX_ITEMS else 31

    @property
    def signs(self) -> int:
        """The budget: flips of the tracked Boolean that are followed."""
        return self.future_rand.composed[0].k


def check_domain_size(items: int, epochs: int) -> None:
    """Raise `ValueError` if there are not as many items as a job of so many epochs may have."""
    most = MAX_ITEMS if epochs > 1 else MAX_ITEMS_ONCE
    if not MIN_ITEMS <= items <= most:
        raise ValueError(
            f"{items:,} items, must be from {MIN_ITEMS} to {most:,}"
            + (f"; with a single epoch up to {MAX_ITEMS_ONCE:,}" if epochs > 1 else "")
        )


def rows_for(items: int) -> int:
    """The least power of two above a number of items.

    >>> rows_for(2), rows_for(3), rows_for(4)
    (4, 4, 8)
    """
    return 1 << items.bit_length()


def tracked(
    rows: NDArray[np.unsignedinteger], items: NDArray[np.integer] | NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """b, what devices with these rows follow of their items, both of shape (devices,).

    >>> tracked(np.array([0, 1, 2], np.uint16), np.array([0, 1, 1])).tolist()
    [False, False, True]
    """
    held = items.astype(rows.dtype)
    has_plus = np.bitwise_count(rows & held) & 1 == 0
    return np.asarray(has_plus & (held != 0), np.bool_)


def check_items(
    epoch: int,
    values: NDArray[np.integer] | NDArray[np.bool_],
    present: NDArray[np.bool_] | None,
    population: int,
    items: int,
) -> None:
    """Raise `ValueError` unless every device that is not silent has an item, or none.

    Args:
        epoch: named in errors.
        values: integers, shape (population,).
        present: shape (population,), which devices are not silent; None for all of them.
        population: how many devices there are.
        items: size of the domain.
    """
    if values.shape != (population,):
        raise ValueError(f"values of shape {values.shape}, must be ({population},): one a device")
    if values.dtype.kind not in "biu":
        raise ValueError(f"values of dtype {values.dtype}, must be integers")
    wrong = (values < 0) | (values > items)
    refuse_wrong(epoch, values, wrong, present, f"from 1 to {items}, or 0 for no item")


class HadamardStream(BooleanDevices[HadamardStreamLaw]):
    """The devices of one horizon: each has drawn a row, and what FutureRand draws.

    The row is drawn without regard to the values and is no secret, so the guarantee is that of the
    Boolean: for any two streams of items and any row it holds for the two streams of b.

    >>> from randomizers.hadamard_stream.calibration import calibrate
    >>> from randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> parameters = HadamardStreamParameters(4.0, 2, ("walk", "bus", "car"))
    >>> devices = HadamardStream(calibrate(parameters, last_epoch=4))
    >>> devices.enrol(1000, rng)
    >>> first = devices.report(1, np.full(1000, 1), None, rng)
    >>> reports = devices.report(2, np.full(1000, 3), None, rng)  # everybody has come by car
    >>> np.unique(reports >> 6), np.unique(reports >> 1 & 31)  # rows, and the orders due
    (array([0, 1, 2, 3], dtype=uint32), array([0, 1], dtype=uint32))

    Args:
        law: the constants of the job.
    """

    word_dtype = np.dtype("<u4")
    width = 1

    def __init__(self, law: HadamardStreamLaw) -> None:
        super().__init__(law, law.future_rand)
        # No secret.
        narrow = law.rows <= 1 << 16
        self._row_type = np.dtype(np.uint16 if narrow else np.uint32)
        self._row = self._declare("row", self._row_type, new=None, allowed=range(law.rows))

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        drawn = super()._draw(count, rng)
        return {**drawn, "row": rng.integers(0, self.law.rows, count, dtype=self._row_type)}

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint32]:
        """Report the partial sums that are due.

        Returns:
            uint32, shape (reports, 1): (row * 32 + order) * 2, and 1 more for the sign +1, 2^19
            more for newcomers.
        """
        check_items(epoch, values, present, self.population, self.law.items)
        devices, words = self.follow(epoch, tracked(self._row, values), present, rng)
        rows = self._row[devices].astype(np.uint32) << np.uint32(ORDER_BITS + 1)
        shift = np.uint32(self.law.newcomer_shift - 7)
        newcomers = (words & NEWCOMER).astype(np.uint32) << shift
        reports: NDArray[np.uint32] = rows | newcomers | (words & np.uint8(NEWCOMER - 1))
        return reports[:, None]
