"""Read files as a whole, and write files completely or not at all.

* Only regular files up to a plausible size are read: reading a pipe without a writer would never
  end, and reading a device would exhaust memory.
* A failed write, such as on a full disk, leaves nothing behind.
* Write errors name the file; Python's own errors name it only if opening fails.
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
"""Maximum size in bytes of a file that is read as a whole."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Write errors: the disk or quota is full, the file too large, or the disk read-only or broken."""


class WholeFileError(OSError):
    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(None, reason, str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.strerror, Path(self.filename))


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read; raise `WholeFileError` if it is not regular or its name is invalid."""
    try:
        # Opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise WholeFileError("a file name cannot contain a NUL character", path) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "is a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise WholeFileError(kind, path)
    return open(descriptor, "rb")


def read_whole_file(path: Path, largest: int = LARGEST) -> bytes:
    """Return the bytes of a regular file.

    Raises `WholeFileError` if it is not regular, is larger than `largest`, or its name is invalid.
    """
    with open_regular(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise WholeFileError(f"more than {largest:,} bytes, the maximum size of this file", path)
    return content


def read_whole_text(path: Path, encoding: str = "utf-8", largest: int = LARGEST) -> str:
    r"""Return the text of a regular file, with line ends ``\n``; raises like `read_whole_file`."""
    text = read_whole_file(path, largest).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file name to errors from operations on an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; the new file replaces `path` once it is complete.

    Targets other than regular files, such as ``/dev/stdout``, are written directly. If writing
    fails, the file keeps its old content, and an `OSError` that names `path` is raised.
    """
    if path.exists() and not path.is_file():
        with naming(path):
            yield path
        return
    whole = path.resolve()
    # Some writers choose the format by the suffix.
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
    """Create a file with permissions `mode`, and flush it to disk; after an error, no file remains.

    Raises `FileExistsError` if the file exists.
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
