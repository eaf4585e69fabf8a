"""HPKE ciphertexts that only the holder of one private key can read; alterations are detected.

The scheme is HPKE (RFC 9180) in base mode, with X25519, HKDF-SHA256 and AES-128-GCM. Every
ciphertext has its own ephemeral key. So ciphertexts of equal contents differ as much as any others,
and sorting by their bytes gives a random order. The context binds a ciphertext to its use: it does
not decrypt with any other context. Base mode does not authenticate the sender: anyone with the
public key can create a ciphertext.
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
CIPHERTEXT_BYTES: Final = 48
"""Bytes of a ciphertext minus those of its content: an ephemeral public key (32) and a tag (16)."""

_LABEL = b"dpstream sealed report"


@dataclass(frozen=True, slots=True)
class Lock:
    public_key: bytes
    context: bytes


def key_id(public_key: bytes) -> bytes:
    """Return the first 8 bytes of a public key's SHA-256, which identify it in records."""
    return hashlib.sha256(public_key).digest()[:KEY_ID_BYTES]


def sealing_context(party: str, deployment: bytes, fingerprint: bytes, epoch: int) -> bytes:
    """Return the context of a ciphertext, used as HPKE's `info`.

    `party` is the decrypting party: "stage 1", "stage 2", ... or "aggregate".
    """
    return b"".join(
        (_LABEL, b"\0", party.encode(), b"\0", deployment, fingerprint, epoch.to_bytes(8, "little"))
    )


def device_context(deployment: bytes, fingerprint: bytes, epoch: int, report: bytes) -> bytes:
    """Return the context of the ciphertext in a device's envelope, with a 16-byte report ID.

    RFC 9180 has `aad` for data such as the report ID, but the library's single-shot API does not
    support it. `info` binds the ID equally well.
    """
    return sealing_context("device", deployment, fingerprint, epoch) + report


def seal(content: bytes, lock: Lock) -> bytes:
    """Encrypt a content, adding `CIPHERTEXT_BYTES` bytes."""
    public_key = X25519PublicKey.from_public_bytes(lock.public_key)
    return _suite().encrypt(content, public_key, lock.context)


def seal_all(contents: list[bytes], lock: Lock) -> list[bytes]:
    public_key = X25519PublicKey.from_public_bytes(lock.public_key)
    suite, context = _suite(), lock.context
    return [suite.encrypt(content, public_key, context) for content in contents]


def unseal(ciphertext: bytes, private_key: X25519PrivateKey, context: bytes) -> bytes | None:
    """Decrypt a content; return None if the key or context is wrong, or the ciphertext altered."""
    (content,) = unseal_all([ciphertext], private_key, context)
    return content


def unseal_all(
    ciphertexts: list[bytes], private_key: X25519PrivateKey, context: bytes
) -> list[bytes | None]:
    return unseal_each(ciphertexts, private_key, repeat(context))


def unseal_each(
    ciphertexts: list[bytes], private_key: X25519PrivateKey, contexts: Iterable[bytes]
) -> list[bytes | None]:
    """Decrypt ciphertexts, each with its own context; None for those that fail."""
    suite = _suite()
    contents: list[bytes | None] = []
    for ciphertext, context in zip(ciphertexts, contexts, strict=False):
        try:
            contents.append(suite.decrypt(ciphertext, private_key, context))
        except (InvalidTag, ValueError):
            contents.append(None)
    return contents


def _suite() -> Suite:
    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
