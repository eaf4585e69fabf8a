"""Which epochs and partitions a job has: what every record that is read is held against.

Records of trusted roles are no exception: a well-formed one that names an epoch which the job does
not have would otherwise set a reader to work without end.
"""

from __future__ import annotations

from dpstream.pipeline.jobs.deployed_job import DeployedJob

EPOCHS_AHEAD = 4096
"""Windows may run this far ahead of the oldest undecided epoch; it bounds what is remembered."""


def epoch_problem(job: DeployedJob, epoch: int) -> str | None:
    """Why a job has no such epoch; None if it has."""
    if epoch < 1:
        return f"epoch {epoch}, epochs are numbered from 1"
    if job.last_epoch is not None and epoch > job.last_epoch:
        return f"epoch {epoch} lies after the last, {job.last_epoch}"
    return None


def place_problem(job: DeployedJob, epoch: int, partition: int) -> str | None:
    """Why a record of an epoch has no place in a partition; None if it has."""
    problem = epoch_problem(job, epoch)
    if problem is None and job.topics.partition_of(epoch) != partition:
        return f"epoch {epoch} belongs to partition {job.topics.partition_of(epoch)}"
    return problem
