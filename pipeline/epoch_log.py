"""The decided epochs of a deployment in order, each with the counts of its released window.

Manifests and partials are kept for ever and have one partition each, so what can be estimated is a
function of two logs, whoever reads them: the publisher as they grow, or anybody who looks back.
"""

from __future__ import annotations

from pipeline.actions import LogCursor, Steps, end_offset
from pipeline.decisions import Decision, Decisions
from pipeline.deployed_job import DeployedJob
from pipeline.partial_log import PartialLog
from topics.manifests import Fate, Manifest
from topics.names import Role


class EpochLog:
    """Reads manifests and partials in step, a few MiB at a time.

    What is held does not grow with the number of epochs.

    Attributes:
        next_epoch: the epoch that comes next; None before it is known with which one it begins.
    """

    def __init__(self, job: DeployedJob) -> None:
        self.next_epoch: int | None = None
        self._manifests: dict[int, Decision] = {}
        self._payloads: dict[int, bytes] = {}
        self._decisions = Decisions(
            job,
            lambda decision: self._manifests.update({decision.manifest.epoch: decision}),
        )
        self._partials = PartialLog(
            job,
            lambda epoch, payload: self._payloads.update({epoch: payload}),
        )
        self._manifest_log = LogCursor(
            Role.MANIFESTS,
            job.start_offset(Role.MANIFESTS),
            lambda record: self._decisions.apply(record.offset, record.value),
        )
        self._partial_log = LogCursor(
            Role.PARTIALS, job.start_offset(Role.PARTIALS), self._partials.apply
        )
        self._ends = (0, 0)

    @property
    def partials_position(self) -> int:
        """The offset at which partials are read on."""
        return self._partial_log.position

    @property
    def partials_wait(self) -> bool:
        """Whether partials have been read whose epoch has not come yet."""
        return bool(self._payloads)

    def look(self) -> Steps[None]:
        """See how far the logs go by now: `next` reads up to there."""
        manifests_end = yield from end_offset(Role.MANIFESTS, 0)
        partials_end = yield from end_offset(Role.PARTIALS, 0)
        self._ends = (manifests_end, partials_end)

    def next(self) -> Steps[tuple[Manifest, bytes | None] | None]:
        """The next epoch, with its payload if it was released; None if it is not there yet."""
        found = yield from self.next_decision()
        return None if found is None else (found[0].manifest, found[1])

    def next_decision(self) -> Steps[tuple[Decision, bytes | None] | None]:
        """The same with the place of the manifest."""
        manifests_end, partials_end = self._ends
        while True:
            decision = self._next_decision()
            if decision is None:
                more = yield from self._manifest_log.read_some(manifests_end)
            elif self._waits(decision.manifest):
                more = yield from self._partial_log.read_some(partials_end)
            else:
                epoch = decision.manifest.epoch
                del self._manifests[epoch]
                self.next_epoch = epoch + 1
                return decision, self._payloads.pop(epoch, None)
            if not more:
                return None

    def _waits(self, manifest: Manifest) -> bool:
        return manifest.fate is Fate.RELEASED and manifest.epoch not in self._payloads

    def _next_decision(self) -> Decision | None:
        if self.next_epoch is None:
            self.next_epoch = self._decisions.first_epoch
        return None if self.next_epoch is None else self._manifests.get(self.next_epoch)
