"""Sealing keys: files of public and private keys, and the private ones that a process holds.

Files are PEM, as ``openssl genpkey -algorithm X25519`` writes them. Who has a private key reads
everything that was sealed to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.state import private_folder
from dpstream.pipeline.whole_files import WholeFileError, open_regular, write_new
from dpstream.topics.sealing import key_id

PRIVATE_SUFFIX: Final = ".key"
PUBLIC_SUFFIX: Final = ".pub"
_LONGEST_FILE = 4096


class SealingKeyError(DpstreamError):
    """A sealing key is missing, or no such key; the message says what to do."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The private keys that a process holds.

    Attributes:
        keys: by the ids of their public keys.
        source: where they are from, in words.
    """

    keys: dict[bytes, X25519PrivateKey] = field(repr=False)
    source: str = "memory"

    @classmethod
    def of(cls, private_keys: Iterable[X25519PrivateKey], source: str = "memory") -> Self:
        """A ring of some keys."""
        return cls({key_id(public_bytes(key)): key for key in private_keys}, source)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """The private keys in a folder, files that end in ``.key``; none if it does not exist.

        Raises:
            SealingKeyError: a file holds no private key, or others than its owner have access.
        """
        files = sorted(folder.glob(f"*{PRIVATE_SUFFIX}")) if folder.is_dir() else []
        return cls.of(map(read_private_key, files), str(folder))

    def find(self, public_key: bytes) -> X25519PrivateKey | None:
        """The private key to a public one; None if it is not here."""
        return self.keys.get(key_id(public_key))


NO_KEYS: Final = KeyRing({}, "nowhere")


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The public key to a private one, 32 bytes."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def make_key_pair(private_file: Path, public_file: Path) -> bytes:
    """Make a key pair, the private file for its owner alone; returns the public key.

    Raises:
        SealingKeyError: one of the files is there, or cannot be written.
    """
    key = X25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    if public_file.exists():
        raise SealingKeyError(f"{public_file} is there already: choose another name, or remove it")
    try:
        private_folder(private_file.absolute().parent)
        # What is sealed to a key that was lost with the machine can never be opened.
        write_new(private_file, private, 0o600)
        try:
            write_new(public_file, public, 0o644)
        except BaseException:
            private_file.unlink()
            raise
    except FileExistsError as error:
        raise SealingKeyError(
            f"{error.filename} is there already: choose another name, or remove it; who erases a "
            "private key can never again open what was sealed to it"
        ) from None
    except OSError as error:
        raise SealingKeyError(f"cannot write {error.filename}: {error.strerror}") from None
    return public_bytes(key)


def read_public_key(path: Path) -> bytes:
    """The public key in a file, 32 bytes.

    Raises:
        SealingKeyError: there is none.
    """
    _, data = _read(path, "public key")
    try:
        key = load_pem_public_key(data)
    except ValueError:
        key = None
    if not isinstance(key, X25519PublicKey):
        raise SealingKeyError(
            f"{path} holds no public key of X25519: dpstream keygen NAME writes one to NAME.pub"
        )
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def read_private_key(path: Path) -> X25519PrivateKey:
    """The private key in a file.

    Raises:
        SealingKeyError: there is none, or others than the file's owner have access to it.
    """
    mode, data = _read(path, "private key")
    if mode & 0o077:
        raise SealingKeyError(f"others have access to the private key {path}: chmod 600 {path}")
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise SealingKeyError(f"{path} holds no private key of X25519 without a password")
    return key


def _read(path: Path, what: str) -> tuple[int, bytes]:
    try:
        with open_regular(path) as file:
            return stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(_LONGEST_FILE)
    except WholeFileError as error:
        raise SealingKeyError(f"{path} holds no {what}: {error.strerror}") from None
    except OSError as error:
        raise SealingKeyError(f"cannot read the {what} {path}: {error.strerror}") from None
