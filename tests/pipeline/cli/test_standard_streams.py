"""Test commands whose standard streams are closed, or cannot encode the output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_COMMAND = [sys.executable, "-m", "dpstream.pipeline.cli"]


def _run(shell: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", shell, "sh", *_COMMAND],
        env={**os.environ, "DPSTREAM_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        encoding="latin-1",
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_table_is_printed_in_any_encoding(job_file: Path, tmp_path: Path, encoding: str) -> None:
    shell = f'"$@" plan {job_file} --users 100'
    done = _run(shell, tmp_path, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "privacy" in done.stdout


def test_closed_standard_output_ends_without_traceback(tmp_path: Path) -> None:
    done = _run('"$@" list >&-', tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no local Kafka is running")
    assert "Traceback" not in done.stderr


def test_closed_standard_error_does_not_stop_a_command(job_file: Path, tmp_path: Path) -> None:
    done = _run(f'"$@" plan {job_file} --users 100 2>&-', tmp_path)
    assert done.returncode == 0
    assert "privacy" in done.stdout
