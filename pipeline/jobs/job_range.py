"""Valid epochs and partitions of a job, checked for every record that is read.

Records from trusted roles are checked too: otherwise, a well-formed record with an epoch outside
the job would make a reader loop forever.
"""

from __future__ import annotations

from dpstream.pipeline.jobs.deployed_job import DeployedJob

EPOCHS_AHEAD = 4096
"""Maximum number of epochs between the oldest unfinalized window and any other window."""


def epoch_problem(job: DeployedJob, epoch: int) -> str | None:
    """Return why an epoch is outside the job, or None if it is inside."""
    if epoch < 1:
        return f"epoch {epoch} is out of range: epochs are numbered from 1"
    if job.last_epoch is not None and epoch > job.last_epoch:
        return f"epoch {epoch} is out of range: the last epoch is {job.last_epoch}"
    return None


def place_problem(job: DeployedJob, epoch: int, partition: int) -> str | None:
    """Return why a record for an epoch does not belong in a partition; None if it does."""
    problem = epoch_problem(job, epoch)
    if problem is None and job.topics.partition_of(epoch) != partition:
        return f"epoch {epoch} belongs in partition {job.topics.partition_of(epoch)}"
    return problem
