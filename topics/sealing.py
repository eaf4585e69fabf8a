"""Sealed boxes: bytes that only the holder of one key can open, and nobody can read or alter.

HPKE (RFC 9180) in its base mode, with X25519, HKDF-SHA256 and AES-128-GCM. Every box has an
ephemeral key of its own, so boxes of equal contents are as different as boxes of others, and a sort
by their bytes is a random order. What a box is about goes into its context: it opens nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

KEY_ID_BYTES: Final = 8
BOX_BYTES: Final = 48
"""What a box has more than its content: an ephemeral public key (32) and a tag (16)."""

_LABEL = b"dpstream sealed report"


@dataclass(frozen=True, slots=True)
class Lock:
    """What boxes for one party and one epoch are sealed to.

    Attributes:
        public_key: 32 bytes, of X25519.
        context: see `sealing_context`.
    """

    public_key: bytes
    context: bytes


def key_id(public_key: bytes) -> bytes:
    """The first 8 bytes of the SHA-256 of a public key, by which records name it."""
    return hashlib.sha256(public_key).digest()[:KEY_ID_BYTES]


def sealing_context(party: str, deployment: bytes, fingerprint: bytes, epoch: int) -> bytes:
    """What a box is about, which HPKE takes as its `info`.

    Args:
        party: who opens it: "stage 1", "stage 2", ... or "aggregate".
        deployment: 16 bytes.
        fingerprint: 16 bytes.
        epoch: at least 1.
    """
    return b"".join(
        (_LABEL, b"\0", party.encode(), b"\0", deployment, fingerprint, epoch.to_bytes(8, "little"))
    )


def device_context(deployment: bytes, fingerprint: bytes, epoch: int, report: bytes) -> bytes:
    """What the box in a device's envelope is about.

    RFC 9180 would have it in `aad`, which single shots of the library do not take; in `info` it
    binds as well.

    Args:
        deployment: 16 bytes.
        fingerprint: 16 bytes.
        epoch: at least 1.
        report: 16 bytes, id of the report.
    """
    return sealing_context("device", deployment, fingerprint, epoch) + report


def seal(content: bytes, lock: Lock) -> bytes:
    """A box of `BOX_BYTES` more bytes than its content."""
    public_key = X25519PublicKey.from_public_bytes(lock.public_key)
    return _suite().encrypt(content, public_key, lock.context)


def seal_all(contents: list[bytes], lock: Lock) -> list[bytes]:
    """A box of each."""
    public_key = X25519PublicKey.from_public_bytes(lock.public_key)
    suite, context = _suite(), lock.context
    return [suite.encrypt(content, public_key, context) for content in contents]


def unseal(box: bytes, private_key: X25519PrivateKey, context: bytes) -> bytes | None:
    """The content of a box; None if it was sealed to another key or context, or altered."""
    (content,) = unseal_all([box], private_key, context)
    return content


def unseal_all(
    boxes: list[bytes], private_key: X25519PrivateKey, context: bytes
) -> list[bytes | None]:
    """The contents of boxes, None for those that do not open."""
    return unseal_each(boxes, private_key, repeat(context))


def unseal_each(
    boxes: list[bytes], private_key: X25519PrivateKey, contexts: Iterable[bytes]
) -> list[bytes | None]:
    """The contents of boxes, each about something of its own, None for those that do not open."""
    suite = _suite()
    contents: list[bytes | None] = []
    for box, context in zip(boxes, contexts, strict=False):
        try:
            contents.append(suite.decrypt(box, private_key, context))
        except (InvalidTag, ValueError):
            contents.append(None)
    return contents


def _suite() -> Suite:
    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
