"""Which windows have a partial, as far back as somebody has to look.

A job that has lived long has very many partials, and each may be large. Who adds windows up need
know only of those that chunks still come of, and begins near the end of the log. Not to know of an
older one is no harm: its window would be added up again, and of an epoch the first partial counts.
But what a paused writer has left of it would hold the floor for ever, and what lies in the topic
since long would be written a second time. So before anything is taken in of an epoch older than
what was read, and as long as a window does not become complete, more is read, from further back.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpstream.pipeline.actions import Steps, places_near
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.topics.names import Role


class CompletePartials:
    """The epochs of which a complete partial was read.

    Args:
        job: the deployed job.
        role: of the topic of partials.

    Attributes:
        whole: whether all of the topic was read: what is not complete then has no partial.
    """

    def __init__(self, job: DeployedJob, role: Role) -> None:
        self._job = job
        self._role = role
        self._places: Iterator[int] | None = None
        self._begin_at(job.start_offset(role))
        self.whole = False

    @property
    def complete(self) -> EpochSet:
        """The epochs that are complete, of what was read."""
        return self._log.complete

    def reach(self, epoch: int) -> bool:
        """Whether a partial of an epoch would have been read, unless it came out of order."""
        return self.whole or 0 < self.complete.lowest <= epoch

    def catch_up(self) -> Steps[None]:
        """Read what is new; at first, the end of what there is.

        Where reports are sealed all is read: of an epoch whose keys are erased nothing can be taken
        in any more.
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
        """Have every append so far acknowledged, and read up to what was appended here."""
        yield from self._cursor.flush()

    def read_back(self) -> Steps[None]:
        """Read from further back than before, up to the present end."""
        assert self._places is not None, "the end is read first"
        place = next(self._places, None)
        if place is not None:
            self._begin_at(place)
            yield from self._cursor.catch_up()
            self.whole = place == self._job.start_offset(self._role)

    def _begin_at(self, offset: int) -> None:
        self._log = PartialLog(self._job, role=self._role)
        self._cursor = self._job.cursor(self._role, self._log.apply)
        self._cursor.position = offset
