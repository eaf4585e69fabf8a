"""Test the shared imports of `dpstream up`: fast, and safe to fork."""

from __future__ import annotations

import json
import subprocess
import sys

from dpstream.pipeline.operations.up.run_up import MODULES

SLOW = {"scipy", "matplotlib", "bokeh", "pyarrow", "mpmath", "jgo"}
LOOKING = """
import gc, json, sys, threading
from importlib import import_module
for module in sys.argv[1:]:
    import_module(module)
from randomgen import AESCounter
print(json.dumps({
    "imported": sorted({name.partition(".")[0] for name in sys.modules}),
    "generators": sum(isinstance(one, AESCounter) for one in gc.get_objects()),
    "threads": threading.active_count(),
}))
"""


def test_imports_start_no_threads_before_forking() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOOKING, *MODULES],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    seen = json.loads(found.stdout)
    assert SLOW.isdisjoint(seen["imported"])
    assert {"faust", "aiokafka", "aiohttp", "pydantic"} <= set(seen["imported"])
    assert (seen["generators"], seen["threads"]) == (0, 1)
