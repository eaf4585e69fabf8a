"""Noise from the shuffler: dummy messages, deletions, or a noisy sum in place of all messages."""

from __future__ import annotations

import numpy as np

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey, WrongKeyError
from dpstream.pipeline.stages.crowd_deletion import left_of_crowds
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.ordered_chunks import Chunks
from dpstream.pipeline.stages.window_writer import WindowRelease
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role


class RandomOrder(WindowRelease):
    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def chunks(self, words: MessageMultiset) -> Steps[Chunks]:
        return (yield from words.permuted(self._generator))


class NoisyRelease(WindowRelease):
    def __init__(self, job: DeployedJob, environment: Environment, order: WindowRelease) -> None:
        self._job = job
        self._noise = StageNoise(job, environment.noise_key)
        self._open_spill_file = environment.open_spill_file
        self._order = order

    def released(self, epoch: int, words: MessageMultiset) -> MessageMultiset:
        dummies = self._noise.dummies(epoch)
        if dummies is not None:
            words.add(dummies)
        if self._job.crowds_law is not None:
            # The encoding must depend only on the remaining messages.
            words = self._only(self._noise.left(epoch, words.sorted()), Role.REPORTS)
        if self._job.stage_sum is not None:
            words = self._only(self._noise.sum(epoch, words.sorted()), Role.SHUFFLED)
        return words

    def chunks(self, words: MessageMultiset) -> Steps[Chunks]:
        return (yield from self._order.chunks(words))

    def _only(self, words: Messages, role: Role) -> MessageMultiset:
        multiset = MessageMultiset(self._job.format_of(role), self._open_spill_file)
        multiset.add(words)
        return multiset


class StageNoise:
    """Noise for a job's windows: a function of noise key, deployment and epoch.

    A window that any worker writes again has the same dummies, sum and deletions. Fresh noise is
    never added to the same counts a second time. Raises `WrongKeyError` if `key` is not the job's
    noise key.
    """

    def __init__(self, job: DeployedJob, key: NoiseKey | None) -> None:
        self._job = job
        self._key = key if job.needs_noise_key else None
        if not job.needs_noise_key:
            return
        if key is None:
            raise WrongKeyError(
                f"no key given: the shuffler requires the noise key of {job.name}'s deployment"
            )
        if key.digest != job.noise_key:
            expected = "no key" if job.noise_key is None else f"{job.noise_key.hex()[:8]}..."
            raise WrongKeyError(
                f"this is not the noise key of {job.name}'s deployment: got SHA-256 "
                f"{key.digest.hex()[:8]}...; expected {expected}"
            )

    def dummies(self, epoch: int) -> Messages | None:
        draw = self._job.stage_dummies
        if draw is None:
            return None
        assert self._key is not None
        generator = self._key.generator(self._job.deployment, epoch)
        drawn = draw(self._job.epochs.local(epoch), generator)
        return Messages(drawn.values, drawn.counts)

    def sum(self, epoch: int, words: Messages) -> Messages:
        summed = self._job.stage_sum
        assert summed is not None
        assert self._key is not None
        generator = self._key.generator(self._job.deployment, epoch)
        return Messages(summed.release(words.values, words.counts, generator))

    def left(self, epoch: int, words: Messages) -> Messages:
        """Return the messages that remain in a window; `words` must be in canonical order."""
        law = self._job.crowds_law
        assert law is not None
        assert self._key is not None
        generator = self._key.generator(self._job.deployment, epoch)
        return left_of_crowds(law, words, generator)
