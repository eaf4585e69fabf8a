"""What the shuffle stage adds to the windows it releases, or deletes, where a job asks for it.

Or it releases one word for all of them: their sum, with noise.
"""

from __future__ import annotations

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey, WrongKeyError
from dpstream.pipeline.stages.crowds import left_of_crowds
from dpstream.topics.words import Words


class StageNoise:
    """The noise of a job's windows: a function of noise key, deployment and epoch.

    Nothing is remembered and nothing is written down. A window that is written again, by whomever,
    has the same dummies, or the same sum, and the same messages are deleted: no second noise of the
    same counts ever exists.

    Args:
        job: the deployed job.
        key: the one it was deployed with; of no use to a job that needs none.

    Raises:
        WrongKeyError: the job needs a key and this is not the one.
    """

    def __init__(self, job: DeployedJob, key: NoiseKey | None) -> None:
        self._job = job
        self._key = key if job.needs_noise_key else None
        if not job.needs_noise_key:
            return
        if key is None:
            raise WrongKeyError(
                f"the shuffle stage of {job.name} draws noise, and needs the noise key that the "
                "job was deployed with"
            )
        if key.digest != job.noise_key:
            wanted = "nothing" if job.noise_key is None else job.noise_key.hex()[:8]
            raise WrongKeyError(
                f"this is not the noise key that {job.name} was deployed with: its SHA-256 begins "
                f"with {key.digest.hex()[:8]}, that of the job's key with {wanted}"
            )

    def dummies(self, epoch: int) -> Words | None:
        """The dummies of a window; None where there are none."""
        draw = self._job.stage_dummies
        if draw is None:
            return None
        assert self._key is not None
        generator = self._key.generator(self._job.deployment, epoch)
        drawn = draw(self._job.local_epoch(epoch), generator)
        return Words(drawn.values, drawn.counts)

    @property
    def sums(self) -> bool:
        """Whether the words of a window are added up, and only their noisy sum is released."""
        return self._job.stage_sum is not None

    def sum(self, epoch: int, words: Words) -> Words:
        """The one word that is released instead of those of a window."""
        summed = self._job.stage_sum
        assert summed is not None
        assert self._key is not None
        generator = self._key.generator(self._job.deployment, epoch)
        return Words(summed.release(words.values, words.counts, generator))

    @property
    def deletes(self) -> bool:
        """Whether messages are deleted at random."""
        return self._job.crowds_law is not None

    def left(self, epoch: int, words: Words) -> Words:
        """What is left of the messages of a window, which are in canonical order."""
        law = self._job.crowds_law
        assert law is not None
        assert self._key is not None
        generator = self._key.generator(self._job.deployment, epoch)
        return left_of_crowds(law, words, generator)
