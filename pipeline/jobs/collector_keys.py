"""The key that all collectors of a job share, and nobody else has: it makes the tags of reports.

Whoever else has it could tell which reports are of a device whose id is known to them. With two
keys one device could report twice.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.state import private_folder
from dpstream.pipeline.whole_files import WholeFileError, open_regular, write_new
from dpstream.topics.loose_batches import COLLECTOR_KEY_BYTES


class CollectorKeyError(DpstreamError):
    """A collector key is missing or is not the right one; the message says what to do."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class CollectorKey:
    """A secret of 32 random bytes.

    Raises:
        CollectorKeyError: it has another length.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != COLLECTOR_KEY_BYTES:
            raise CollectorKeyError(
                f"a collector key of {len(self.secret)} bytes, must be {COLLECTOR_KEY_BYTES}"
            )

    @property
    def digest(self) -> bytes:
        """SHA-256, which a deployed job names its key by."""
        return hashlib.sha256(self.secret).digest()


def read_collector_key(path: Path) -> CollectorKey:
    """The collector key in a file.

    Raises:
        CollectorKeyError: there is none, or others than the file's owner have access to it.
    """
    try:
        with open_regular(path) as file:
            mode, secret = os.fstat(file.fileno()).st_mode, file.read(COLLECTOR_KEY_BYTES + 1)
    except WholeFileError as error:
        raise CollectorKeyError(f"{path} holds no collector key: {error.strerror}") from None
    except FileNotFoundError:
        raise CollectorKeyError(
            f"there is no collector key {path}: copy it from where the job was deployed, or name "
            "another file by --collector-key"
        ) from None
    if mode & 0o077:
        raise CollectorKeyError(f"others have access to the collector key {path}: chmod 600 {path}")
    return CollectorKey(secret)


def collector_key_at(path: Path) -> CollectorKey:
    """The collector key in a file, which is made, for its owner alone, if it is missing.

    Raises:
        CollectorKeyError: the file is there and holds none, or others have access to it.
    """
    private_folder(path.absolute().parent)
    key = CollectorKey(secrets.token_bytes(COLLECTOR_KEY_BYTES))
    try:
        # A deployment whose key was lost with the machine could not go on.
        write_new(path, key.secret, 0o600)
    except FileExistsError:
        return read_collector_key(path)
    return key
