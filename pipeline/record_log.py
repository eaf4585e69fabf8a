"""What is recorded of a deployment, epoch by epoch: found in its topics, sans I/O."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.actions import Steps
from pipeline.decisions import Decision
from pipeline.deployed_job import DeployedJob
from pipeline.epoch_results import PublishedLog
from pipeline.estimate_records import EstimateRecord
from pipeline.multisets import WordMultiset
from pipeline.record_rows import recorded_estimate
from pipeline.released_windows import WindowIndex
from topics.manifests import Fate
from topics.recordings import RecordedEpoch, RecordedManifest
from topics.words import Words


class RecordLog:
    """The published epochs of a deployment in order, with all that is recorded of them.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.
        floors: as of `WindowIndex`.
    """

    def __init__(self, job: DeployedJob, first: int, floors: Mapping[int, int]) -> None:
        self._job = job
        self._published = PublishedLog(job, first)
        self._windows = WindowIndex(job, first, floors)
        self._found: tuple[EstimateRecord, Decision, bytes | None] | None = None

    @property
    def floors(self) -> dict[int, int]:
        """Where to begin reading windows for all epochs to come."""
        return self._windows.floors

    def look(self) -> Steps[None]:
        """See how far the topics go by now: `next` reads up to there."""
        # In this order: windows were written before what is made of them.
        yield from self._published.look()
        yield from self._windows.look()

    def next(self) -> Steps[RecordedEpoch | None]:
        """The next published epoch; None if there is no further one yet.

        A released window that is None has been deleted: it was whole when it was aggregated. Where
        reading is given up, the epoch comes again.
        """
        if self._found is None:
            self._found = yield from self._published.next()
        if self._found is None:
            return None
        record, decision, payload = self._found
        window = None
        if record.fate is Fate.RELEASED:
            window = yield from self._window(record.epoch)
        self._windows.pass_over(record.epoch)
        self._found = None
        return RecordedEpoch(
            RecordedManifest(decision.manifest, decision.offset),
            window,
            payload,
            recorded_estimate(record),
        )

    def _window(self, epoch: int) -> Steps[Words | None]:
        """The window of an epoch in canonical order; None if the topic does not have it whole."""
        if not (yield from self._windows.find(epoch)):
            return None
        words = WordMultiset(self._job.word_form)
        try:
            whole = yield from self._windows.read(epoch, words)
            return words.sorted() if whole else None
        finally:
            words.close()
