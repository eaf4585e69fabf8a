"""Track the windows that have a partial, reading the log only as far back as needed.

A long-lived job has very many partials, and each can be large. Aggregators only need the partials
of windows whose chunks still arrive, so they start near the end of the log. Results stay correct if
an older one is missed: its window is aggregated again, and the first partial of an epoch counts.
But leftovers of a paused writer would then hold back the committed offset forever, and old windows
in the topic would be written again. The log is therefore read from further back in two cases:

* before a chunk of an epoch older than the partials read is accepted,
* while a window stays incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpstream.pipeline.actions import Steps, places_near
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.topics.names import Role


class CompletePartials:
    """Epochs whose partial has been read completely.

    `whole` is True if the whole topic was read. All other epochs then have no complete partial.
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
        """Return whether reading reached far enough back to find an epoch's partial in order."""
        return self.whole or 0 < self.complete.lowest <= epoch

    def catch_up(self) -> Steps[None]:
        """Read new partials; the first call reads partials near the end of the topic.

        Sealed jobs read the whole topic: an epoch whose keys are erased cannot be aggregated again.
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
        """Wait until all appends are acknowledged, and read the log up to them."""
        yield from self._cursor.flush()

    def read_back(self) -> Steps[None]:
        """Read the log again from further back, up to its current end."""
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
