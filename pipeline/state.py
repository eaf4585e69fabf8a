"""The one place of everything dpstream keeps on this machine.

It is ``$DPSTREAM_HOME``, else ``$XDG_STATE_HOME/dpstream``, else ``~/.local/state/dpstream``::

    kafka/                     the local broker: settings, log, data
    noise-keys/JOB             the key of the noise that the shuffle stage adds
    sealing-keys/NAME.key      private keys that open sealed reports
    collector-keys/JOB         the key of the tags that collectors put on reports of devices
    signing-keys/devices.key   the key that signs what devices are told of jobs
    producers/JOB/NAME/        what devices have drawn and not yet sent
    workers/JOB/STAGE/NAME/    scratch of the stages
    up/                        held by ``dpstream up`` while it runs; no more while its page stays

Producer folders hold true values and drawn randomness, who has a noise key can take the noise off
what was released, and who has a sealing key reads what was sealed to it. So every folder made here
is 0700 (its owner alone may look in); secrets of a cluster are never copied into it. What can be
fetched again is no state and lies in ``$DPSTREAM_CACHE``, ``$XDG_CACHE_HOME/dpstream`` or
``~/.cache/dpstream``.
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
    """Another process holds the folder; the message names it and says what to do."""


def state_home() -> Path:
    """Return the folder of all local state (it need not exist yet)."""
    return _home("DPSTREAM_HOME", "XDG_STATE_HOME", ".local/state")


def cache_home() -> Path:
    """Return the folder of what can be fetched again (it need not exist yet)."""
    return _home("DPSTREAM_CACHE", "XDG_CACHE_HOME", ".cache")


def kafka_folder() -> Path:
    """Return the folder of the local broker."""
    return state_home() / "kafka"


def noise_key_file(job: str) -> Path:
    """Return the file of a job's noise key, unless another is named."""
    return state_home() / "noise-keys" / _component(job)


def sealing_keys_folder() -> Path:
    """Return the folder of the private keys of sealed reports, unless another is named."""
    return state_home() / "sealing-keys"


def collector_key_file(job: str) -> Path:
    """Return the file of the key that a job's collectors share, unless another is named."""
    return state_home() / "collector-keys" / _component(job)


def signing_key_file() -> Path:
    """Return the file of the key that signs what devices are told, unless another is named."""
    return state_home() / "signing-keys" / "devices.key"


def producer_folder(job: str, name: str) -> Path:
    """Return the folder of the producer ``name`` of ``job``; it holds private values."""
    return state_home() / "producers" / _component(job) / _component(name)


def worker_folder(job: str, stage: str, name: str) -> Path:
    """Return the folder of one worker of a stage of ``job``."""
    return state_home() / "workers" / _component(job) / _component(stage) / _component(name)


def supervisor_folder(stage: str, name: str) -> Path:
    """Return the folder of one supervisor of a stage."""
    return state_home() / "supervisors" / _component(stage) / _component(name)


def private_folder(path: Path) -> Path:
    """Make ``path`` and its missing parents, each for the owner alone (0700), and return it."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
    return path


class FolderLock:
    """Exclusive use of a folder, until `release` or the end of the process, however it ends.

    ``folder`` is made if missing; ``purpose`` says in a few words what it is used for; ``wait`` is
    how many seconds to wait for another holder. Raises `FolderInUse`. The operating system drops
    the lock with the process, so there is nothing to clean up after a crash.

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
                        f"{folder} is in use by {_holder(path)}: "
                        "wait for it or stop it, or use another folder"
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
        """Give the folder up; more than once does no harm."""
        # The file stays: removing it would let two processes lock two files of one name.
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
    # The XDG specification: a relative path is to be ignored.
    return (base if base.is_absolute() else Path.home() / default) / "dpstream"


def _component(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot name a folder: use letters, digits, '.', '-' and '_'")
    return name


def _holder(lock_file: Path) -> str:
    pid, _, purpose = lock_file.read_text(errors="replace").strip().partition(" ")
    return f"process {pid} ({purpose})" if pid else "another process"
