"""Test that the limit of open files is raised for large windows of many producers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys
from dpstream.pipeline.open_files import room_for_files
from dpstream.pipeline.stages.environment import temporary_file

hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
print(room_for_files(1_000))
files = [temporary_file() for _ in range(min(hard, 1_000) - 50)]
"""


def test_open_file_limit_is_raised_to_the_hard_limit() -> None:
    for hard, room in ((1_500, 1_000), (300, 300)):
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(hard)], capture_output=True, text=True, check=True
        )
        assert int(found.stdout) == room
