"""Private keys whose turn is over: all that was sealed to them, of deployed jobs, is published.

Erasing them closes what is left of it for good: what a broker's disk, a backup or a recording still
holds of these epochs, nobody can open any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.sealing_keys import private_keys_in, public_bytes
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.results.follow import EstimateReader


@dataclass(frozen=True, slots=True)
class KeyTurn:
    """A private key, and a turn that a deployed job gives it.

    Attributes:
        path: of the private key.
        job: its name.
        party: who opens with it, as of `Sealed.parties`.
        last_epoch: that is sealed to it; None: it goes on.
        published: the last epoch of the job that is published; 0 before the first.
    """

    path: Path
    job: str
    party: str
    last_epoch: int | None
    published: int

    @property
    def over(self) -> bool:
        """Whether nothing that is still to be published is sealed to it."""
        return self.last_epoch is not None and self.published >= self.last_epoch


def key_turns(keys: Mapping[bytes, Path], jobs: Iterable[tuple[DeployedJob, int]]) -> list[KeyTurn]:
    """The turns of some private keys, sorted by their files.

    Args:
        keys: files, by public keys.
        jobs: each with the last epoch of it that is published.
    """
    turns = [
        KeyTurn(keys[key], job.name, party, _last_epoch(job, last), published)
        for job, published in jobs
        for party, key, last in job.sealing_turns
        if key in keys
    ]
    return sorted(turns, key=lambda turn: (turn.path, turn.job))


def _last_epoch(job: DeployedJob, last: int | None) -> int | None:
    """The last epoch that is sealed to a key, of one that serves up to `last`, or the job's."""
    ends = [each for each in (last, job.last_epoch) if each is not None]
    return min(ends, default=None)


def over_in_all_jobs(turns: Iterable[KeyTurn]) -> list[Path]:
    """The keys whose turn is over in every job that gives them one."""
    over: dict[Path, bool] = {}
    for turn in turns:
        over[turn.path] = over.get(turn.path, True) and turn.over
    return [path for path, whole in over.items() if whole]


def turns_on(cluster: Cluster, folder: Path) -> list[KeyTurn]:
    """The turns that jobs deployed on a cluster give to the private keys in a folder.

    Raises:
        WrongKeyError: a file holds no usable private key, or a job of another version of this
            software is deployed, which may need any of them.
    """
    keys = {public_bytes(key): path for path, key in private_keys_in(folder).items()}
    state = read_jobs(cluster)
    if state.unreadable:
        names = ", ".join(sorted(state.unreadable))
        raise WrongKeyError(
            f"{names}: deployed by another version of this software, which may need any of these "
            "keys: use that version, or undeploy what is over"
        )
    sealed = [job for job in state.jobs.values() if job.sealing_turns]
    return key_turns(keys, ((job, _last_published(cluster, job)) for job in sealed))


def _last_published(cluster: Cluster, job: DeployedJob) -> int:
    # Published in order: nothing before it is still to come.
    return max((record.epoch for record in EstimateReader(cluster, job).read()), default=0)
