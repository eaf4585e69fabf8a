"""The password of the live page: stored as an scrypt hash (RFC 7914), compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.whole_files import read_whole_text, write_new

SHORTEST = 8
LONGEST = 1_024

_FORM = "dpstream-scrypt"
_COST, _BLOCK, _PARALLEL = 1 << 15, 8, 1
_MEMORY = 64 << 20
_BYTES = 32


class PasswordError(DpstreamError):
    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class HashedPassword:
    """Salted scrypt hash that verifies a password without revealing it; `cost` is scrypt's N."""

    salt: bytes
    digest: bytes
    cost: int = _COST

    @classmethod
    def of(cls, password: str, cost: int = _COST) -> Self:
        """Hash a password; raise `PasswordError` if it is too short or too long."""
        if not SHORTEST <= len(password) <= LONGEST:
            raise PasswordError(
                f"the password has {len(password):,} characters; expected {SHORTEST} to {LONGEST:,}"
            )
        salt = secrets.token_bytes(16)
        return cls(salt, _scrypt(password, salt, cost), cost)

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            form, cost, salt, digest = read_whole_text(path).strip().split("$")
            found = cls(_bytes(salt), _bytes(digest), int(cost))
        except (ValueError, OSError):
            form, found = "", None
        sound = found is not None and found.cost in (1 << power for power in range(10, 16))
        if found is None or form != _FORM or not sound or len(found.digest) != _BYTES:
            raise PasswordError(
                f"{path} is not a password file. Create one: 'dpstream password {path}'"
            )
        return found

    def matches(self, password: str) -> bool:
        """Return whether a password is right, after about 0.1 s for any password."""
        if len(password) > LONGEST:
            return False
        return hmac.compare_digest(_scrypt(password, self.salt, self.cost), self.digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"{_FORM}${self.cost}${salt}${digest}"


def write_password(path: Path, password: str) -> None:
    """Write a password's hash to a file that only the file's owner can read.

    Raises `PasswordError` if the password is invalid, or the file cannot be written.
    """
    text = f"{HashedPassword.of(password)}\n"
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_new(beside, text.encode(), 0o600)
        try:
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PasswordError(f"cannot write {path}: {error.strerror}") from None


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    secret = password.encode()
    return hashlib.scrypt(
        secret, salt=salt, n=cost, r=_BLOCK, p=_PARALLEL, maxmem=_MEMORY, dklen=_BYTES
    )


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
