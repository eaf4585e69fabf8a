"""Files that may not grow, as on a disk that is full; for this process alone, and without root."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_room(after: int = 0) -> Iterator[None]:
    """Writing a file fails once it has so many bytes: the system says that it is too large.

    Nothing that is imported meanwhile is compiled into a file: Python would keep the beginning of
    one that is too large, and nobody could import that module again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    keeps_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = keeps_none
