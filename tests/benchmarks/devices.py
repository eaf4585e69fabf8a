"""What reports of devices cost: ``python -m tests.benchmarks.devices [--reports N]``.

Sealed reports are opened by the real stages, in memory: once as they arrive, and once more when
their window is decided. Processor time, of all that the stages do. Reports in JavaScript are timed
by Node, of each protocol with the slowest law of the golden vectors. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from pipeline.jobs.sealing_keys import KeyRing
from tests.support.device_world import GRACE, DeviceWorld, Sent, device_job
from topics.manifests import Fate

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
    figures = {
        "sealed_reports": sealed(parser.parse_args().reports),
        "milliseconds_of_a_report_in_javascript": in_javascript(),
    }
    print(json.dumps(figures, indent=2))


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
        "arriving_per_second": round(reports / arriving),
        "decided_and_published_per_second": round(reports / deciding),
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
