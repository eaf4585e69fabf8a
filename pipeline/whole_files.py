"""Files that are read whole, regular ones of a sensible size, and files that are written whole.

A pipe that nobody writes to would be waited for without end, and a device read until memory ends.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path
from typing import Any, BinaryIO

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


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes its name once all of it is on the disk.

    If anything fails there is what was there before. What is not a regular file, such as a pipe or
    ``/dev/stdout``, is written to as it is.

    Raises:
        OSError: it cannot be written; `filename` says which.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with _open(target, target, "wb") as file:
            yield file
        return
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with _open(part, target, "xb") as file:
            yield file
            file.flush()
            with naming(target):
                os.fsync(file.fileno())
        with naming(target):
            os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an error say which file it is about: that of a full disk names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class _NamedFile(FileIO):
    """A file whose errors name another one, which it is to become."""

    def __init__(self, path: Path, named: Path, mode: str) -> None:
        self._named = named
        super().__init__(path, mode)

    def write(self, data: Any) -> int:
        with naming(self._named):
            return super().write(data)


def _open(path: Path, named: Path, mode: str) -> BufferedWriter:
    with naming(named):
        return BufferedWriter(_NamedFile(path, named, mode))
