"""Location of all local state that dpstream stores.

The folder is ``$DPSTREAM_HOME``, ``$XDG_STATE_HOME/dpstream`` or ``~/.local/state/dpstream``::

    kafka/                     the local broker: settings, log, data
    noise-keys/JOB             key of the noise that the shuffler adds
    sealing-keys/NAME.key      private keys that decrypt sealed reports
    collector-keys/JOB         key of the tags that collectors assign to devices
    signing-keys/devices.key   key that signs the job descriptions sent to devices
    producers/JOB/NAME/        values, and reports drawn but not yet sent
    workers/JOB/STAGE/NAME/    spill files of the stages
    up/                        lock of ``dpstream up``, released while only its page is running

Every folder created here has mode 0700: only its owner has access. Producer folders contain true
values and drawn randomness. A noise key allows its holder to remove the noise from released
results, and a sealing key decrypts everything sealed to it. Secrets of a cluster are never copied
here. Files that can be downloaded again are not state, and are in ``$DPSTREAM_CACHE``,
``$XDG_CACHE_HOME/dpstream`` or ``~/.cache/dpstream``.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.whole_files import naming

LOCK_FILE = "lock"


class FolderInUse(DpstreamError):  # noqa: N818
    """Another process has locked the folder; the message names that process and a remedy."""


def state_home() -> Path:
    return _home("DPSTREAM_HOME", "XDG_STATE_HOME", ".local/state")


def cache_home() -> Path:
    return _home("DPSTREAM_CACHE", "XDG_CACHE_HOME", ".cache")


def kafka_folder() -> Path:
    return state_home() / "kafka"


def noise_key_file(job: str) -> Path:
    return state_home() / "noise-keys" / _component(job)


def sealing_keys_folder() -> Path:
    return state_home() / "sealing-keys"


def collector_key_file(job: str) -> Path:
    return state_home() / "collector-keys" / _component(job)


def signing_key_file() -> Path:
    return state_home() / "signing-keys" / "devices.key"


def producer_folder(job: str, name: str) -> Path:
    return state_home() / "producers" / _component(job) / _component(name)


def worker_folder(job: str, stage: str, name: str) -> Path:
    return state_home() / "workers" / _component(job) / _component(stage) / _component(name)


def supervisor_folder(stage: str, name: str) -> Path:
    return state_home() / "supervisors" / _component(stage) / _component(name)


def private_folder(path: Path) -> Path:
    """Create ``path`` and its missing parents, each accessible only to the owner (0700)."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
    return path


class FolderLock:
    """Exclusive lock on a folder, created if missing, until `release` or the end of the process.

    The operating system drops the lock after a crash. ``purpose`` describes the use of the folder
    to other processes that want to lock it. Waits up to ``wait`` seconds for another process to
    release the lock, then raises `FolderInUse`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, FolderLock(Path(folder), "an example"):
    ...     pass
    """

    def __init__(self, folder: Path, purpose: str, wait: float = 0.0) -> None:
        path = private_folder(folder) / LOCK_FILE
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait
        try:
            while not self._try_lock():
                if time.monotonic() >= deadline:
                    raise FolderInUse(
                        f"{folder} is in use by {_holder(path)}. Wait for it, stop it, or use "
                        "another folder"
                    )
                time.sleep(0.05)
            os.ftruncate(self._descriptor, 0)
            with naming(path):
                os.pwrite(self._descriptor, f"{os.getpid()} {purpose}\n".encode(), 0)
        except BaseException:
            self.release()
            raise

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Release the lock; safe to call more than once."""
        # Keep the file: removing it would let two processes lock two files of one name.
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _home(own: str, xdg: str, default: str) -> Path:
    if value := os.environ.get(own):
        return Path(value).expanduser().absolute()
    base = Path(os.environ.get(xdg, ""))
    # The XDG specification requires ignoring a relative path.
    return (base if base.is_absolute() else Path.home() / default) / "dpstream"


def _component(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(
            f"{name!r} is not a folder name; expected letters, digits, '.', '-' and '_'"
        )
    return name


def _holder(lock_file: Path) -> str:
    pid, _, purpose = lock_file.read_text(errors="replace").strip().partition(" ")
    return f"process {pid} ({purpose})" if pid else "another process"
