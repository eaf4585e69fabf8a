"""Sealing keys of a simulation, which seals and opens its reports in one process."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealing_keys import KeyRing, public_bytes


def with_own_keys(job: DeployedJob) -> tuple[DeployedJob, KeyRing]:
    """The job with as many other keys, and their private keys; a job that seals nothing as it is.

    The private keys that its job file names lie elsewhere, and nothing here needs them.
    """
    if job.sealed is None:
        return job, KeyRing({})
    sealed, pairs = job.sealed, list[X25519PrivateKey]()

    def others(keys: Sequence[str]) -> tuple[str, ...]:
        made = [X25519PrivateKey.generate() for _ in keys]
        pairs.extend(made)
        return tuple(public_bytes(key).hex() for key in made)

    own = sealed.model_copy(
        update={
            "aggregate": others(sealed.aggregate),
            "stages": tuple(map(others, sealed.stages)),
            "shares": tuple(map(others, sealed.shares)),
        }
    )
    return job.model_copy(update={"sealed": own}), KeyRing.of(pairs, "the simulation")
