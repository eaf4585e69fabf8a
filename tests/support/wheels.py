"""Install a wheel of the current sources alongside the libraries of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.support import cells

ROOT = Path(__file__).parents[2]
_CELLS = "cells_of_tests"


@dataclass(frozen=True, slots=True)
class Installation:
    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def dpstream(self) -> str:
        return str(self.folder / "bin" / "dpstream")


def copy_sources(folder: Path) -> None:
    folder.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in map(os.fsdecode, listed.stdout.split(b"\0")):
        place = ROOT / name
        if name and not name.startswith("tests/") and (place.is_file() or place.is_symlink()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, folder / name, follow_symlinks=False)


def build_wheel(sources: Path, folder: Path) -> Path:
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources))
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Installation:
    """Install a wheel into a new environment, with a package that provides the protocol `cells`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    installation = Installation(folder)
    _pip("--python", installation.python, "install", "--no-deps", str(wheel))
    (packages,) = folder.glob("lib/python*/site-packages")
    # Paths listed here are searched last and their .pth files are ignored, so that the sources
    # that the tests use are not found.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.copyfile(cells.__file__, packages / f"{_CELLS}.py")
    about = packages / f"{_CELLS}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_CELLS}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[dpstream.protocols]\n{cells.NAME} = {_CELLS}:CELLS\n"
    )
    return installation


def _pip(*arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", *quiet, *arguments], check=True)
