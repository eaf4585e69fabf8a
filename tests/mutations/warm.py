"""Run tests in place, each time in a fork of this process.

    python -m tests.mutations.warm

A request is a line of JSON with pytest arguments, additional environment variables, the output
file, and the timeout in seconds. The answer is a line of JSON: whether the run ended in time, and
its processor seconds.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any, Final

from tests.mutations.forks import import_what_is_not_ours, in_fork

_NICE: Final = 10


def main() -> None:
    os.nice(_NICE)
    import_what_is_not_ours()
    for line in sys.stdin:
        order = json.loads(line)
        ended = in_fork(partial(_run, order), order["seconds"])
        print(json.dumps({"in_time": ended.in_time, "seconds": ended.seconds}), flush=True)


def _run(order: dict[str, Any]) -> None:
    import pytest

    printed = os.open(order["printed"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream, end in ((0, nothing), (1, printed), (2, printed)):
        os.dup2(end, stream)
    os.environ.update(order["environment"])
    sys.argv[1:] = order["arguments"]
    pytest.main(order["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    main()
