"""Which epochs a collector takes no more reports of, and has to say so.

Not at the moment in which they close, but when what was taken then is in the log, at this collector
and at all others: a report that was appended before that is below every watermark.
"""

from __future__ import annotations

from typing import Final

from dpstream.pipeline.collector.intake import Intake

_AT_ONCE: Final = 256
"""Epochs that one look finds: after a long sleep there may be many."""


class Watermarks:
    """The epochs of a deployment, from those that are open when the collector is started.

    Args:
        intake: of the job.
        now: milliseconds since 1970 by the broker's clock.
    """

    def __init__(self, intake: Intake, now: int) -> None:
        self.intake = intake
        job = intake.job
        epoch = max(job.first_epoch, intake.times.epoch_of(now))
        while epoch > job.first_epoch and intake.settles(epoch - 1) > now:
            epoch -= 1
        self.next = epoch
        """The first epoch that nothing was said of."""

    def due(self, now: int) -> list[int]:
        """The epochs, from `next` on, that have closed by now."""
        due: list[int] = []
        last = self.intake.job.last_epoch
        epoch = self.next
        while (
            len(due) < _AT_ONCE
            and (last is None or epoch <= last)
            and self.intake.settles(epoch) <= now
        ):
            due.append(epoch)
            epoch += 1
        return due

    def said(self, epoch: int) -> None:
        """The watermark of `next` has been acknowledged."""
        self.next = epoch + 1
