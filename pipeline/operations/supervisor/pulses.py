"""Which workers hang: their pulse has not changed for longer than they need to end themselves.

What changes is compared, and no clock that anybody sets: it counts only how often a pulse was felt
to be the same, by seconds that never go back and stand still while the machine sleeps.
"""

from __future__ import annotations

from collections.abc import Collection

HUNG_SECONDS = 90.0
"""Seconds without a pulse: a worker whose event loop is blocked ends itself after 30."""


class Pulses:
    """The pulses of workers, felt again and again.

    >>> pulses = Pulses()
    >>> [pulses.silent("a", beat, now) for beat, now in ((1, 0.0), (1, 40.0), (2, 80.0), (2, 90.0))]
    [0.0, 40.0, 0.0, 10.0]
    """

    def __init__(self) -> None:
        self._felt: dict[str, tuple[object, float]] = {}

    def silent(self, job: str, pulse: object, now: float) -> float:
        """For how many seconds the pulse of a job's worker has been the same."""
        before = self._felt.get(job)
        if before is None or before[0] != pulse:
            self._felt[job] = pulse, now
            return 0.0
        return now - before[1]

    def keep(self, jobs: Collection[str]) -> None:
        """Feel the pulse of none but these from now on."""
        self._felt = {job: felt for job, felt in self._felt.items() if job in jobs}
