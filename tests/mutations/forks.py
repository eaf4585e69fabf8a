"""Forks of a process that has imported what is not ours: a run of tests begins in no time.

Nothing of what is mutated may be among it: each fork imports that for itself, as it is then.
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

MUTATED: Final = "dpstream"
"""The package that is mutated."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a fork came to its end.

    Attributes:
        status: as `os.waitpid` says it.
        in_time: whether it came to it by itself.
        seconds: of the processor that it took, with all that it has waited for.
    """

    status: int
    in_time: bool
    seconds: float


def import_what_is_not_ours() -> None:
    """Once, for all forks.

    Raises:
        RuntimeError: something that is mutated was imported, too.
    """
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

    if ours := sorted(name for name in sys.modules if name.partition(".")[0] == MUTATED):
        raise RuntimeError(f"forks would not import for themselves: {', '.join(ours)}")


def in_fork(run: Callable[[], None], seconds: float) -> Ended:
    """Run something in a fork, which is ended, with all that it has started, after so long."""
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
        # It leads a group of its own from its first instruction on; until then it is alone.
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
