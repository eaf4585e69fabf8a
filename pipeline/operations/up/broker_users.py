"""Who uses the local broker for a while: the last of them stops it, if one of them has started it.

While the page of a run stays open, others may run. Each holds a shared lock on a file, which the
operating system drops with its process; whoever leaves and can lock it alone is the last one.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from dpstream.pipeline.state import private_folder

_PATIENCE_SECONDS = 0.5


class BrokerUsers:
    """A user of a broker, from now on until `leave` or the end of the process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = BrokerUsers(Path(folder)), BrokerUsers(Path(folder))
    ...     first.mark(17)
    ...     second.is_marked(17), first.leave(), second.leave()
    (True, False, True)

    Args:
        folder: of the broker; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        private_folder(folder)
        self._marked = folder / "started-by-up"
        self._descriptor = os.open(folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def is_marked(self, pid: int | None) -> bool:
        """Whether the broker that runs as this process is to be stopped by the last user."""
        try:
            return pid is not None and int(self._marked.read_text()) == pid
        except (OSError, ValueError):
            return False

    def mark(self, pid: int | None) -> None:
        """The broker that runs as this process is to be stopped by the last user; None: no more."""
        if pid is None:
            self._marked.unlink(missing_ok=True)
        else:
            self._marked.write_text(str(pid))

    def leave(self) -> bool:
        """Use it no more; whether nobody else does."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        try:
            # Two that leave at once may stand in each other's way for a moment.
            while not self._is_last():
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.02)
            return True
        finally:
            os.close(self._descriptor)

    def _is_last(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
