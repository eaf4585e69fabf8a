"""Modules are loaded once and kept: a collector of garbage finds nothing in them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage meanwhile, and never in what is there then.

    Many modules are loaded a tenth sooner. Who reads long logs does not look through them again and
    again, nor does a process that ends.

    >>> with loading():
    ...     gc.isenabled()
    False
    >>> gc.isenabled(), gc.get_freeze_count() > 0
    (True, True)
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
