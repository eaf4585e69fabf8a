"""File size limits that simulate a full disk, for this process alone and without root."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_room(after: int = 0) -> Iterator[None]:
    """Make writes fail once a file reaches a size, with the error that it is too large.

    Bytecode caching is off meanwhile: Python would keep a truncated file and fail to import it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    keeps_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = keeps_none
