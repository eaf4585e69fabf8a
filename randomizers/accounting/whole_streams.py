"""Streams that are shuffled epoch by epoch, charged once.

A longitudinal randomizer with a loss of epsilon_0 for the whole stream is one randomizer whose
message is everything that a device ever sends. Shuffling each epoch by itself is post-processing of
shuffling these messages: so one bound, for as many users as are there throughout, covers all epochs
together, and there is nothing to compose. (Amplified losses of single epochs must not be composed:
noise of one stream is correlated.) It holds where

* everybody runs the same randomizer from the first epoch on;
* what is due at an epoch follows from what is public and from the device's own draw;
* nothing links the messages of a device across epochs;
* values do not react to what was published of earlier epochs.

Whoever was absent sends another message, of which fewer are alike: for them the local loss holds,
which rests on none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpstream.randomizers.accounting.amplification import (
    amplified_delta,
    amplified_epsilon,
    most_local_loss,
    of_any_randomizer,
)


def delta_of_streams(loss: float, users: int, epsilon: float) -> float:
    """The least delta for an epsilon of shuffled streams.

    Args:
        loss: epsilon_0, of a whole stream.
        users: there at all epochs and honest, the one in question included.
        epsilon: of the guarantee.
    """
    return amplified_delta(of_any_randomizer(loss), users, epsilon)


def epsilon_of_streams(loss: float, users: int, delta: float) -> float:
    """The least epsilon for a delta of shuffled streams, rounded up.

    >>> round(epsilon_of_streams(1.0, 100_000, 1e-6), 5)
    0.01528
    """
    return amplified_epsilon(of_any_randomizer(loss), users, delta)


def local_loss_of_streams(epsilon: float, delta: float, users: int) -> float:
    """The largest loss of a whole stream that shuffling brings down to epsilon.

    >>> round(local_loss_of_streams(0.5, 1e-6, 100_000), 2)
    5.92
    """
    return most_local_loss(epsilon, delta, users, lambda loss: [of_any_randomizer(loss)])


@dataclass(frozen=True, slots=True)
class Charged:
    """What a longitudinal stream is charged, once for all epochs.

    Attributes:
        throughout: users who are known to have been there at all epochs.
        epsilon: of theirs, shuffled, with `delta`; never more than the local loss.
        delta: the same.
        others: epsilon of everybody else: the local loss, with delta 0.
    """

    throughout: int
    epsilon: float
    delta: float
    others: float


def charged_once(loss: float, throughout: int, delta: float) -> Charged:
    """What is charged for streams of which so many were there at all epochs.

    >>> charged = charged_once(1.0, throughout=100_000, delta=1e-6)
    >>> round(charged.epsilon, 5), charged.others
    (0.01528, 1.0)
    >>> charged_once(1.0, throughout=0, delta=1e-6).epsilon  # of nobody: no shuffling hides it
    1.0
    """
    if throughout < 2:
        return Charged(throughout, loss, 0.0, loss)
    epsilon = epsilon_of_streams(loss, throughout, delta)
    return Charged(throughout, epsilon, delta if epsilon < loss else 0.0, loss)


def there_throughout(enrolled: Mapping[bytes, int], windows: Iterable[Mapping[bytes, int]]) -> int:
    """How many devices were in every window, at least, from what is public of producers.

    A window says of how many devices of a producer it holds reports, not of which. Of a producer
    with m devices, c of which were in a window, m - c were not; the devices that were absent at all
    may be as many as these numbers add up to.

    Args:
        enrolled: by producer, how many devices it has stood for in all.
        windows: of every epoch, by producer, of how many devices it holds reports.

    >>> weeks = [{b"a": 10, b"b": 5}, {b"a": 9, b"b": 5}, {b"a": 10}]
    >>> there_throughout({b"a": 10, b"b": 5, b"c": 7}, weeks)  # nine of a; b was missing once
    9
    """
    seen: Sequence[Mapping[bytes, int]] = tuple(windows)
    if not seen:
        return 0
    return sum(
        max(0, devices - sum(devices - window.get(producer, 0) for window in seen))
        for producer, devices in enrolled.items()
    )
