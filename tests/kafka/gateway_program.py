"""Example of a user's gateway program, run with an installed wheel and without the tests.

Arguments: job, name, servers, folder; first cell, number of cells; seconds between two epochs;
file that contains the last epoch to close.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from dpstream.pipeline.connect import connect_producer
from dpstream.pipeline.errors import DpstreamError


def main(
    job: str, name: str, servers: str, folder: str, first: int, count: int, pace: float, stop: Path
) -> None:
    """Report epochs at a constant rate, whatever is published."""
    with connect_producer(
        job, name=name, state_directory=Path(folder), bootstrap_servers=servers
    ) as producer:
        producer.enroll([f"{name}{cell}" for cell in range(count)])
        values = np.arange(first, first + count)
        due = time.monotonic()
        while not (stop.exists() and producer.closed_epoch >= int(stop.read_text())):
            epoch = producer.closed_epoch + 1
            producer.report_all(epoch, values)
            over = time.time()
            producer.close(epoch)
            print(f"closed {epoch} which was over at {over:.3f}", flush=True)
            due += pace
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    try:
        job, name, servers, folder, first, count, pace, stop = sys.argv[1:]
        main(job, name, servers, folder, int(first), int(count), float(pace), Path(stop))
    except DpstreamError as error:
        sys.exit(f"error: {error}")
