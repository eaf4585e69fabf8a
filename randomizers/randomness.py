"""Cryptographic random generators: AES-128 in counter mode (randomgen's `AESCounter`).

A single device reads the operating system's randomness instead
(`dpstream.randomizers.byte_generator`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from functools import cache
from typing import TypeVar
from weakref import WeakSet

import numpy as np
from randomgen import AESCounter

KEY_BYTES = 32

CounterType = TypeVar("CounterType", bound=AESCounter)


class _OwnOfAProcess(AESCounter):  # type: ignore[misc]
    """AES-128 in counter mode, registered so that a forked child can rekey it."""


@cache
def _of_this_process() -> WeakSet[_OwnOfAProcess]:
    """Return the generators of this process; a forked child rekeys them.

    Otherwise parent and child would draw the same numbers: two reports with the same noise reveal
    the difference between their contents.
    """
    generators: WeakSet[_OwnOfAProcess] = WeakSet()

    def new_key() -> None:
        for generator in generators:
            generator.state = _counter(_OwnOfAProcess, secrets.token_bytes(KEY_BYTES)).state

    os.register_at_fork(after_in_child=new_key)
    return generators


def cryptographic_generator() -> np.random.Generator:
    """Return a generator keyed with 256 bits from the operating system; forks rekey it."""
    counter = _counter(_OwnOfAProcess, secrets.token_bytes(KEY_BYTES))
    _of_this_process().add(counter)
    return np.random.Generator(counter)


def seeded_generator(*keys: int) -> np.random.Generator:
    """Return a reproducible generator for tests and simulations; different keys are independent.

    >>> int(seeded_generator(1, 2).integers(1000)) == int(seeded_generator(1, 2).integers(1000))
    True
    """
    return keyed_generator(hashlib.sha256(repr(keys).encode()).digest())


def keyed_generator(key: bytes) -> np.random.Generator:
    if len(key) != KEY_BYTES:
        raise ValueError(f"generator key has {len(key)} bytes; expected {KEY_BYTES}")
    return np.random.Generator(_counter(AESCounter, key))


def _counter(kind: type[CounterType], key: bytes) -> CounterType:
    half = KEY_BYTES // 2
    counter: CounterType = kind(
        key=int.from_bytes(key[:half], "little"), counter=int.from_bytes(key[half:], "little")
    )
    return counter
