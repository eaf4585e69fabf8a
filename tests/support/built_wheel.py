"""Wheel of the current sources, built offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.sources import FOLDERS, ROOT

_LEFT = shutil.ignore_patterns("__pycache__", ".*", "node_modules")


def copy_sources(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("dpstream", *FOLDERS):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=_LEFT)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def build(sources: Path, folder: Path, what: str = "wheel") -> Path:
    """Build a ``wheel`` or ``sdist`` (`what`) from the sources into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    program = "import sys; from setuptools import build_meta; "
    program += f"print(build_meta.build_{what}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        cwd=sources,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    (built,) = set(folder.iterdir()) - before
    return built
