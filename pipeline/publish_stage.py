"""The publish stage: one final record for every epoch, in order.

Manifests and partials are kept for ever and each has one partition, so the publisher's whole state
is a function of two logs: it reads them from the beginning, merges the partials in epoch order, and
goes on after the last record of the estimates topic. Owning the one partition of ``<job>.partials``
makes a worker the active publisher; the records shown to it only wake it up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from aggregators.attendance import Attendance
from pipeline.actions import Append, Commit, Flush, LogCursor, LogRecord, Steps, end_offset
from pipeline.decisions import Decision, Decisions
from pipeline.deployed_job import DeployedJob
from pipeline.estimate_records import EstimateRecord, FirstEstimates
from pipeline.partial_log import PartialLog
from pipeline.protocols import Aggregator
from topics.manifests import Fate, Manifest
from topics.names import Role


class PublishStage:
    """Turns manifests and partials into the records of ``<job>.estimates``."""

    role = Role.PARTIALS

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._guarantee = job.guarantee().to_json()
        self.counts: Counter[str] = Counter()
        self._start_over()

    def _start_over(self) -> None:
        job = self._job
        self._active = False
        self._aggregator: Aggregator = job.aggregator()
        self._attendance = Attendance.empty(job.last_epoch)
        self._published = FirstEstimates(job.deployment)
        self._next_epoch: int | None = None
        self._waiting_decisions: dict[int, Decision] = {}
        self._waiting_partials: dict[int, bytes] = {}
        self._decisions = Decisions(job.deployment, job.fingerprint, self._decided)
        self._partials = PartialLog(job.deployment, job.fingerprint, self._aggregated)
        self._estimate_log = self._cursor(
            Role.ESTIMATES, lambda record: self._published.apply(record.value)
        )
        self._manifest_log = self._cursor(
            Role.MANIFESTS, lambda record: self._decisions.apply(record.offset, record.value)
        )
        self._partial_log = self._cursor(Role.PARTIALS, self._partials.apply)
        self._committed = 0

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """Become the active publisher: rebuild the state, and publish what is due."""
        self._start_over()
        start = self._job.start_offset(Role.PARTIALS, partition)
        self._committed = start if committed is None else max(start, committed)
        yield from self._publish_due()
        self._active = True
        return self._committed

    def revoke(self, partition: int) -> None:
        """Another worker publishes now."""
        self._start_over()

    def record(self, partition: int, offset: int, value: bytes, now: float) -> Steps[None]:
        """A part of a partial has arrived, and wakes the publisher up if it has not read it yet."""
        if offset >= self._partial_log.position:
            yield from self._publish_due()

    def tick(self, now: float) -> Steps[None]:
        """Look for manifests that need no partial."""
        if self._active:
            yield from self._publish_due()

    def unfinished(self, partition: int) -> str:
        """Epochs that are not published."""
        return f"epoch {self._next_epoch or 1} and later ones"

    def heartbeat(self) -> dict[str, object]:
        """What has been counted so far, and the epoch that is published next."""
        return {"next_epoch": self._next_epoch, "counts": dict(self.counts)}

    def _cursor(self, role: Role, visit: Callable[[LogRecord], object]) -> LogCursor:
        return LogCursor(role, self._job.start_offset(role), visit)

    def _decided(self, decision: Decision) -> None:
        self._waiting_decisions[decision.manifest.epoch] = decision

    def _aggregated(self, epoch: int, payload: bytes) -> None:
        self._waiting_partials[epoch] = payload

    def _publish_due(self) -> Steps[None]:
        """Take in what is new, epoch by epoch, and publish what is not published yet.

        The two logs are read in step, a few MiB at a time: what is held does not grow with the
        number of epochs.
        """
        yield from self._estimate_log.catch_up()
        manifests_end = yield from end_offset(Role.MANIFESTS, 0)
        partials_end = yield from end_offset(Role.PARTIALS, 0)
        wrote = False
        while True:
            decision = self._next_decision()
            if decision is None:
                if not (yield from self._manifest_log.read_some(manifests_end)):
                    break
            elif not self._take_in(decision.manifest):
                if not (yield from self._partial_log.read_some(partials_end)):
                    break
            else:
                self._next_epoch = decision.manifest.epoch + 1
                del self._waiting_decisions[decision.manifest.epoch]
                if decision.manifest.epoch not in self._published.epochs:
                    yield self._publication(decision.manifest)
                    wrote = True
        if wrote:
            yield Flush()
        if self._partial_log.position > self._committed and not self._waiting_partials:
            self._committed = self._partial_log.position
            yield Commit(Role.PARTIALS, 0, self._committed)

    def _next_decision(self) -> Decision | None:
        if self._next_epoch is None:
            self._next_epoch = self._decisions.first_epoch
        return None if self._next_epoch is None else self._waiting_decisions.get(self._next_epoch)

    def _take_in(self, manifest: Manifest) -> bool:
        """Merge what the estimate of an epoch needs; False while its partial is missing."""
        if manifest.fate is Fate.RELEASED:
            payload = self._waiting_partials.pop(manifest.epoch, None)
            if payload is None:
                return False
            self._aggregator.merge(self._job.aggregator_from_bytes(payload))
        self._attendance.set(manifest.epoch, manifest.contributors, manifest.population)
        return True

    def _publication(self, manifest: Manifest) -> Append:
        record = EstimateRecord(
            deployment=self._job.deployment,
            epoch=manifest.epoch,
            fate=manifest.fate,
            closed_at=manifest.timestamp,
            contributors=manifest.contributors,
            population=manifest.population,
            estimate=self._aggregator.estimate(manifest.epoch, self._attendance),
            guarantee=self._guarantee,
        )
        self.counts["estimates"] += 1
        return Append(Role.ESTIMATES, 0, record.to_bytes(), timestamp=manifest.timestamp)
