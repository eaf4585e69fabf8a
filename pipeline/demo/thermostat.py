"""A single device, which draws random values once and then reports one bit at a time.

Deploy a job, then run this program any number of times; it continues where it stopped:

    dpstream deploy pipeline/demo/enrollment.yaml
    python -m dpstream.pipeline.demo.thermostat oulad-weekly thermostat /var/lib/thermostat 1 1 0 0

The device reports one value for each of the next epochs that it has not closed. A reader of its
reports learns no more about its whole stream of values than the job's epsilon allows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dpstream.pipeline.connect import connect_producer


def report_values(job: str, device: str, folder: Path, values: Sequence[int]) -> int:
    with connect_producer(job, name=device, state_directory=folder) as producer:
        producer.enroll([device])
        for value in values:
            epoch = producer.closed_epoch + 1
            producer.report(epoch, {device: value})
            producer.close(epoch)
        return producer.closed_epoch


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit("usage: python -m dpstream.pipeline.demo.thermostat JOB DEVICE FOLDER VALUE...")
    job_name, device_name, state, *texts = sys.argv[1:]
    last = report_values(job_name, device_name, Path(state), [int(text) for text in texts])
    print(f"{device_name} reported up to epoch {last}")
