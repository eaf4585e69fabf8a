"""Separate environment for other libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

PLACE: Final = Path(__file__).parents[3] / ".venv-peers"
"""Git-ignored; `make clean` removes it."""

REQUIREMENTS: Final = Path(__file__).parent / "requirements.txt"

_SIDE: Final = Path(__file__).parent / "peer_side.py"
_INSTALLING: Final = 900.0


class NoPeersError(Exception):
    """Other libraries cannot be measured; the message states the reason."""


class PeerError(Exception):
    """Another library failed; the message is a short text for a table cell."""


def peer_python(place: Path = PLACE) -> Path:
    """Return the interpreter of the peers' environment; create it, or raise `NoPeersError`."""
    python, done = place / "bin" / "python", place / ".installed"
    wanted = REQUIREMENTS.read_text("utf-8")
    if done.is_file() and done.read_text("utf-8") == wanted:
        return python
    quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        _run([sys.executable, "-m", "venv", "--clear", str(place)])
        _run([str(python), *quiet, "--retries", "1", "--requirement", str(REQUIREMENTS)])
    except NoPeersError as error:
        raise NoPeersError(
            "Other libraries are skipped: multi-freq-ldpy and pure-LDP could not be installed "
            f"into {place} ({error}). They require the package index, and a Python supported by "
            "numpy 1.26, such as 3.11 or 3.12."
        ) from None
    done.write_text(wanted, "utf-8")
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALLING, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoPeersError(f"timeout after {_INSTALLING:.0f} s") from None
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise NoPeersError(output[-1].strip() if output else f"exit code {done.returncode}")


def run_peer(python: Path, arguments: list[str], limit: int) -> Iterator[dict[str, Any]]:
    """Run one task of `peer_side`, and yield each answer when it arrives.

    Raises:
        PeerError: If the task fails or takes longer than `limit` processor seconds.
    """
    # A single thread, because all measurements use one core.
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    command = ["sh", "-c", f'ulimit -t {limit}; exec "$@"', "sh", str(python), str(_SIDE)]
    with (
        TemporaryFile("w+") as output,
        subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env={**os.environ, **threads},
        ) as child,
    ):
        try:
            for line in child.stdout or ():
                yield json.loads(line)
        except BaseException:
            child.kill()
            raise
        code = child.wait()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            raise PeerError(f"timeout after {limit:,} s")
        if code != 0:
            output.seek(0)
            lines = output.read().strip().splitlines()
            raise PeerError(f"failed: {lines[-1].strip()}" if lines else f"exit code {code}")
