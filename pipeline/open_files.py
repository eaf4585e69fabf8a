"""Limits on open files, needed for connections and spill files of large windows."""

from __future__ import annotations

import resource


def room_for_files(wanted: int) -> int:
    """Raise the soft limit of open files up to `wanted`; return how many of these are available."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft)
