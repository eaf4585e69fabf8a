"""Private keys with which a process opens sealed reports. Most jobs need no keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


@dataclass(frozen=True, slots=True)
class KeyRing:
    keys: dict[bytes, X25519PrivateKey] = field(repr=False)
    source: str = "memory"

    @classmethod
    def of(cls, private_keys: Iterable[X25519PrivateKey], source: str = "memory") -> Self:
        from dpstream.pipeline.jobs.sealing_keys import public_bytes

        return cls({public_bytes(key): key for key in private_keys}, source)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        from dpstream.pipeline.jobs.sealing_keys import private_keys_in

        return cls.of(private_keys_in(folder).values(), str(folder))

    def find(self, public_key: bytes) -> X25519PrivateKey | None:
        return self.keys.get(public_key)


NO_KEYS: Final = KeyRing({}, "nowhere")
