"""Run ``dpstream`` in a process whose shuffler releases the messages of a first run.

Arguments: folder of `tests.support.public_view.SameRelease`, then the arguments of ``dpstream``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dpstream.pipeline.cli import main
from tests.support.public_view import SameRelease, fix_randomness

if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as monkeypatch:
        SameRelease(Path(sys.argv[1])).patch(monkeypatch)
        fix_randomness(monkeypatch)
        sys.exit(main(sys.argv[2:]))
