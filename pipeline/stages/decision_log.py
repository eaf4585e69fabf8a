"""What has been decided: the manifest log of a deployment, the first manifest of an epoch counting.

The shuffle workers of a job share nothing but this log. Each of them reads it to its end after
writing to it, so that all of them go on under the same decision, whoever made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from pipeline.actions import LogRecord
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import EPOCHS_AHEAD, epoch_problem
from pipeline.stages.epochs import EpochSet
from topics.frames import CodecError
from topics.manifests import Manifest, decode_manifest

# A producer that missed this many decided epochs in a row is not waited for until it is back.
PATIENCE = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """A manifest and its offset in the manifest log."""

    manifest: Manifest
    offset: int


class DecisionLog:
    """The decided epochs, who was in lately, and how many devices each producer stands for.

    Manifests of epochs that the job does not have are passed over, and so are those more than
    `EPOCHS_AHEAD` beyond the oldest epoch that no earlier manifest decides: no worker decides so
    far ahead, and what is between is due work for all who read. Every reader passes over the same,
    since what an earlier manifest decides is a matter of the log alone.

    Args:
        job: the deployed job.
        on_decision: is shown every decision.
        instance: whose manifests are read, where several shuffle instances work side by side. The
            first one decides; those of another one say what its part of a decided window is.
    """

    def __init__(
        self,
        job: DeployedJob,
        on_decision: Callable[[Decision], None] | None = None,
        instance: int = 1,
    ) -> None:
        self._instance = instance
        self._job = job
        self._identity = (job.deployment, job.fingerprint)
        self._on_decision = on_decision
        self._recent: dict[int, Decision] = {}
        self._order: deque[int] = deque()
        self._populations: dict[int, tuple[int, int]] = {}  # index: (epoch, population)
        self.first_epoch: int | None = None
        self.decided = EpochSet()

    def apply(self, record: LogRecord) -> None:
        """Take in one record of the manifest log."""
        try:
            manifest = decode_manifest(record.value)
        except CodecError:
            return
        if (manifest.deployment, manifest.fingerprint) != self._identity:
            return
        if manifest.instance != self._instance:
            return
        if self._out_of_range(manifest) or not self.exists(manifest.epoch):
            return
        if not self.decided.add(manifest.epoch):
            return
        if self.first_epoch is None:
            self.first_epoch = manifest.first_epoch
        decision = Decision(manifest, record.offset)
        self._remember(decision)
        if self._on_decision is not None:
            self._on_decision(decision)

    def _out_of_range(self, manifest: Manifest) -> bool:
        oldest = self.oldest_undecided(manifest.first_epoch)
        return (
            epoch_problem(self._job, manifest.epoch) is not None
            or manifest.epoch > oldest + EPOCHS_AHEAD
        )

    def _remember(self, decision: Decision) -> None:
        manifest = decision.manifest
        self._recent[manifest.epoch] = decision
        self._order.append(manifest.epoch)
        if len(self._order) > EPOCHS_AHEAD:
            del self._recent[self._order.popleft()]
        populations = iter(manifest.populations)
        for index, inside in enumerate(manifest.producers):
            if inside:
                population = next(populations)
                if self._populations.get(index, (0, 0))[0] < manifest.epoch:
                    self._populations[index] = (manifest.epoch, population)

    def exists(self, epoch: int) -> bool:
        """Whether the deployment has an epoch: the first manifest says with which it begins."""
        return self.first_epoch is None or epoch >= self.first_epoch

    def recent(self, epoch: int) -> Decision | None:
        """The decision on an epoch, if it is among the last `EPOCHS_AHEAD` ones."""
        return self._recent.get(epoch)

    def population(self, index: int) -> int:
        """Devices of a producer, as of the last epoch it was in with; 0 before."""
        return self._populations.get(index, (0, 0))[1]

    def last_in(self, index: int) -> int:
        """The latest epoch whose window a producer was in; 0 before the first."""
        return self._populations.get(index, (0, 0))[0]

    def oldest_undecided(self, roster_first_epoch: int) -> int:
        """The lowest epoch that exists and has no manifest."""
        first = roster_first_epoch if self.first_epoch is None else self.first_epoch
        return self.decided.first_missing(first)

    def missed(self, index: int, first_epoch: int, epoch: int) -> bool:
        """Whether a producer was in none of the last `PATIENCE` decided epochs before `epoch`.

        `first_epoch` is the producer's own: what was decided before it came does not count.
        """
        latest = list(islice(self.decided.below(epoch), PATIENCE))
        return (
            len(latest) == PATIENCE
            and latest[-1] >= first_epoch
            and not any(self._was_in(index, earlier) for earlier in latest)
        )

    def _was_in(self, index: int, epoch: int) -> bool:
        """Whether a producer was in a window; so it is taken where that is not remembered."""
        decision = self._recent.get(epoch)
        if decision is None:
            return True
        producers = decision.manifest.producers
        return index < len(producers) and producers[index]
