"""Fork a process with preloaded third-party modules, so that test runs start quickly.

Modules that can be mutated must not be preloaded: each fork imports their current version.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

MUTATED: Final = {"dpstream", "experiments"}


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of a fork: wait status, whether it ended in time, and processor seconds."""

    status: int
    in_time: bool
    seconds: float


def import_what_is_not_ours() -> None:
    """Import third-party modules for all forks; fail if modules that can be mutated are loaded."""
    import cryptography.hazmat.primitives.ciphers  # noqa: F401
    import hypothesis  # noqa: F401
    import mpmath  # noqa: F401
    import pyarrow  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import randomgen  # noqa: F401
    import scipy.optimize
    import scipy.signal
    import scipy.stats  # noqa: F401

    if ours := sorted(name for name in sys.modules if name.partition(".")[0] in MUTATED):
        raise RuntimeError(f"modules already imported before forking: {', '.join(ours)}")


def in_fork(run: Callable[[], None], seconds: float) -> Ended:
    """Run a function in a fork; after a timeout, end the fork with all its processes."""
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)
            run()
        os._exit(0)
    with _ended_after(seconds, child):
        _, status, usage = os.wait4(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    in_time = not (killed and time.monotonic() - begun >= seconds)
    return Ended(status, in_time, usage.ru_utime + usage.ru_stime)


@contextlib.contextmanager
def _ended_after(seconds: float, child: int) -> Iterator[None]:
    def end(*_: Any) -> None:
        # The fork starts a process group before it starts any process.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except BaseException:
        end()
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
