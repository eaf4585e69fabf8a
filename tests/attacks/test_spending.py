"""Test that attacks on budgets and the ledger find broken guarantees, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from dpstream.pipeline.jobs import budgets
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.ledger.chain import Chain, ChainProblem
from dpstream.pipeline.ledger.spending import Spending
from tests.attacks.ledger_edits import attack_ledger
from tests.attacks.spending import attack_spending
from tests.support.thinned import thinned

Patch = pytest.MonkeyPatch
Attacking = Callable[[], Iterator[str]]

ATTACKS: Mapping[str, Attacking] = {"spending": attack_spending, "ledger": attack_ledger}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_finds_no_violation(name: str) -> None:
    assert list(ATTACKS[name]()) == []


def redeployments_for_nothing(patch: Patch) -> None:
    patch.setattr(
        budgets,
        "_of_the_same_users",
        lambda charge, charges: [other for other in charges if other.job != charge.job],
    )


def delta_for_nothing(patch: Patch) -> None:
    of = Charge.of
    patch.setattr(Charge, "of", lambda job: replace(of(job), delta=0.0))


def epochs_for_one(patch: Patch) -> None:
    of = Charge.of
    patch.setattr(Charge, "of", lambda job: replace(of(job), epsilon=job.guarantee.epsilon))


def undeployed_is_dropped(patch: Patch) -> None:
    def left(state: Spending) -> list[Charge]:
        charges = state.written_charges.values()
        return [each for each in charges if each.job in state.topic.jobs]

    patch.setattr(Spending, "charges", property(left))


def constants_unread(patch: Patch) -> None:
    patch.setattr(DeployedJob, "_check_constants", lambda job: None)


def edits_unnoticed(patch: Patch) -> None:
    note = Chain._note

    def lenient(chain: Chain, problem: ChainProblem, *where: Any) -> None:
        if problem is not ChainProblem.UNCHAINED:
            note(chain, problem, *where)

    patch.setattr(Chain, "_note", lenient)


def cuts_unnoticed(patch: Patch) -> None:
    apply = Chain.apply

    def renumbering(chain: Chain, offset: int, value: bytes, *more: Any, **also: Any) -> None:
        apply(chain, len(chain.places), value, *more, **also)

    patch.setattr(Chain, "apply", renumbering)
    patch.setattr("dpstream.pipeline.ledger.verification._cut_in_front", lambda *cut: iter(()))


@pytest.mark.parametrize(
    ("attacking", "broken", "reason"),
    thinned(
        [
            (attack_spending, redeployments_for_nothing, "users lose epsilon 24"),
            (attack_spending, delta_for_nothing, "users lose delta 5e-06"),
            (attack_spending, epochs_for_one, "users lose epsilon 20"),
            (attack_spending, undeployed_is_dropped, "users lose epsilon 20"),
            (attack_spending, constants_unread, "loses 1.01 times what its parameters allow"),
            (attack_ledger, edits_unnoticed, "undetected: "),
            (attack_ledger, cuts_unnoticed, "charges no longer count"),
        ],
        2,
    ),
)
def test_broken_guarantee_is_detected(
    attacking: Attacking, broken: Callable[[Patch], None], reason: str, monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    assert reason in next(attacking(), "")
