"""Files of the repository and their texts."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("aggregators", "pipeline", "randomizers", "topics")
"""Folders linked from `dpstream` and installed with it."""


def paths() -> list[str]:
    """Return all files known to git, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    return sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)


@cache
def texts() -> dict[str, str]:
    """Return texts by path, except for links and files that are not UTF-8."""
    found = {}
    for name in paths():
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            try:
                found[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return found
