"""Publish one final record for every epoch, in order, as a function of manifests and partials.

A publisher that takes over continues after the last published estimate, from a checkpoint that
agrees with it. Each result document is written from the epoch's first estimate record in the topic,
so every writer writes the same bytes.
"""

from __future__ import annotations

from dpstream.pipeline.actions import Append, Flush, LogCursor, LogRecord, Steps, find_ends
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages import checkpoints
from dpstream.pipeline.stages.checkpoints import Checkpoint, own_checkpoint, resumed
from dpstream.pipeline.stages.environment import FinishedWindow, WindowListener, ignore_window
from dpstream.pipeline.stages.epoch_log import DecidedEpoch, EpochLog
from dpstream.pipeline.stages.estimate_records import (
    EstimateListener,
    EstimateRecord,
    FirstEstimates,
)
from dpstream.pipeline.stages.estimation import Estimation
from dpstream.pipeline.stages.published_epochs import place_of_latest
from dpstream.pipeline.stages.result_documents import ResultDocuments, WrittenDocuments
from dpstream.pipeline.stages.single_writer import SingleWriter
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role


class PublishStage(SingleWriter):
    role = Role.PARTIALS

    def __init__(
        self,
        job: DeployedJob,
        *,
        listener: WindowListener = ignore_window,
        watcher: EstimateListener | None = None,
    ) -> None:
        self._watcher = watcher
        super().__init__(job, listener)

    def _begin(self) -> None:
        job = self._job
        self._estimation = Estimation(job)
        self._undocumented: dict[int, EstimateRecord] = {}
        self._documents = ResultDocuments(job)
        self._documented = WrittenDocuments(job)
        if self._watcher is not None:
            self._watcher.start_over()
        self._epochs: EpochLog | None = None
        # Topics that this stage writes, which are read along with manifests and partials.
        self._logs: tuple[LogCursor, ...] = ()
        # Found by the first read: checkpoints, and estimates that they might belong to.
        self._latest: dict[int, EstimateRecord] | None = {}
        self._checkpoints: list[Checkpoint] = []
        self._checkpointed = self._condensed = 0

    def unfinished(self, partition: int) -> str:
        return f"epoch {self._next_epoch or 1} and later epochs"

    def heartbeat(self) -> dict[str, object]:
        return {"next_epoch": self._next_epoch, "counts": dict(self.counts)}

    @property
    def _next_epoch(self) -> int | None:
        return None if self._epochs is None else self._epochs.next_epoch

    def _read_on(self) -> Steps[EpochLog]:
        epochs = self._epochs
        if epochs is None:
            epochs = self._epochs = yield from self._read_first()
        # All ends are requested at once. Their order does not matter, because another publisher
        # writes the same content for an epoch.
        yield from find_ends((*self._logs, *epochs.logs))
        for log in self._logs:
            yield from log.read()
        return epochs

    def _read_first(self) -> Steps[EpochLog]:
        job = self._job
        # Read before the estimates, because estimates that have a document are not stored.
        documents = yield from self._documented.near_the_end()
        place = yield from place_of_latest(job, self._first_shown, after_checkpoint=True)
        self._published = FirstEstimates(job, place.before)
        self._estimate_log = job.cursor(Role.ESTIMATES, self._take_in)
        self._estimate_log.position = place.offset
        yield from self._estimate_log.catch_up()
        published = self._published.epochs
        first = self._rests_on(published.first_missing(published.lowest or 1))
        epochs = (yield from self._after_checkpoint(first)) or EpochLog(job, first)
        self._latest = None
        self._checkpoints.clear()
        self._logs = (documents, self._estimate_log)
        return epochs

    def _after_checkpoint(self, first: int) -> Steps[EpochLog | None]:
        """Return a log from epoch `first` after the latest valid checkpoint, if there is one."""
        assert self._latest is not None
        published = self._published.epochs
        through = published.first_missing(published.lowest or 1) - 1
        for each in sorted(self._checkpoints, key=lambda each: each.epoch, reverse=True):
            estimate = self._latest.get(each.epoch)
            if estimate is None or each.epoch > through:
                continue
            try:
                estimation = resumed(self._job, each, estimate)
            except ValueError:
                continue
            after = max(first, each.epoch + 1)
            epochs = yield from EpochLog.resume_at(self._job, each.place, after)
            if epochs is not None:
                self._estimation = estimation
                self._checkpointed = self._condensed = each.epoch
                return epochs
        return None

    def _first_shown(self, latest: int) -> int:
        """Return the first epoch whose estimate must be read, given the last published epoch."""
        first = min(latest, self._documented.latest + 1)
        if self._watcher is None:
            return first
        # The watcher needs the previous epoch to show the change in the latest one.
        reads_horizon = self._watcher.reads_horizon
        return min(
            first, self._job.epochs.first_of_horizon(latest) if reads_horizon else latest - 1
        )

    def _rests_on(self, epoch: int) -> int:
        alone = self._job.protocol_entry.per_epoch
        return epoch if alone else self._job.epochs.first_of_horizon(epoch)

    def _write_due(self) -> Steps[None]:
        epochs = yield from self._read_on()
        written: list[FinishedWindow] = []
        while (decided := (yield from epochs.next())) is not None:
            manifest = decided.manifest
            self._estimation.take_in(manifest, decided.counts)
            self._condense(manifest.epoch)
            if manifest.epoch not in self._published.epochs:
                yield self._publication(decided)
                written.append(_finished(decided))
                yield from self._checkpoint()
        # Read past the remaining parts of finished or repeated partials, which no epoch needs.
        yield from epochs.read_partials()
        yield from self._checkpoint()
        if written:
            yield from self._estimate_log.flush()
        yield from self._document()
        for window in written:
            self._listener(window)

    def _condense(self, epoch: int) -> None:
        """Periodically drop state that later estimates do not need: horizons can be long."""
        if epoch - self._condensed < checkpoints.INTERVAL:
            return
        state = self._estimation.state()
        if state is not None:
            self._condensed = epoch
        if state:
            self._estimation = Estimation.resumed(self._job, epoch, state)

    def _checkpoint(self) -> Steps[None]:
        epochs = self._epochs
        assert epochs is not None
        if (epochs.next_epoch or 1) - 1 - self._checkpointed < checkpoints.INTERVAL:
            return
        place = epochs.place()
        state = None if place is None else self._estimation.state()
        if place is None or state is None:
            return
        self._checkpointed = place.epoch
        checkpoint = Checkpoint(self._job.deployment, self._job.fingerprint, place, state)
        if (record := checkpoint.append()) is not None:
            yield record

    def _document(self) -> Steps[None]:
        if not self._undocumented:
            return
        for record in self._undocumented.values():
            yield self._documents.append(record)
        yield Flush()
        self._documented.latest = max(self._documented.latest, *self._undocumented)
        self._undocumented.clear()

    def _take_in(self, record: LogRecord) -> None:
        estimate = self._published.apply(record.value)
        if estimate is None:
            if self._latest is None:
                # Later checkpoints only matter to publishers that take over.
                return
            checkpoint = own_checkpoint(self._job, record.key, record.value)
            if checkpoint is not None:
                self._checkpoints.append(checkpoint)
            return
        if self._latest is not None:
            self._latest[estimate.epoch] = estimate
        if self._watcher is not None:
            self._watcher.next(estimate)
        if estimate.epoch > self._documented.latest:
            self._undocumented[estimate.epoch] = estimate

    @property
    def _position(self) -> int:
        return 0 if self._epochs is None else self._epochs.partials_position

    @property
    def _waiting(self) -> bool:
        return self._epochs is not None and self._epochs.partials_wait

    def _publication(self, decided: DecidedEpoch) -> Append:
        manifest = decided.manifest
        record = EstimateRecord(
            deployment=self._job.deployment,
            epoch=manifest.epoch,
            window_status=_window_status(decided),
            closed_at=manifest.timestamp,
            contributors=manifest.contributors,
            population=manifest.population,
            estimate=self._estimation.estimate(),
            guarantee=self._job.guarantee_at(manifest.epoch, manifest.first_epoch).to_json(),
            reason=decided.corruption,
            assumes_changes=self._job.assumes_changes,
        )
        self.counts["estimates"] += 1
        return Append(Role.ESTIMATES, 0, record.to_bytes())


def _window_status(decided: DecidedEpoch) -> WindowStatus:
    return decided.manifest.window_status if decided.corruption is None else WindowStatus.CORRUPT


def _finished(decided: DecidedEpoch) -> FinishedWindow:
    manifest = decided.manifest
    return FinishedWindow(
        manifest.epoch,
        _window_status(decided),
        manifest.contributors,
        decided_at=manifest.timestamp,
    )
