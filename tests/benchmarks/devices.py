"""What reports of devices cost: ``python -m tests.benchmarks.devices [--reports N]``.

Sealed reports are opened alone, beside as many bare key exchanges of X25519, below whose rate no
opening can be; then by the real stages, in memory, which also check and keep what they opened.
Processor time. Reports in JavaScript are timed by Node, of each protocol with the slowest law of
the golden vectors. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import randbytes
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.topics.manifests import Fate
from dpstream.topics.sealing import Lock, device_context, seal, unseal_each
from tests.support.device_world import GRACE, DeviceWorld, Sent, device_job

_IN_JAVASCRIPT = Path(__file__).with_name("javascript_reports.mjs")
_BATCH = 100


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.devices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reports", type=int, default=50_000, metavar="N")
    reports = parser.parse_args().reports
    figures = {
        "a_second": {**opened(reports), **sealed(reports)},
        "milliseconds_of_a_report_in_javascript": in_javascript(),
    }
    print(json.dumps(figures, indent=2))


def opened(reports: int) -> dict[str, int]:
    """Boxes that a core opens in a second, and the key exchanges that it makes in one."""
    private_key = X25519PrivateKey.generate()
    public_key = private_key.public_key()
    contexts = [device_context(bytes(16), bytes(16), 1, randbytes(16)) for _ in range(reports)]
    boxes = [seal(b"word", Lock(public_key.public_bytes_raw(), context)) for context in contexts]
    opening = _processor_seconds(lambda: unseal_each(boxes, private_key, contexts))
    exchanging = _processor_seconds(lambda: [private_key.exchange(public_key) for _ in boxes])
    return {
        "boxes_opened": round(reports / opening),
        "keys_exchanged": round(reports / exchanging),
    }


def sealed(reports: int) -> dict[str, int]:
    """Sealed reports a second of one core: as they arrive, and when their window is decided."""
    private_keys = (X25519PrivateKey.generate(),)
    job = device_job(private_keys=private_keys)
    world = DeviceWorld(job, keys=KeyRing.of(private_keys))
    world.at(1, 50)
    sent = [Sent(number, [number % 2], enrols=True) for number in range(reports)]
    for first in range(0, reports, _BATCH):
        world.collect(1, sent[first : first + _BATCH])
    arriving = _processor_seconds(world.settle)
    deciding = 0.0
    for seconds in (1, GRACE + 2):
        world.at(3, seconds)
        deciding += _processor_seconds(world.settle)
    manifest = world.manifests()[1]
    assert manifest.fate is Fate.RELEASED
    assert manifest.contributors == reports
    return {
        "sealed_reports_admitted": round(reports / arriving),
        "decided_and_published": round(reports / deciding),
    }


def in_javascript() -> dict[str, Any]:
    """What Node says."""
    node = subprocess.run(["node", _IN_JAVASCRIPT], capture_output=True, text=True, check=True)
    return {name: round(each, 3) for name, each in json.loads(node.stdout).items()}


def _processor_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
