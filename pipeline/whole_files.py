"""Files that are read whole, and files that are there whole or not at all.

Read are regular ones, no larger than such a file can sensibly be: a pipe that nobody writes to
would be waited for without end, and a device read until memory ends. What is written while a disk
fills up leaves nothing behind, and its error has the name of the file, which Python gives to errors
of opening alone.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

LARGEST = 64 << 20
"""Bytes of the largest file that is read whole."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Errors of writing: the disk or a share of it is full, the file may not grow, the disk fails."""


class WholeFileError(OSError):
    """A file is not read; `strerror` says why, in a few words."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(None, reason, str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        """How it gets to another process."""
        return type(self), (self.strerror, Path(self.filename))


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
def naming(path: Path) -> Iterator[None]:
    """Have errors of what is done to an open file name it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Where to write a file that takes its place, or its predecessor's, once it is whole.

    What is no regular file, such as ``/dev/stdout``, is written to as it is.

    Raises:
        OSError: it cannot be written; it names `path`, and what was there still is.
    """
    if path.exists() and not path.is_file():
        with naming(path):
            yield path
        return
    whole = path.resolve()
    # The end of its name says to some writers what is to be written.
    part = whole.with_name(f".{secrets.token_hex(4)}.part{whole.suffix}")
    try:
        _create_like(part, whole)
        yield part
        _sync(part)
        os.replace(part, whole)
    except OSError as error:
        own = error.filename is None and not isinstance(error, ConnectionError)
        if own or (error.filename is not None and Path(error.filename) == part):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        with suppress(OSError):
            part.unlink()


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that is on the disk afterwards, for those that `mode` names.

    Raises:
        FileExistsError: it is there already.
        OSError: it cannot be written, and is not there.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with naming(path), open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _create_like(part: Path, whole: Path) -> None:
    """Make an empty file that those may read who may read the one that it is to replace."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(whole.stat().st_mode))
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
