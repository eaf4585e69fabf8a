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
"""Maximum number of parameters: a record is then at most 512 KiB, and Kafka accepts 1 MB."""


def record_bytes(numbers: int) -> int:
    return _HEADER_BYTES + _NUMBER.itemsize * numbers


@dataclass(frozen=True, slots=True, eq=False)
class ModelRecord:
    """The parameters of a model after a step.

    Attributes:
        epoch: Epoch of the step; devices use the model in the next epoch.
        model: Finite float64 parameters, shape (numbers,), 1 to `MAX_NUMBERS`.
    """

    deployment: bytes
    epoch: int
    model: NDArray[np.float64]

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment)
        check_range("epoch", self.epoch, 1)
        check_range("number of model parameters", self.model.size, 1, MAX_NUMBERS)
        if not np.isfinite(self.model).all():
            raise CodecError("a model parameter is infinite or NaN; expected finite numbers")

    def to_bytes(self) -> bytes:
        """Serialize magic and version, deployment, epoch (uint64), parameters (float64), CRC-32C.

        Integers are little-endian; equal models have identical bytes.
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
            raise CodecError(f"record starts with {data[:5].hex()}; expected {MAGIC.hex()}")
        numbers, rest = divmod(len(data) - _HEADER_BYTES, _NUMBER.itemsize)
        if rest or not 1 <= numbers <= MAX_NUMBERS:
            raise CodecError(f"{len(data)} bytes are not a model of 1 to {MAX_NUMBERS} parameters")
        if crc32c(data[:-4]).to_bytes(4, "little") != data[-4:]:
            raise CodecError("model is corrupt: checksum mismatch")
        start = len(MAGIC)
        return cls(
            data[start : start + 16],
            int.from_bytes(data[start + 16 : start + 24], "little"),
            np.frombuffer(data[start + 24 : -4], _NUMBER).astype(np.float64),
        )
