"""Noise keys: what makes the noise of the shuffle stage the same whoever draws it, however often.

Two noisy versions of the same counts could be averaged. So a window's noise is a function of the
noise key, the deployment and the epoch, and all shuffle workers of a job share the key. Whoever
else has it can take the noise off what was released: a key is as secret as the values.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.state import private_folder
from dpstream.pipeline.whole_files import WholeFileError, open_regular, write_new
from dpstream.randomizers.randomness import keyed_generator

KEY_BYTES = 32
_EPOCH_BYTES = 8


class NoiseKeyError(DpstreamError):
    """A noise key is missing or is not the right one; the message says what to do."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """A secret of 32 random bytes.

    >>> key, deployment = NoiseKey(bytes(32)), bytes(16)
    >>> first, again, other = (key.generator(deployment, epoch).bytes(8) for epoch in (1, 1, 2))
    >>> first == again, first == other
    (True, False)

    Raises:
        NoiseKeyError: it has another length.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise NoiseKeyError(f"a noise key of {len(self.secret)} bytes, must be {KEY_BYTES}")

    @classmethod
    def random(cls) -> Self:
        """A new one."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @property
    def digest(self) -> bytes:
        """SHA-256, which a deployed job names its key by."""
        return hashlib.sha256(self.secret).digest()

    def generator(self, deployment: bytes, epoch: int) -> np.random.Generator:
        """The randomness of a window's noise: AES-128 in counter mode, keyed by HMAC-SHA256."""
        window = deployment + epoch.to_bytes(_EPOCH_BYTES, "big")
        return keyed_generator(hmac.digest(self.secret, window, "sha256"))


def read_noise_key(path: Path) -> NoiseKey:
    """The noise key in a file.

    Raises:
        NoiseKeyError: there is none, or others than the file's owner have access to it.
    """
    try:
        with open_regular(path) as file:
            mode, secret = os.fstat(file.fileno()).st_mode, file.read(KEY_BYTES + 1)
    except WholeFileError as error:
        raise NoiseKeyError(f"{path} holds no noise key: {error.strerror}") from None
    except FileNotFoundError:
        raise NoiseKeyError(
            f"there is no noise key {path}: copy it from where the job was deployed, or name "
            "another file by --noise-key"
        ) from None
    if mode & 0o077:
        raise NoiseKeyError(f"others have access to the noise key {path}: chmod 600 {path}")
    try:
        return NoiseKey(secret)
    except NoiseKeyError:
        raise NoiseKeyError(
            f"{path} holds no noise key, which is {KEY_BYTES} bytes: is it the right file?"
        ) from None


def noise_key_at(path: Path) -> NoiseKey:
    """The noise key in a file, which is made, for its owner alone, if it is missing.

    Raises:
        NoiseKeyError: the file is there and holds none, or others have access to it.
    """
    private_folder(path.absolute().parent)
    key = NoiseKey.random()
    try:
        # A deployment whose key was lost with the machine could not go on.
        write_new(path, key.secret, 0o600)
    except FileExistsError:
        return read_noise_key(path)
    return key
