"""Keys of all parties, and job file sections, for sealed reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.sealing_keys import public_bytes
from dpstream.pipeline.state import private_folder

SHUFFLE_KEYS = ((2,), (3,), (4,))
"""Key numbers of three chained shufflers; the aggregator has key 1."""


def private_key(number: int) -> X25519PrivateKey:
    """Return the private key with this number."""
    return X25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))


def public_key(number: int) -> str:
    """Return the public key in the format of a deployed job."""
    return public_bytes(private_key(number)).hex()


def ring(numbers: Iterable[int]) -> KeyRing:
    return KeyRing.of(map(private_key, numbers), "the test")


def sealed_section(
    stages: Sequence[Sequence[int]], aggregate: Sequence[int] = (1,), rotate: int | None = None
) -> dict[str, Any]:
    """Return the job file section on sealing with keys of these numbers."""
    periods = {} if rotate is None else {"rotate": rotate}
    return {
        "aggregate": [public_key(number) for number in aggregate],
        "stages": [[public_key(number) for number in stage] for stage in stages],
        **periods,
    }


def shares_section(parties: Sequence[int] = (1, 2)) -> dict[str, Any]:
    return {"shares": [public_key(number) for number in parties]}


def all_keys(stages: Sequence[Sequence[int]], aggregate: Sequence[int] = (1,)) -> KeyRing:
    return ring(chain(aggregate, *stages))


def write_private_keys(folder: Path, numbers: Iterable[int]) -> None:
    """Write private keys as ``dpstream keygen`` does."""
    private_folder(folder)
    for number in numbers:
        path = folder / f"{number}.key"
        path.touch(mode=0o600)
        path.write_bytes(
            private_key(number).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
