"""What ``dpstream.jobs`` says: the deployed jobs, their phases, people's charges and budgets.

What people are charged and may be stands in the ledger (`dpstream.pipeline.ledger`); here is a copy
of it, from which `ledger --reopen` carries over what a damaged ledger has lost, with receipts for
the ledger's entries. The topic is compacted, and the last record of a key counts. `JobsTopic` is
fed record by record, in the order of the topic, by whoever reads it once or follows it.
"""

from __future__ import annotations

from contextlib import suppress

from dpstream.pipeline.jobs.budgets import Charge, is_charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.phases import JobPhase, Phase, is_phase, phase_key
from dpstream.pipeline.jobs.receipts import Receipt, is_receipt
from dpstream.pipeline.jobs.stated_budgets import StatedBudget, is_stated_budget
from dpstream.topics.frames import CodecError


class JobsTopic:
    """The state of the topic after the records that were applied.

    Attributes:
        jobs: every deployed job that this version of the software can read, by name.
        unreadable: names of jobs written by another version, which that one lists.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, DeployedJob] = {}
        self.unreadable: set[str] = set()
        self._charges: dict[bytes, Charge] = {}
        self._phases: dict[bytes, JobPhase] = {}
        self._stated: dict[bytes, StatedBudget] = {}
        self._receipts: dict[bytes, Receipt] = {}

    @property
    def charges(self) -> list[Charge]:
        """What every deployment so far has charged its population."""
        return list(self._charges.values())

    @property
    def receipts(self) -> list[Receipt]:
        """Which entries stood in the ledger."""
        return list(self._receipts.values())

    @property
    def stated(self) -> list[StatedBudget]:
        """Every budget ever stated, in order."""
        return list(self._stated.values())

    def phase(self, name: str) -> Phase:
        """The phase of a deployed job."""
        job, found = self.jobs.get(name), self._phases.get(phase_key(name))
        if job is None or found is None or found.deployment != job.deployment:
            return Phase.RUNNING
        return found.phase

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in a record; what nobody can read is passed over."""
        if key is None:
            return
        if is_stated_budget(key):
            self._stated.pop(key, None)
            with suppress(CodecError):
                self._stated[key] = StatedBudget.from_bytes(value or b"")
        elif is_receipt(key):
            self._receipts.pop(key, None)
            with suppress(CodecError):
                self._receipts[key] = Receipt.from_bytes(value or b"")
        elif is_charge(key):
            with suppress(CodecError):
                self._charges[key] = Charge.from_bytes(value or b"")
        elif is_phase(key):
            self._phases.pop(key, None)
            with suppress(CodecError):
                self._phases[key] = JobPhase.from_bytes(value or b"")
        else:
            self._apply_job(key.decode(errors="replace"), value)

    def _apply_job(self, name: str, value: bytes | None) -> None:
        self.jobs.pop(name, None)
        self.unreadable.discard(name)
        if value:
            try:
                self.jobs[name] = DeployedJob.from_bytes(value)
            except JobError:
                self.unreadable.add(name)
