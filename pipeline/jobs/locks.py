"""Public keys to which reports and batches are sealed on their way to the aggregator."""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.pipeline.jobs.routes import Route, stage_party
from dpstream.pipeline.jobs.sealed import AGGREGATE, Sealed
from dpstream.topics.names import Role
from dpstream.topics.sealing import Lock, sealing_context


@dataclass(frozen=True, slots=True)
class Locks:
    """Locks of the parties that decrypt ciphertexts. A lock is a public key with its context.

    `deployment` is the windows' deployment: for a replay, that of the original job.
    """

    sealed: Sealed
    deployment: bytes
    fingerprint: bytes
    route: Route

    def of(self, party: str, epoch: int) -> Lock:
        context = sealing_context(party, self.deployment, self.fingerprint, epoch)
        return Lock(self.sealed.public_key(party, epoch), context)

    def of_batch(self, role: Role, epoch: int) -> Lock:
        return self.of(stage_party(self.route.reports.index(role)), epoch)

    def after(self, role: Role, epoch: int) -> list[Lock]:
        return [self.of(party, epoch) for party in reversed(self.parties_after(role))]

    def parties_after(self, role: Role) -> list[str]:
        return [*map(stage_party, self.route.later_shufflers(role)), AGGREGATE]
