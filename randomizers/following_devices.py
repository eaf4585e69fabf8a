"""Devices that follow the changes of a Boolean, whatever they send of them.

A change adds a to f or takes it, and an epoch later the share b is left of that. Only the first
`changes` changes are boosted like that, of those made while the value was known.
"""

from __future__ import annotations

import typing

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.devices import Devices, LawT
from dpstream.randomizers.given_values import check_epoch, checked_booleans

MAX_EPOCHS: typing.Final = 1 << 20

TOGETHER: typing.Final = 1 << 14
"""Devices that are run at once: what is kept of them fits into a processor's cache."""

# What is kept of a value, beside 0 and 1: that it has not been known since then, or is new.
_UNKNOWN, _NEW = 2, 4

# Where less than this is left of all changes, nothing is: smaller numbers are slow.
_NOTHING = 2.0**-64


class FollowingLaw(typing.Protocol):
    """What a law says of how changes are followed."""

    @property
    def last_epoch(self) -> int:
        """T, number of epochs."""
        ...

    @property
    def changes(self) -> int:
        """k, how many changes of a device are boosted."""
        ...

    @property
    def boost(self) -> float:
        """a, what a change adds to f."""
        ...

    @property
    def decay(self) -> float:
        """b, the share of it that is left an epoch later."""
        ...


class FollowingDevices(Devices[LawT]):
    """Devices that each follow a Boolean.

    Args:
        law: the constants of the job.
        booleans: of it, those of the Booleans.
    """

    def __init__(self, law: LawT, booleans: FollowingLaw) -> None:
        super().__init__(law)
        self._rules = booleans
        # f, what is left of its changes.
        self._followed = self._declare("followed", np.float64)
        # The last value known, and 2 more if it was unknown at the last epoch. The value before the
        # first epoch counts as 0.
        self._value = self._declare("value", np.uint8, new=_NEW)
        # Changes made, up to one more than are boosted.
        self._changes = self._declare("changes", np.min_scalar_type(booleans.changes + 2))

    @property
    def frozen(self) -> int:
        """Number of devices that had to leave out the boost of a change."""
        return int(np.count_nonzero(self._changes > self._rules.changes))

    def _begin_epoch(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        told: NDArray[np.bool_] | None,
    ) -> NDArray[np.int8]:
        """Check what is given of an epoch, and let those pass of which nothing was.

        Returns:
            the values, int8, shape (population,).
        """
        check_epoch(epoch, after=self.epoch, last_epoch=self._rules.last_epoch)
        now = checked_booleans(epoch, values, told, self.population)
        for _ in range(epoch - self.epoch - 1):
            self._followed *= self._rules.decay
        if epoch > self.epoch + 1:
            self._value[self._value < _UNKNOWN] |= _UNKNOWN
        self.epoch = epoch
        return now

    def _take_in(
        self, devices: slice, now: NDArray[np.int8], told: NDArray[np.bool_] | None
    ) -> None:
        """Follow the values of some devices: f and what it follows from."""
        rules = self._rules
        value, made, followed = (
            self._value[devices],
            self._changes[devices],
            self._followed[devices],
        )
        value[value == _NEW] = 0
        changed = (value & 1) != now
        if told is not None:
            changed &= told
        boosted = np.flatnonzero(changed & (value < _UNKNOWN) & (made < rules.changes))
        np.minimum(made + changed, rules.changes + 1, out=made, casting="unsafe")
        followed *= rules.decay
        followed[np.abs(followed) < _NOTHING] = 0
        followed[boosted] += np.where(now[boosted], rules.boost, -rules.boost)
        if told is None:
            value[:] = now
        else:
            value[:] = np.where(told, now, value | _UNKNOWN)
