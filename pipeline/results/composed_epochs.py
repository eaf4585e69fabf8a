"""What the releases of several epochs that stand alone lose together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epochs import horizons_between
from dpstream.pipeline.protocols.protocol import PerEpochLaw


@dataclass(frozen=True, slots=True)
class Composed:
    """What the releases of some epochs together lose of a user.

    Attributes:
        epochs: how many.
        epsilon: of all of them, rounded up.
        delta: of all of them.
        exact: False for the loss of the whole horizon, which is no less.
    """

    epochs: int
    epsilon: float
    delta: float
    exact: bool


def composed(job: DeployedJob, epochs: int) -> Composed:
    """What so many epochs lose together, with the delta of one.

    A job of just so many epochs is calibrated, which finds their loss. Where that would make
    another job than the one deployed, the loss of whole horizons is taken.

    Args:
        job: whose epochs stand alone.
        epochs: how many.
    """
    own = job.guarantee
    if epochs == 1:
        return Composed(1, own.epsilon, own.delta, exact=True)
    epsilon = _of_as_many(job, epochs)
    if epsilon is not None:
        return Composed(epochs, epsilon, own.delta, exact=True)
    # The first of them may be the last of its horizon.
    count = job.epochs.count
    horizons = horizons_between(count, count + epochs - 1, count) if job.epochs.renew else 1
    whole = replace(own, unit="stream").over(horizons)
    return Composed(epochs, whole.stream_epsilon or whole.epsilon, whole.delta, exact=False)


def _of_as_many(job: DeployedJob, epochs: int) -> float | None:
    """The loss of all epochs of a job that is like this one, with so many of them."""
    try:
        other = job.protocol_entry.calibrate(job.parameters, epochs, job.shuffle.minimum)
    except ValueError:
        return None
    law = job.law
    assert isinstance(law, PerEpochLaw)
    assert isinstance(other, PerEpochLaw)
    if other.of_one_epoch().to_json() != law.of_one_epoch().to_json():
        return None
    return job.protocol_entry.randomizer(other).guarantee.stream_epsilon
