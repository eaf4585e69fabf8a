"""Machines as slow as one likes, on one that is fast: processes that share a part of a core.

What several machines do in how much of the time of one cannot be seen on a single machine whose
cores are all at work already. Held to a part of a core each, they do not get in each other's way.
By control groups of Linux, of either version, which take root.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FIRST, _SECOND = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 20_000


class SlowHost:
    """Processes that get so much of a core between them.

    Args:
        folder: of a control group that is there.
        cores: a part of one, or several.
    """

    def __init__(self, folder: Path, cores: float) -> None:
        self._folder = folder
        quota = round(cores * _PERIOD_MICROSECONDS)
        if (whole := folder / "cpu.max").exists():
            whole.write_text(f"{quota} {_PERIOD_MICROSECONDS}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))

    def take(self, pid: int) -> None:
        """Let a process, with all of its threads, run here from now on."""
        (self._folder / "cgroup.procs").write_text(str(pid))


@contextmanager
def slow_hosts(count: int, cores: float) -> Iterator[list[SlowHost]]:
    """Some of them; what they have taken must have ended by the end.

    Raises:
        OSError: there are no such groups, or not for this user.
    """
    root = _FIRST if _FIRST.is_dir() else _SECOND
    if root is _SECOND:
        (root / "cgroup.subtree_control").write_text("+cpu")
    folders = [root / f"dpstream-{os.getpid()}-{secrets.token_hex(4)}" for _ in range(count)]
    made: list[Path] = []
    try:
        for folder in folders:
            folder.mkdir()
            made.append(folder)
        yield [SlowHost(folder, cores) for folder in made]
    finally:
        for folder in made:
            folder.rmdir()
