"""Starting our own modules as processes, and saying how one has ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_module(module: str, *arguments: str) -> list[str]:
    """The command line that runs one of our modules, wherever the user stands."""
    # -P: the working directory may hold something else of the same name.
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment() -> dict[str, str]:
    """Our environment, for processes that run `python_module`."""
    # Where this package lies: it need not be installed.
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "PYTHONUNBUFFERED": "1",
    }


def how_it_ended(code: int) -> str:
    """The end of a process in words, from its return code.

    >>> how_it_ended(2), how_it_ended(-9)
    ('with exit code 2', 'by signal 9')
    """
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"
