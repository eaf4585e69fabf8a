"""Jobs and phases in ``dpstream.jobs``: the data needed to run and read jobs.

The topic is compacted: only the last record with each key counts. Records are applied one by one,
in the topic's order. `jobs_topic` also reads charges.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import JobPhase, Phase, is_phase, phase_key
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.topics.frames import CodecError

CHARGE_KEY: Final = b"charge/"
BUDGET_KEY: Final = b"budget/"
RECEIPT_KEY: Final = b"receipt/"
"""Key prefixes of records about charges; the key of a job's record is its name."""

_ABOUT_CHARGES = (CHARGE_KEY, BUDGET_KEY, RECEIPT_KEY)


class ListedJobs:
    """State of the topic after the records applied so far.

    Attributes:
        jobs: Deployed jobs readable by this software version, by name.
        unreadable: Names of jobs written by another software version.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, DeployedJob] = {}
        self.unreadable: set[str] = set()
        self._phases: dict[bytes, JobPhase] = {}

    def phase(self, name: str) -> Phase:
        job, found = self.jobs.get(name), self._phases.get(phase_key(name))
        if job is None or found is None or found.deployment != job.deployment:
            return Phase.RUNNING
        return found.phase

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        if key.startswith(_ABOUT_CHARGES):
            self._apply_charge(key, value)
        elif is_phase(key):
            self._phases.pop(key, None)
            with suppress(CodecError):
                self._phases[key] = JobPhase.from_bytes(value or b"")
        else:
            self._apply_job(key.decode(errors="replace"), value)

    def _apply_charge(self, key: bytes, value: bytes | None) -> None:
        """Apply a record about charges."""

    def _apply_job(self, name: str, value: bytes | None) -> None:
        self.jobs.pop(name, None)
        self.unreadable.discard(name)
        if value:
            try:
                self.jobs[name] = DeployedJob.from_bytes(value)
            except JobError:
                self.unreadable.add(name)
