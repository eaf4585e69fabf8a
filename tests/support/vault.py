"""A scheme of attestation: a vault in the machine, whose maker's key verifiers know.

As hardware would, it signs what it is asked to vouch for with what it has measured; here that is a
file of the test's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAKER = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"maker").digest())
_MEASURED = 32


@dataclass(frozen=True)
class Vault:
    """Vouches for what was measured when its machine started.

    Attributes:
        measured: SHA-256 of what runs.
        trusted: what verifiers take for right.
        key: of who has made the vault.
    """

    measured: bytes = hashlib.sha256(b"image").digest()
    trusted: bytes = hashlib.sha256(b"image").digest()
    key: Ed25519PrivateKey = MAKER

    def document(self, binding: bytes) -> bytes:
        """See `Attestation`."""
        return self.measured + self.key.sign(self.measured + binding)

    def verify(self, document: bytes, binding: bytes) -> str:
        """See `Attestation`."""
        measured, signature = document[:_MEASURED], document[_MEASURED:]
        try:
            MAKER.public_key().verify(signature, measured + binding)
        except InvalidSignature:
            raise ValueError("its maker did not sign this about it") from None
        if measured != self.trusted:
            raise ValueError(f"image {measured.hex()[:6]} is not the one to run")
        return f"a vault measured image {measured.hex()[:6]}"


vault = Vault()
