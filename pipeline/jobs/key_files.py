"""Private key files: accessible only to their owner, written once, and checked at every read.

| key | format | holder | what its reader can do |
|---|---|---|---|
| noise key | 32 bytes | all shuffle workers of a job | remove the noise from released windows |
| collector key | 32 bytes | all collectors of a job | identify the reports of a known device |
| sealing key | PEM, X25519 | one party, see `sealing_keys` | read what was sealed to it |
| signing key | PEM, Ed25519 | operators, see `descriptions` | sign false job descriptions |
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Self, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.state import private_folder
from dpstream.pipeline.whole_files import WholeFileError, open_regular, write_new
from dpstream.randomizers.randomness import keyed_generator

KEY_BYTES: Final = 32
_LONGEST_FILE = 4096
_EPOCH_BYTES = 8

_PrivateKey = TypeVar("_PrivateKey", X25519PrivateKey, Ed25519PrivateKey)


class WrongKeyError(DpstreamError):
    """A key is missing, wrong, or accessible to other users; the message states the fix."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class SecretKey:
    """Secret of 32 random bytes; a deployed job identifies it by its digest."""

    secret: bytes = field(repr=False)

    NAME: ClassVar[str]

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise WrongKeyError(f"{self.NAME} has {len(self.secret)} bytes; expected {KEY_BYTES}")

    @classmethod
    def random(cls) -> Self:
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a key; raise `WrongKeyError` if other users can access its file."""
        option = cls.NAME.replace(" ", "-")
        remedy = (
            f"copy it from the machine that deployed the job, or name another file with --{option}"
        )
        secret = read_key_file(path, cls.NAME, remedy)
        if len(secret) != KEY_BYTES:
            raise WrongKeyError(
                f"{path} does not contain a {cls.NAME}: got {len(secret)} bytes; expected "
                f"{KEY_BYTES}. Check the file name"
            )
        return cls(secret)

    @classmethod
    def at(cls, path: Path) -> Self:
        """Read the key in a file, or create a missing file; raises like `read`."""
        key = cls.random()
        try:
            write_key_file(path, key.secret)
        except FileExistsError:
            return cls.read(path)
        return key

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.secret).digest()


class NoiseKey(SecretKey):
    """Key that makes a window's noise the same whichever worker draws it, and however often.

    Otherwise, averaging two noisy versions of the same counts would reduce the noise. The noise is
    therefore a function of the key, the deployment and the epoch.

    >>> key, deployment = NoiseKey(bytes(32)), bytes(16)
    >>> first, again, other = (key.generator(deployment, epoch).bytes(8) for epoch in (1, 1, 2))
    >>> first == again, first == other
    (True, False)
    """

    __slots__ = ()
    NAME = "noise key"

    def generator(self, deployment: bytes, epoch: int) -> np.random.Generator:
        """Return the generator for a window: AES-128 in counter mode, keyed by HMAC-SHA256."""
        window = deployment + epoch.to_bytes(_EPOCH_BYTES, "big")
        return keyed_generator(hmac.digest(self.secret, window, "sha256"))


class CollectorKey(SecretKey):
    """Key for the tags that replace device names; a second key would let devices report twice."""

    __slots__ = ()
    NAME = "collector key"


def read_key_file(path: Path, name: str, remedy: str = "", *, private: bool = True) -> bytes:
    """Read a key file, at most 4,096 bytes.

    Messages contain `name`, and `remedy` if the file is missing. Raises `WrongKeyError` if the file
    is not a regular file, cannot be read or, if `private`, is accessible to other users.
    """
    try:
        with open_regular(path) as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(_LONGEST_FILE)
    except WholeFileError as error:
        raise WrongKeyError(f"{path} does not contain a {name}: {error.strerror}") from None
    except OSError as error:
        if remedy and isinstance(error, FileNotFoundError):
            raise WrongKeyError(f"{name} {path} does not exist: {remedy}") from None
        raise WrongKeyError(f"cannot read the {name} {path}: {error.strerror}") from None
    if private and mode & 0o077:
        raise WrongKeyError(
            f"other users have access to the {name} {path}. Restrict it: 'chmod 600 {path}'"
        )
    return content


def write_key_file(path: Path, content: bytes) -> None:
    """Write a new key file that only its owner can access; raise `FileExistsError` if it exists.

    If a key is lost, data sealed to it cannot be opened, and deployments with it cannot continue.
    """
    private_folder(path.absolute().parent)
    write_new(path, content, 0o600)


def read_pem(path: Path, name: str, kind: type[_PrivateKey]) -> _PrivateKey:
    try:
        key = load_pem_private_key(read_key_file(path, name), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, kind):
        algorithm = kind.__name__.removesuffix("PrivateKey")
        raise WrongKeyError(f"{path} does not contain an unencrypted {algorithm} {name}")
    return key


def write_pem(path: Path, key: X25519PrivateKey | Ed25519PrivateKey) -> None:
    write_key_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def erase_key_file(path: Path) -> None:
    """Overwrite a private key with zeros, and delete its file; raise `WrongKeyError` on failure."""
    try:
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except OSError as error:
        raise WrongKeyError(f"cannot erase {path}: {error.strerror}") from None
