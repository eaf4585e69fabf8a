"""Disks that can be filled: small in-memory file systems. Mounting requires root."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

# Size of a disk in bytes; a producer's log grows to 16 MiB before it is reset.
_BYTES = 48 << 20


def may_mount() -> bool:
    return os.geteuid() == 0


class SmallDisk:
    """Disk of 48 MiB, mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_BYTES},mode=700", "tmpfs", str(self.folder)],
            check=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self, room: int) -> None:
        with suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
            while ballast.write(bytes(1 << 16)):
                pass
        size = self._ballast.stat().st_size
        os.truncate(self._ballast, max(0, size - room))

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)
