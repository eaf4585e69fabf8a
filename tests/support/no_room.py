"""Simulate a full disk by a file size limit, only for this process and without root."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_room(after: int = 0) -> Iterator[None]:
    """Make writes fail with EFBIG when a file reaches a size.

    Bytecode caching is disabled meanwhile, because Python would fail to import truncated files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    keeps_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = keeps_none
