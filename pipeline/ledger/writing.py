"""Decide which entry to write to the ledger next, and check that the written entry is valid.

A writer reads to the end, appends one entry, and reads again. A writer that has lost a race, or
restarts after an interruption, therefore writes the missing entries, and no entry twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeAlias

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge, check_budget
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.ledger.entries import Draft, EntryKind
from dpstream.pipeline.ledger.spending import Spending

# Number of races that no writer ever loses in a row.
_ATTEMPTS = 1000
# Maximum number of charges, and of budgets, in one record.
_CARRIED_AT_ONCE = 500

DraftEntry: TypeAlias = Callable[[Spending], Draft | None]
Writing: TypeAlias = Generator[bytes | None, Spending, Spending]


class LedgerError(DpstreamError):
    pass


def writing(draft_entry: DraftEntry, nonce: Callable[[], str], software: str) -> Writing:
    """Write entries until none are missing.

    Yields None to receive the state at the ends of both topics, or a record to append.
    `draft_entry` returns the next entry or None. `nonce` returns a new random string at each call.
    Returns the final state. Raises LedgerError if the ledger is damaged, or if other writers win
    every race.
    """
    for _ in range(_ATTEMPTS):
        state = yield None
        draft = draft_entry(state)
        if draft is None:
            return state
        if draft.kind != EntryKind.REOPENED and (draft.charges or draft.budgets):
            rejection = reject_damaged(state)
            if rejection is not None:
                raise rejection
        yield draft.under(state.chain.head, nonce=nonce(), software=software)
    raise LedgerError("concurrent writes to dpstream.ledger prevented this write: try again later")


def reject_damaged(state: Spending) -> LedgerError | None:
    damage = state.damage
    if damage is None:
        return None
    return LedgerError(
        f"dpstream.ledger is damaged ({damage}), so no charge was written and no budget was set. "
        "To find the damage: 'dpstream ledger --verify'. Restore the topic, or continue without "
        "the lost records: 'dpstream ledger --accept-loss REASON'"
    )


def carried_over(state: Spending, now: int) -> Draft | None:
    """Return an entry that restores lost data from the copy in ``dpstream.jobs``, or None."""
    charges = tuple(state.lost_charges[:_CARRIED_AT_ONCE])
    budgets = tuple(state.lost_budgets[:_CARRIED_AT_ONCE])
    if not charges and not budgets:
        return None
    return Draft(EntryKind.CARRIED, now, charges, budgets, {"from": "dpstream.jobs"})


def of_deployment(
    job: DeployedJob,
    declared: Sequence[BudgetDeclaration],
    now: int,
    *,
    charged: bool = True,
    replaces: str | None = None,
) -> DraftEntry:
    """Return a deployment's entries: an operator's budget, then the charge and the job's budget.

    The charge and the job's budget form one entry, which is not written if the deployment would
    exceed the population's budget. `declared` are newly declared budgets. `charged` is True if the
    charge is new or changed. `replaces` is the ID of the replaced deployment, in hexadecimal.
    """
    charge = Charge.of(job)
    facts = facts_of(job) | ({} if replaces is None else {"replaces": replaces})

    def draft_entry(state: Spending) -> Draft | None:
        known = state.written_budgets
        missing = [each for each in declared if each.key not in known]
        own = tuple(each for each in missing if not each.operator)
        due = charged and state.written_charges.get(charge.deployment) != charge
        if not missing and not due:
            return None
        carried = carried_over(state, now)
        if carried is not None:
            return carried
        for each in missing:
            if each.operator:
                return Draft(EntryKind.BUDGET, now, (), (each,), {"job": job.name})
        check_budget(job, others(job, state.charges), [*state.declared, *own])
        if due:
            return Draft(EntryKind.CHARGE, now, (charge,), own, facts)
        return Draft(EntryKind.BUDGET, now, (), own, {"job": job.name})

    return draft_entry


def of_charge(job: DeployedJob, now: int) -> DraftEntry:
    charge = Charge.of(job)

    def draft_entry(state: Spending) -> Draft | None:
        if state.written_charges.get(charge.deployment) == charge:
            return None
        return Draft(EntryKind.CHARGE, now, (charge,), (), facts_of(job))

    return draft_entry


def of_budget(budget: BudgetDeclaration, now: int) -> DraftEntry:
    def draft_entry(state: Spending) -> Draft | None:
        if budget.key in state.written_budgets:
            return None
        return carried_over(state, now) or Draft(EntryKind.BUDGET, now, (), (budget,))

    return draft_entry


def of_end(job: DeployedJob, now: int) -> DraftEntry:
    return _once(EntryKind.ENDED, job, now)


def of_replay(job: DeployedJob, now: int) -> DraftEntry:
    assert job.replay_of is not None
    return _once(EntryKind.REPLAY, job, now, replay_of=job.replay_of.deployment.hex())


def _once(kind: EntryKind, job: DeployedJob, now: int, **more: str) -> DraftEntry:
    facts = {"job": job.name, "deployment": job.deployment.hex(), **more}

    def draft_entry(state: Spending) -> Draft | None:
        drafts = (entry.draft for entry in state.chain.entries if entry.draft.kind == kind)
        if any(each.facts.get("deployment") == facts["deployment"] for each in drafts):
            return None
        return Draft(kind, now, facts=facts)

    return draft_entry


def of_reopening(reason: str, now: int) -> DraftEntry:
    """Return the entries by which an operator accepts the loss of entries and restores charges."""

    def draft_entry(state: Spending) -> Draft | None:
        if state.damage is not None:
            lost = sorted(receipt.entry for receipt in state.lost)
            return Draft(EntryKind.REOPENED, now, facts={"reason": reason, "without": lost})
        return carried_over(state, now)

    return draft_entry


def others(job: DeployedJob, charges: Iterable[Charge]) -> list[Charge]:
    return [charge for charge in charges if charge.deployment != job.deployment.hex()]


def facts_of(job: DeployedJob) -> dict[str, Any]:
    guarantee = job.guarantee
    return {
        "job": job.name,
        "protocol": job.protocol,
        "fingerprint": job.fingerprint.hex(),
        "epochs": job.epochs.count,
        "guarantee": guarantee.to_json(),
    }
