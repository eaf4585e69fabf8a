"""Sealing keys: files of public and private keys, and the private keys of a process.

Files are in PEM format, as ``openssl genpkey -algorithm X25519`` writes them. The holder of a
private key can read everything sealed to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from dpstream.pipeline.jobs.key_files import WrongKeyError, read_key_file, read_pem, write_pem
from dpstream.pipeline.whole_files import write_new

PRIVATE_SUFFIX: Final = ".key"
PUBLIC_SUFFIX: Final = ".pub"


def public_bytes(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def make_key_pair(private_file: Path, public_file: Path) -> bytes:
    key = X25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    if public_file.exists():
        raise WrongKeyError(f"{public_file} already exists. Use another name, or remove it")
    try:
        write_pem(private_file, key)
        try:
            write_new(public_file, public, 0o644)
        except BaseException:
            private_file.unlink()
            raise
    except FileExistsError as error:
        raise WrongKeyError(
            f"{error.filename} already exists. Use another name, or remove it; without the "
            "private key, data sealed to it can never be opened again"
        ) from None
    except OSError as error:
        raise WrongKeyError(f"cannot write {error.filename}: {error.strerror}") from None
    return public_bytes(key)


def read_public_key(path: Path) -> bytes:
    try:
        key = load_pem_public_key(read_key_file(path, "public key", private=False))
    except ValueError:
        key = None
    if not isinstance(key, X25519PublicKey):
        raise WrongKeyError(
            f"{path} does not contain an X25519 public key. To write one to NAME.pub: 'dpstream "
            "keygen NAME'"
        )
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def read_private_key(path: Path) -> X25519PrivateKey:
    return read_pem(path, "private key", X25519PrivateKey)  # type: ignore[type-abstract]


def private_keys_in(folder: Path) -> dict[Path, X25519PrivateKey]:
    files = sorted(folder.glob(f"*{PRIVATE_SUFFIX}")) if folder.is_dir() else []
    return {path: read_private_key(path) for path in files}
