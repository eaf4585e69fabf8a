"""The demonstration: which of 28,785 students are enrolled, week by week (OULAD, CC BY 4.0).

`oulad-weekly.csv.gz` is the change log that `prepare_oulad` made, `enrolment.yaml` the job file;
README.md says where the data come from and what was changed.
"""

from importlib import resources
from pathlib import Path


def demo_change_log() -> Path:
    """Where the change log lies: 28,785 users, 170 weekly epochs."""
    return _installed("oulad-weekly.csv.gz")


def demo_job_file() -> Path:
    """Where the job file lies."""
    return _installed("enrolment.yaml")


def _installed(name: str) -> Path:
    # Packages are installed unpacked, so the resource is a file.
    return Path(str(resources.files(__name__) / name))
