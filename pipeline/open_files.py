"""Room for open files: connections, and scratch files of large windows."""

from __future__ import annotations

import resource


def room_for_files(wanted: int) -> int:
    """Raise this process's soft limit of open files as far as need be and as the hard one allows.

    Args:
        wanted: how many files.

    Returns:
        How many of these it can have open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft)
