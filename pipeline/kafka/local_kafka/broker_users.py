"""Run the local broker for as long as any process uses it.

Such a broker is marked, and its last user stops it. A broker that a user started with ``dpstream
kafka start`` has no mark, and keeps running.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpstream.pipeline.kafka.local_kafka.broker import LocalKafka
from dpstream.pipeline.kafka.local_kafka.jars import Progress
from dpstream.pipeline.state import private_folder

STOP_GRACE = 5.0
# Two users that leave at the same time can briefly block each other.
_LEAVING_SECONDS = 0.5


class BrokerUsers:
    """A user of a broker, from now until `leave` or the end of the process.

    Each user holds a shared lock on a file, which the operating system releases with the process. A
    leaving user that can lock the file exclusively is the last user. The file `mark` holds the
    process ID of a broker that the last user must stop.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = BrokerUsers(Path(folder)), BrokerUsers(Path(folder))
    ...     first.leave(), second.leave()
    (False, True)
    """

    def __init__(self, folder: Path) -> None:
        private_folder(folder)
        self.mark = folder / "started-by-up"
        self._descriptor = os.open(folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def is_marked(self, pid: int | None) -> bool:
        return self.mark.exists() and self.mark.read_text() == str(pid)

    def leave(self) -> bool:
        """Stop using the broker, and return whether this was the last user."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        deadline = time.monotonic() + _LEAVING_SECONDS
        try:
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.02)
                else:
                    return True
            return False
        finally:
            os.close(self._descriptor)


@contextmanager
def running_broker(broker: LocalKafka, on_progress: Progress) -> Iterator[None]:
    """Start the broker unless it is running; in that case, stop it unless others still use it."""
    users = BrokerUsers(broker.directory)
    try:
        if not broker.status().running:
            users.mark.write_text(str(broker.start(on_progress=on_progress).pid))
        yield
    finally:
        marked = users.is_marked(broker.status().pid)
        if users.leave() and marked:
            broker.stop(grace=STOP_GRACE)
