"""The demonstration: which of 28,785 students are enrolled, week by week (OULAD, CC BY 4.0).

`oulad-weekly.csv.gz` is the change log that `experiments.prepare_oulad` made. In the jobs of
`enrolment.yaml` and `enrolment-stream.yaml` nobody needs to be trusted, that of
`enrolment-shuffled.yaml` relies on the shuffle stage. README.md says where the data come from and
what was changed.
"""

import secrets
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from dpstream.pipeline.jobs.job_files import Job

WEEKS = 168
"""That are shown of the 170 in the log: in the last two, all courses end."""


def demo_change_log() -> Path:
    """Where the change log lies: 28,785 users, 170 weekly epochs."""
    return _installed("oulad-weekly.csv.gz")


def demo_job_file() -> Path:
    """Where the job file lies of `future_rand`, where nobody needs to be trusted."""
    return _installed("enrolment.yaml")


def demo_stream_job_file() -> Path:
    """Where the job file lies of `value_stream`, where nobody needs to be trusted either."""
    return _installed("enrolment-stream.yaml")


def demo_shuffled_job_file() -> Path:
    """Where the job file lies of the job in which the shuffle stage is trusted to shuffle."""
    return _installed("enrolment-shuffled.yaml")


def demo_run() -> Callable[[Job], Job]:
    """Return what a run shows of a job: its weeks, about a population of the run's own.

    Earlier runs have charged others: what the page says has been charged is what this one costs.
    """
    run = secrets.token_hex(3)

    def adapted(job: Job) -> Job:
        epochs = job.epochs.model_copy(update={"count": WEEKS})
        population = f"{job.population_name}-{run}"
        return job.model_copy(update={"epochs": epochs, "population": population})

    return adapted


def _installed(name: str) -> Path:
    # Packages are installed unpacked, so the resource is a file.
    return Path(str(resources.files(__name__) / name))
