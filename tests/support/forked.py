"""Programs for tests of `dpstream.pipeline.operations.forks`, imported by the forker or not."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from dpstream.pipeline.cli import make_streams_usable
from dpstream.pipeline.parent_watch import VARIABLE, follow, send_reason
from dpstream.randomizers.randomness import cryptographic_generator

GENERATOR = cryptographic_generator()
IMPORTED_BY = os.getpid()


def describe() -> dict[str, object]:
    """Return a process's view of its parent and of inherited state."""
    import tests.support.forked as imported

    return {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "arguments": sys.argv[1:],
        "module": Path(sys.argv[0]).stem,
        "input": Path("/proc/self/fd/0").resolve().as_posix(),
        "ends with its parent": VARIABLE in os.environ,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "imported by the forker": os.getpid() != imported.IMPORTED_BY,
        "from an inherited generator": int(imported.GENERATOR.integers(1 << 60)),
        "from a new generator": int(cryptographic_generator().integers(1 << 60)),
    }


def main(what: str) -> int:
    make_streams_usable()
    print(json.dumps(describe()), flush=True)
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    follow(timeout=0.1)
    match what:
        case "fail":
            raise ZeroDivisionError("of what?")
        case "tell":
            send_reason("no noise key")
            print("a complaint", file=sys.stderr)
            return 3
        case "write":
            with os.fdopen(int(os.environ["DPSTREAM_TEST_DESCRIPTOR"]), "w") as handed_down:
                handed_down.write("written")
        case "sleep" | "stubborn":
            print("ready", flush=True)
            time.sleep(1000)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
