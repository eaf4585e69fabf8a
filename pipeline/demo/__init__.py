"""Demonstration: how many of 28,785 students are enrolled, week by week (OULAD, CC BY 4.0).

README.md states the source of the data, and how the data was changed.
"""

import secrets
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from dpstream.pipeline.jobs.job_files import Job

WEEKS = 168
"""Number of weeks shown; the log has 170, but all courses end in the last two."""


def demo_change_log() -> Path:
    return _installed("oulad-weekly.csv.gz")


def demo_job_file() -> Path:
    return _installed("enrollment.yaml")


def demo_stream_job_file() -> Path:
    return _installed("enrollment-stream.yaml")


def demo_shuffled_job_file() -> Path:
    return _installed("enrollment-shuffled.yaml")


def demo_run() -> Callable[[Job], Job]:
    """Return a function that limits a job to the demonstration's weeks, for a new population."""
    run = secrets.token_hex(3)

    def adapted(job: Job) -> Job:
        epochs = job.epochs.model_copy(update={"count": WEEKS})
        population = f"{job.population_name}-{run}"
        return job.model_copy(update={"epochs": epochs, "population": population})

    return adapted


def _installed(name: str) -> Path:
    # Packages are installed unpacked, so the resource is a file.
    return Path(str(resources.files(__name__) / name))
