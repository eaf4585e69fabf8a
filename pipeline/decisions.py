"""What has been decided: the manifest log of a deployment, the first manifest of an epoch counting.

The shuffle workers of a job share nothing but this log. Each of them reads it to its end after
writing to it, so that all of them go on under the same decision, whoever made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.epochs import EpochSet
from topics.frames import CodecError
from topics.manifests import Manifest, decode_manifest

# A producer that missed this many decided epochs in a row is not waited for until it is back.
PATIENCE = 3
# Windows may run this far ahead of the oldest undecided epoch; it also bounds what is remembered.
EPOCHS_AHEAD = 4096


@dataclass(frozen=True, slots=True)
class Decision:
    """A manifest and its offset in the manifest log."""

    manifest: Manifest
    offset: int


class Decisions:
    """The decided epochs, who was in lately, and how many devices each producer stands for."""

    def __init__(
        self,
        deployment: bytes,
        fingerprint: bytes,
        on_decision: Callable[[Decision], None] | None = None,
    ) -> None:
        self._identity = (deployment, fingerprint)
        self._on_decision = on_decision
        self._recent: dict[int, Decision] = {}
        self._order: deque[int] = deque()
        self._populations: dict[int, tuple[int, int]] = {}  # index: (epoch, population)
        self.first_epoch: int | None = None
        self.decided = EpochSet()

    def apply(self, offset: int, value: bytes) -> None:
        """Take in one record of the manifest log."""
        try:
            manifest = decode_manifest(value)
        except CodecError:
            return
        if (manifest.deployment, manifest.fingerprint) != self._identity:
            return
        if not self.exists(manifest.epoch) or not self.decided.add(manifest.epoch):
            return
        if self.first_epoch is None:
            self.first_epoch = manifest.first_epoch
        decision = Decision(manifest, offset)
        self._remember(decision)
        if self._on_decision is not None:
            self._on_decision(decision)

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

    def oldest_undecided(self, roster_first_epoch: int) -> int:
        """The lowest epoch that exists and has no manifest."""
        first = roster_first_epoch if self.first_epoch is None else self.first_epoch
        return self.decided.first_missing(first)

    def missed(self, index: int, first_epoch: int, epoch: int) -> bool:
        """Whether a producer was in none of the last `PATIENCE` decided epochs before `epoch`.

        `first_epoch` is the producer's own: what was decided before it came does not count.
        """
        misses = 0
        earlier = min(epoch - 1, self.decided.highest)
        for candidate in range(earlier, max(first_epoch, earlier - EPOCHS_AHEAD) - 1, -1):
            decision = self._recent.get(candidate)
            if decision is None:
                continue
            producers = decision.manifest.producers
            if index < len(producers) and producers[index]:
                return False
            misses += 1
            if misses == PATIENCE:
                return True
        return False
