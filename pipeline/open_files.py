"""Raise the limit on open files, for connections and for spill files of large windows."""

from __future__ import annotations

import resource


def room_for_files(requested: int) -> int:
    """Raise the soft limit on open files up to `requested`, and return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < requested:
        soft = requested if hard == resource.RLIM_INFINITY else min(requested, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(requested, soft)
