"""Run dpstream commands as processes, and wait for their effects."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.warm import WarmPopen

ROOT = Path(__file__).parents[2]
TIMEOUT = 120.0
"""Timeout in seconds, far longer than any operation takes."""


def start_command(
    *arguments: object,
    servers: str | None = None,
    home: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a dpstream command in a separate session.

    Args:
        arguments: Arguments of the command.
        servers: Addresses of the brokers; None: from the environment.
        home: State folder; None: from the environment.
        environment: Environment of the process.
        options: Options of `subprocess.Popen`.
    """
    own = {"DPSTREAM_BOOTSTRAP_SERVERS": servers, "DPSTREAM_HOME": home and str(home)}
    return WarmPopen(
        [sys.executable, "-m", "dpstream.pipeline.cli", *map(str, arguments)],
        cwd=ROOT,
        env={**environment, **{name: value for name, value in own.items() if value}},
        start_new_session=True,
        **options,
    )


def wait_until(condition: Callable[[], object], what: str, timeout: float = TIMEOUT) -> None:
    """Wait until a condition holds; fail with `what` after the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what}: timeout after {timeout} s"
        time.sleep(0.1)
