"""What reports and batches of a deployment are sealed to, on their way to whoever adds them up."""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.pipeline.jobs.sealed import AGGREGATE, Sealed, stage_party
from dpstream.topics.names import Role
from dpstream.topics.sealing import Lock, sealing_context


@dataclass(frozen=True, slots=True)
class Locks:
    """Keys and contexts of the parties that open what is sealed.

    Attributes:
        sealed: the keys.
        deployment: whose windows these are.
        fingerprint: of the job.
        report_roles: what devices send to each shuffle instance.
        hops: what shuffle stages in series pass on to each other.
    """

    sealed: Sealed
    deployment: bytes
    fingerprint: bytes
    report_roles: tuple[Role, ...]
    hops: tuple[Role, ...]

    def of(self, party: str, epoch: int) -> Lock:
        """What boxes for a party are sealed to at an epoch."""
        context = sealing_context(party, self.deployment, self.fingerprint, epoch)
        return Lock(self.sealed.public_key(party, epoch), context)

    def of_batch(self, role: Role, epoch: int) -> Lock:
        """What batches in a topic of raw reports are sealed to, of a job that seals them."""
        return self.of(stage_party(self.report_roles.index(role)), epoch)

    def after(self, role: Role, epoch: int) -> list[Lock]:
        """What reports are sealed to in a topic, the innermost box first."""
        return [self.of(party, epoch) for party in reversed(self.parties_after(role))]

    def parties_after(self, role: Role) -> list[str]:
        """Who opens a box of a report on its way from a topic on, in the order of the way."""
        if role in self.report_roles:
            passed = 0
        else:
            passed = [Role.REPORTS, *self.hops, Role.SHUFFLED].index(role)
        later = range(max(1, passed), len(self.hops) + 1)
        return [*map(stage_party, later), AGGREGATE]
