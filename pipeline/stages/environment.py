"""Inputs injected into a stage: clocks, randomness, keys and spill files."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

import numpy as np

from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.manifests import WindowStatus

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.key_files import NoiseKey


@dataclass(frozen=True, slots=True)
class FinishedWindow:
    """Summary of a window that a stage has finished.

    `contributors` is public, and None if the stage does not know it. `began` is on the clock of the
    stage's driver. Later stages know only `decided_at`, in milliseconds by the broker's clock.
    """

    epoch: int
    window_status: WindowStatus
    contributors: int | None = None
    began: float | None = None
    decided_at: int | None = None

    def seconds(self, clock: float, wall_clock: int) -> float:
        """Return the stage's processing time, given the driver's and the broker's current time.

        >>> FinishedWindow(7, WindowStatus.RELEASED, 100, began=20.0).seconds(22.5, 0)
        2.5
        >>> FinishedWindow(7, WindowStatus.RELEASED, decided_at=20_000).seconds(9.0, 22_500)
        2.5
        """
        if self.began is not None:
            return max(0.0, clock - self.began)
        return 0.0 if self.decided_at is None else max(0, wall_clock - self.decided_at) / 1000


WindowListener: TypeAlias = Callable[[FinishedWindow], None]


def ignore_window(window: FinishedWindow) -> None: ...


OpenSpillFile: TypeAlias = Callable[[], BinaryIO]
"""Function that opens a spill file."""

SPILL_FILE_BYTES: Final = 1 << 20
"""Bytes of memory that a stage counts for each of its few open spill files."""
BLOCK_BYTES: Final = 1 << 22
"""Bytes read from spill files at a time."""


def temporary_file() -> BinaryIO:
    return tempfile.TemporaryFile()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """External dependencies of a stage, which itself does no input or output.

    `identifiers` generates the random 16-byte IDs of attempts. `wall_clock` and `broker_time`
    return milliseconds since 1970. While `broker_time` returns None, no window is decided by the
    calendar. `listener` is called with every window this worker has decided or written.
    """

    identifiers: Callable[[], bytes] = lambda: secrets.token_bytes(IDENTIFIER_BYTES)
    wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    broker_time: Callable[[], int | None] = lambda: None
    generator: np.random.Generator = field(default_factory=cryptographic_generator)
    open_spill_file: OpenSpillFile = temporary_file
    noise_key: NoiseKey | None = None
    keys: KeyRing = NO_KEYS
    listener: WindowListener = ignore_window
