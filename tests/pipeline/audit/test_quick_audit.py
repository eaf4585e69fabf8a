"""``dpstream audit --quick`` of what is installed, protocol by protocol.

Mutations of the code run these tests too: they convict by what the audit finds.
"""

from __future__ import annotations

import pytest

from pipeline.audit.audits import FALSE_ALARM, Attack, run_attacks
from pipeline.audit.drawn.attacks import attacks_on_draws
from pipeline.audit.plans import (
    QUICK,
    attacks_around_devices,
    attacks_in_common,
    attacks_on_protocol,
)
from pipeline.audit.recomputed.attacks import attacks_on_accounting
from pipeline.audit.stage_attacks import attacks_on_stages
from pipeline.protocols.registry import PROTOCOLS

ON_STAGES = {attack.name: attack for attack in attacks_on_stages(quick=True)}
AROUND_DEVICES = {
    "collected reports",
    "device clients",
    "interruptions",
    "kept files",
    "presence",
    "sizes",
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_audit_acquits_the_installed_protocol(name: str) -> None:
    attacks = attacks_on_protocol(name, QUICK)
    assert {"likelihood ratios", "side channels", "randomness"} <= {each.name for each in attacks}
    assert_acquitted(attacks)


def test_an_audit_acquits_what_protocols_have_in_common() -> None:
    assert_acquitted(attacks_in_common(QUICK))


@pytest.mark.parametrize("name", sorted(AROUND_DEVICES))
def test_an_audit_acquits_what_stands_around_devices(name: str) -> None:
    """One by one: a mutation that makes one of them stumble convicts nobody by that."""
    attacks = attacks_around_devices(QUICK)
    assert {attack.name for attack in attacks} == AROUND_DEVICES
    assert_acquitted([attack for attack in attacks if attack.name == name])


@pytest.mark.parametrize("name", ON_STAGES)
def test_an_audit_acquits_stages_budgets_and_ledger(name: str) -> None:
    """One by one, as well."""
    assert_acquitted([ON_STAGES[name]])


@pytest.mark.parametrize("attack", attacks_on_accounting(), ids=lambda attack: attack.name)
def test_an_audit_acquits_the_accounting(attack: Attack) -> None:
    assert_acquitted([attack])


@pytest.mark.parametrize("attack", attacks_on_draws(), ids=lambda attack: attack.name)
def test_an_audit_acquits_what_is_drawn_and_kept(attack: Attack) -> None:
    assert_acquitted([attack])


def assert_acquitted(attacks: list[Attack]) -> None:
    audit = run_attacks(attacks)
    assert [finding for finding in audit.findings if finding.convicted] == []
    assert audit.false_alarm <= FALSE_ALARM * (1 + 1e-9)
