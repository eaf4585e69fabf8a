"""Track the windows that have a partial, reading the log only as far back as needed.

A long-lived job has very many partials, and each may be large. Aggregators need only those of
windows whose chunks still arrive, so they start near the end of the log. Missing an older one is
harmless for correctness: its window would be aggregated again, and the first partial of an epoch
counts. But leftovers of a paused writer would then hold the floor forever, and old windows in the
topic would be written a second time. More is therefore read, from further back, in two cases:

* before accepting a chunk of an epoch older than the partials read,
* as long as a window stays incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpstream.pipeline.actions import Steps, places_near
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.topics.names import Role


class CompletePartials:
    """Epochs with a complete partial among those read.

    `whole` is True if the whole topic was read. An incomplete epoch then has no partial.
    """

    def __init__(self, job: DeployedJob, role: Role) -> None:
        self._job = job
        self._role = role
        self._places: Iterator[int] | None = None
        self._start_at(job.start_offset(role))
        self.whole = False

    @property
    def complete(self) -> EpochSet:
        return self._log.complete

    def reach(self, epoch: int) -> bool:
        """Return whether an epoch's partial would have been read, unless it is out of order."""
        return self.whole or 0 < self.complete.lowest <= epoch

    def catch_up(self) -> Steps[None]:
        """Read new partials; at first, those at the end of the topic.

        Sealed jobs read the whole topic: an epoch whose keys are erased can no longer be processed.
        """
        if self._places is not None:
            yield from self._cursor.catch_up()
            return
        start = self._job.start_offset(self._role)
        yield from self._cursor.find_end()
        self._places = places_near(start, self._cursor.end)
        if self._job.sealed is not None:
            self._places = iter((start,))
        yield from self.read_back()

    def flush(self) -> Steps[None]:
        """Wait until every append so far is acknowledged, and read up to the own appends."""
        yield from self._cursor.flush()

    def read_back(self) -> Steps[None]:
        """Read from further back than before, up to the current end."""
        assert self._places is not None, "the end must be read first"
        place = next(self._places, None)
        if place is not None:
            self._start_at(place)
            yield from self._cursor.catch_up()
            self.whole = place == self._job.start_offset(self._role)

    def _start_at(self, offset: int) -> None:
        self._log = PartialLog(self._job, role=self._role)
        self._cursor = self._job.cursor(self._role, self._log.apply)
        self._cursor.position = offset
