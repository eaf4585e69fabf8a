"""The texts of this repository, each once."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("aggregators", "pipeline", "randomizers", "topics")
"""Those that `dpstream` links to, and is installed with."""


def paths() -> list[str]:
    """All files that git knows, from the root of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    return sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)


@cache
def texts() -> dict[str, str]:
    """Text by path; links and files that hold no UTF-8 are left out."""
    found = {}
    for name in paths():
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            try:
                found[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return found
