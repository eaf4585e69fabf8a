"""Records of ``<job>.model``: the model after every step, for all devices to read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from dpstream.topics.frames import CodecError, check_identities, check_range

MAGIC = b"dpsm\x01"

_HEADER_BYTES = len(MAGIC) + 16 + 8 + 4
_NUMBER = np.dtype("<f8")
MAX_NUMBERS = 1 << 16
"""Maximum numbers in a model: a record has at most 512 KiB, and Kafka accepts at most 1 MB."""


def record_bytes(numbers: int) -> int:
    return _HEADER_BYTES + _NUMBER.itemsize * numbers


@dataclass(frozen=True, slots=True, eq=False)
class ModelRecord:
    """A model.

    Attributes:
        epoch: The job's epoch of the step; devices use the model in the next one.
        model: float64, finite, shape (numbers,), 1 to `MAX_NUMBERS` of them.
    """

    deployment: bytes
    epoch: int
    model: NDArray[np.float64]

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment)
        check_range("epoch", self.epoch, 1)
        check_range("numbers of a model", self.model.size, 1, MAX_NUMBERS)
        if not np.isfinite(self.model).all():
            raise CodecError("a number of a model is not finite")

    def to_bytes(self) -> bytes:
        """Return magic and version, deployment, epoch (u8), numbers (f8), and a CRC-32C of all.

        Little-endian; equal models have equal bytes.
        """
        body = b"".join(
            (
                MAGIC,
                self.deployment,
                self.epoch.to_bytes(8, "little"),
                self.model.astype(_NUMBER).tobytes(),
            )
        )
        return body + crc32c(body).to_bytes(4, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> ModelRecord:
        if not data.startswith(MAGIC):
            raise CodecError(f"record starts with {data[: len(MAGIC)].hex()} and is not a model")
        numbers, rest = divmod(len(data) - _HEADER_BYTES, _NUMBER.itemsize)
        if rest or not 1 <= numbers <= MAX_NUMBERS:
            raise CodecError(f"model has an invalid size of {len(data)} bytes")
        if crc32c(data[:-4]).to_bytes(4, "little") != data[-4:]:
            raise CodecError("model is corrupt: checksum mismatch")
        start = len(MAGIC)
        return cls(
            data[start : start + 16],
            int.from_bytes(data[start + 16 : start + 24], "little"),
            np.frombuffer(data[start + 24 : -4], _NUMBER).astype(np.float64),
        )
