"""Find expired private keys: a key expires once all epochs sealed to it are published.

Erasing an expired key makes the remaining ciphertexts permanently unreadable, including copies on a
broker's disk, in a backup or in a recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.sealed import sealing_periods
from dpstream.pipeline.jobs.sealing_keys import private_keys_in, public_bytes
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.results.follow import EstimateReader


@dataclass(frozen=True, slots=True)
class KeyPeriod:
    """A private key file, its party as in `Sealed.parties`, and when a job uses it."""

    path: Path
    job: str
    party: str
    last_epoch: int | None
    published: int

    @property
    def expired(self) -> bool:
        return self.last_epoch is not None and self.published >= self.last_epoch


def key_periods(
    keys: Mapping[bytes, Path], jobs: Iterable[tuple[DeployedJob, int]]
) -> list[KeyPeriod]:
    """Return the periods of private key files, given each job's last published epoch."""
    periods = [
        KeyPeriod(keys[key], job.name, party, _last_epoch(job, last), published)
        for job, published in jobs
        for party, key, last in sealing_periods(job)
        if key in keys
    ]
    return sorted(periods, key=lambda period: (period.path, period.job))


def _last_epoch(job: DeployedJob, last: int | None) -> int | None:
    """Return the end of a key period, or the last epoch of the job if that is earlier."""
    ends = [each for each in (last, job.last_epoch) if each is not None]
    return min(ends, default=None)


def expired_in_all_jobs(periods: Iterable[KeyPeriod]) -> list[Path]:
    expired: dict[Path, bool] = {}
    for period in periods:
        expired[period.path] = expired.get(period.path, True) and period.expired
    return [path for path, whole in expired.items() if whole]


def key_periods_on(cluster: Cluster, folder: Path) -> list[KeyPeriod]:
    """Return the key periods of a folder's private keys in the jobs deployed on a cluster.

    Raises WrongKeyError if a file does not contain a valid private key, or if an unreadable job of
    another version might need the keys.
    """
    keys = {public_bytes(key): path for path, key in private_keys_in(folder).items()}
    state = read_jobs(cluster)
    if state.unreadable:
        names = ", ".join(sorted(state.unreadable))
        raise WrongKeyError(
            f"any of these keys might be needed by jobs that an incompatible version of dpstream "
            f"deployed ({names}): use that version, or undeploy the jobs that are finished"
        )
    sealed = [job for job in state.jobs.values() if sealing_periods(job)]
    # Epochs are published in order: no earlier epoch is still pending.
    published = (
        max((record.epoch for record in EstimateReader(cluster, job).read()), default=0)
        for job in sealed
    )
    return key_periods(keys, zip(sealed, published, strict=True))
