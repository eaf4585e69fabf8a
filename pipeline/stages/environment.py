"""What a stage is given from outside: clocks, randomness, keys and scratch files."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.stages.finished_windows import WindowListener, ignore_window
from dpstream.pipeline.stages.scratch import Scratch, temporary_file
from dpstream.randomizers.randomness import cryptographic_generator

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.key_files import NoiseKey


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
