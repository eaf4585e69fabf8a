"""What a stage is given from outside: clocks, randomness, keys and scratch files."""

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
from dpstream.topics.manifests import Fate

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.key_files import NoiseKey


@dataclass(frozen=True, slots=True)
class FinishedWindow:
    """A window that a stage is done with.

    Which devices take part is public, so that `contributors` is no secret of anybody.

    Attributes:
        epoch: of the window.
        fate: what was decided; who aggregates sees released windows only.
        contributors: devices present; None where the stage does not learn it.
        began: when the stage saw the window's first record, on the clock of its driver.
        decided_at: when the window was decided, in milliseconds since 1970 by the broker's clock;
            for a stage that waits for that decision.
    """

    epoch: int
    fate: Fate
    contributors: int | None = None
    began: float | None = None
    decided_at: int | None = None

    def seconds(self, clock: float, wall_clock: int) -> float:
        """How long the stage took, at a moment given on its driver's clock and the broker's.

        >>> FinishedWindow(7, Fate.RELEASED, 100, began=20.0).seconds(22.5, 0)
        2.5
        >>> FinishedWindow(7, Fate.RELEASED, decided_at=20_000).seconds(9.0, 22_500)
        2.5
        """
        if self.began is not None:
            return max(0.0, clock - self.began)
        return 0.0 if self.decided_at is None else max(0, wall_clock - self.decided_at) / 1000


WindowListener: TypeAlias = Callable[[FinishedWindow], None]


def ignore_window(window: FinishedWindow) -> None:
    """Listen to none."""


Scratch: TypeAlias = Callable[[], BinaryIO]
"""Opens a scratch file."""

SCRATCH_FILE_BYTES: Final = 1 << 20
"""What an open scratch file counts for in the memory that a stage holds; there are few."""
BLOCK_BYTES: Final = 1 << 22
"""What is read of them at a time."""


def temporary_file() -> BinaryIO:
    """Scratch space in the system's temporary folder; it vanishes with the process."""
    return tempfile.TemporaryFile()


def _identifier() -> bytes:
    return secrets.token_bytes(IDENTIFIER_BYTES)


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The edge of a stage, which does no input or output of its own.

    Attributes:
        identifiers: makes the random 16-byte ids of attempts.
        wall_clock: milliseconds since 1970, for the timestamps of manifests.
        broker_time: milliseconds since 1970 by the broker's clock; None while it is not known, and
            then no calendar decides a window.
        generator: cryptographic generator for ``order: random``.
        scratch: opens scratch files for windows whose words do not fit a table of counts.
        noise_key: of a job whose shuffle stage adds noise.
        keys: of this stage, where reports are sealed.
        listener: is told of every window that this worker has decided or written.
    """

    identifiers: Callable[[], bytes] = _identifier
    wall_clock: Callable[[], int] = _milliseconds
    broker_time: Callable[[], int | None] = lambda: None
    generator: np.random.Generator = field(default_factory=cryptographic_generator)
    scratch: Scratch = temporary_file
    noise_key: NoiseKey | None = None
    keys: KeyRing = NO_KEYS
    listener: WindowListener = ignore_window
