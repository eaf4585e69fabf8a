"""Scratch files: what is too much for memory waits there, and vanishes with the process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import BinaryIO, Final, TypeAlias

Scratch: TypeAlias = Callable[[], BinaryIO]
"""Opens a scratch file."""

SCRATCH_FILE_BYTES: Final = 1 << 20
"""What an open scratch file counts for in the memory that a stage holds; there are few."""
BLOCK_BYTES: Final = 1 << 22
"""What is read of them at a time."""


def temporary_file() -> BinaryIO:
    """Scratch space in the system's temporary folder; it vanishes with the process."""
    return tempfile.TemporaryFile()
