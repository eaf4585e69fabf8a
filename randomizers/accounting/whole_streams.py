"""Privacy amplification for streams that are shuffled epoch by epoch and charged once.

A longitudinal randomizer with a loss of epsilon_0 for the whole stream can be seen as a randomizer
with a single message: everything that a device ever sends. Shuffling each epoch separately is
post-processing of shuffling these messages. So one bound, for the number of users present
throughout, covers all epochs together, without composition. (Amplified losses of single epochs must
not be composed, since the noise of one stream is correlated.) The bound assumes that

* all users run the same randomizer from the first epoch on;
* public data and the device's own draw determine which reports are due at an epoch;
* nothing links the messages of a device across epochs;
* values do not depend on what was published about earlier epochs.

A user who was absent sends a different message, which fewer other messages resemble. Such users
have the local loss, which does not need these assumptions.

If a device sends a single message for the whole stream, at a public epoch that does not depend on
values, the same bounds hold with the number of honest users whose messages are in that window. Then
values may depend on what was published, and absent users change nothing. If that message is
`binary`, a randomized bit, it is hidden better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpstream.randomizers.accounting.amplification import (
    HiddenCoin,
    amplified_delta,
    amplified_epsilon,
    most_local_loss,
    of_any_randomizer,
    of_randomized_response,
)


def _coins(loss: float, binary: bool) -> tuple[HiddenCoin, ...]:
    """Return models of a message as hidden coins, each of which gives a valid bound."""
    return (of_any_randomizer(loss), *([of_randomized_response(loss, 2)] if binary else []))


def delta_of_streams(loss: float, users: int, epsilon: float, binary: bool = False) -> float:
    """Return the least delta of shuffled streams for an epsilon.

    `loss` is the local loss epsilon_0 of a whole stream. `users` is the number of honest users
    present in all epochs, including the target user.
    """
    return min(amplified_delta(coin, users, epsilon) for coin in _coins(loss, binary))


def epsilon_of_streams(loss: float, users: int, delta: float, binary: bool = False) -> float:
    """Return the least epsilon of shuffled streams for a delta, rounded up.

    >>> round(epsilon_of_streams(1.0, 100_000, 1e-6), 5)
    0.01528
    """
    return min(amplified_epsilon(coin, users, delta) for coin in _coins(loss, binary))


def local_loss_of_streams(epsilon: float, delta: float, users: int, binary: bool = False) -> float:
    """Return the largest local loss of a whole stream that shuffling reduces to `epsilon`.

    >>> round(local_loss_of_streams(0.5, 1e-6, 100_000), 2)
    5.92
    """
    return most_local_loss(epsilon, delta, users, lambda loss: _coins(loss, binary))


@dataclass(frozen=True, slots=True)
class Charged:
    """Charge for longitudinal streams, made once for all epochs.

    Attributes:
        throughout: Number of users known to have been present in all epochs.
        epsilon: Epsilon for these users after shuffling, with `delta`; at most the local loss.
        others: Epsilon for all other users: the local loss, with delta 0.
    """

    throughout: int
    epsilon: float
    delta: float
    others: float


def charged_once(loss: float, throughout: int, delta: float) -> Charged:
    """Return the charge for streams if `throughout` of their users were present in all epochs.

    >>> charged = charged_once(1.0, throughout=100_000, delta=1e-6)
    >>> round(charged.epsilon, 5), charged.others
    (0.01528, 1.0)
    >>> charged_once(1.0, throughout=0, delta=1e-6).epsilon  # no amplification without users
    1.0
    """
    if throughout < 2:
        return Charged(throughout, loss, 0.0, loss)
    epsilon = epsilon_of_streams(loss, throughout, delta)
    return Charged(throughout, epsilon, delta if epsilon < loss else 0.0, loss)


def there_throughout(enrolled: Mapping[bytes, int], windows: Iterable[Mapping[bytes, int]]) -> int:
    """Return a lower bound on the devices present in every window, from public producer data.

    A window states how many of a producer's devices have reports in it, but not which ones. If c of
    a producer's m devices are in a window, m - c are absent. The number of devices absent from any
    window is at most the sum of these absences. `enrolled` maps each producer to its total number
    of devices. `windows` has one such mapping per epoch, of the devices present.

    >>> weeks = [{b"a": 10, b"b": 5}, {b"a": 9, b"b": 5}, {b"a": 10}]
    >>> there_throughout({b"a": 10, b"b": 5, b"c": 7}, weeks)  # 9 of a, none of b and c
    9
    """
    seen: Sequence[Mapping[bytes, int]] = tuple(windows)
    if not seen:
        return 0
    return sum(
        max(0, devices - sum(devices - window.get(producer, 0) for window in seen))
        for producer, devices in enrolled.items()
    )
