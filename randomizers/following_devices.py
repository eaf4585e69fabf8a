"""Base class of devices that track changes of a Boolean, for any report format.

A device stores f, the emphasis of its past changes. A change to 1 adds the boost a to f; a change
to 0 subtracts a. One epoch later, a fraction b of f (the decay) remains. Only the first
`max_changes` changes are boosted, and only if they happen while the value is known.
"""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.devices import Devices, LawT
from dpstream.randomizers.given_values import check_epoch, checked_booleans

MAX_EPOCHS: typing.Final = 1 << 20

TOGETHER: typing.Final = 1 << 14
"""Number of devices processed at once: their state fits into a processor's cache."""

# Flags added to a stored value of 0 or 1: unknown at the last epoch, or newly enrolled.
UNKNOWN, NEW = 2, 4

# Remainders below this are set to 0 before they become subnormal numbers, which are slow.
NOTHING = 2.0**-64


class FollowingLaw(typing.Protocol):
    """Constants of a mechanism that tracks changes."""

    @property
    def last_epoch(self) -> int: ...

    @property
    def max_changes(self) -> int:
        """k, the number of boosted changes per device."""

    @property
    def boost(self) -> float:
        """a, the amount that a change adds to f."""

    @property
    def decay(self) -> float:
        """b, the fraction of f that remains one epoch later."""


class FollowingDevices(Devices[LawT]):
    """Devices that each track a Boolean; `booleans` is the part of `law` with the constants."""

    def __init__(self, law: LawT, booleans: FollowingLaw) -> None:
        super().__init__(law)
        self._rules = booleans
        # f, the remainder of the device's changes.
        self._followed = self._declare("followed", np.float64)
        # The last known value, plus 2 if it was unknown at the last epoch. The value before the
        # first epoch counts as 0.
        self._value = self._declare("value", np.uint8, new=NEW)
        # Number of changes, counted up to one more than the boosted ones.
        self._changes = self._declare("changes", np.min_scalar_type(booleans.max_changes + 2))

    @property
    def exhausted(self) -> int:
        return int(np.count_nonzero(self._changes > self._rules.max_changes))

    def _start_epoch(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        observed: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        """Validate an epoch's input and advance over skipped epochs; return `_checked` values."""
        check_epoch(epoch, after=self.epoch, last_epoch=self._rules.last_epoch)
        now = self._checked(epoch, values, observed)
        for _ in range(epoch - self.epoch - 1):
            self._followed *= self._rules.decay
        if epoch > self.epoch + 1:
            self._value[self._value < UNKNOWN] |= UNKNOWN
        self.epoch = epoch
        return now

    def _checked(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        observed: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        """Return the values of an epoch as integers; raise `ValueError` if they are invalid."""
        return checked_booleans(epoch, values, observed, self.population)

    def _take_in(
        self, devices: slice, now: NDArray[Any], observed: NDArray[np.bool_] | None
    ) -> None:
        """Update f of some devices, and the state that determines it, with the devices' values."""
        rules = self._rules
        value, made, followed = (
            self._value[devices],
            self._changes[devices],
            self._followed[devices],
        )
        value[value == NEW] = 0
        changed = (value & 1) != now
        if observed is not None:
            changed &= observed
        boosted = np.flatnonzero(changed & (value < UNKNOWN) & (made < rules.max_changes))
        np.minimum(made + changed, rules.max_changes + 1, out=made, casting="unsafe")
        followed *= rules.decay
        followed[np.abs(followed) < NOTHING] = 0
        followed[boosted] += np.where(now[boosted], rules.boost, -rules.boost)
        if observed is None:
            value[:] = now
        else:
            value[:] = np.where(observed, now, value | UNKNOWN)
