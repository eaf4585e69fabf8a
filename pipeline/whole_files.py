"""Files that are read whole: regular ones, and no larger than such a file can sensibly be.

A pipe that nobody writes to would be waited for without end, and a device read until memory ends.
"""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

LARGEST = 64 << 20
"""Bytes of the largest file that is read whole."""


class WholeFileError(OSError):
    """A file is not read; `strerror` says why, in a few words."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(None, reason, str(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        WholeFileError: it is not regular, or its name is none.
        OSError: it cannot be opened.
    """
    try:
        # Opening a pipe must not wait for whoever writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise WholeFileError("no file can have a name with a NUL character", path) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "is a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise WholeFileError(kind, path)
    return open(descriptor, "rb")


def read_whole_file(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of a regular file.

    Raises:
        WholeFileError: it is not regular, is larger than `largest`, or its name is none.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise WholeFileError(f"more than {largest:,} bytes, too large for such a file", path)
    return content


def read_whole_text(path: Path, encoding: str = "utf-8", largest: int = LARGEST) -> str:
    r"""The text of a regular file; lines end with ``\n`` whatever ended them there.

    Raises:
        WholeFileError: as `read_whole_file`.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not text in that encoding.
    """
    text = read_whole_file(path, largest).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")
