"""Run ``dpstream audit --quick`` on the installed code, protocol by protocol.

`tests.mutations` runs these tests too: the audit must detect mutations.
"""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.audit.audits import FALSE_ALARM, Attack, Audit, run_attacks
from dpstream.pipeline.audit.plans import QUICK, attacks_on_accounting, attacks_on_protocol
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.protocols.registry import PROTOCOLS


@pytest.mark.parametrize("name", PROTOCOLS)
def test_installed_protocol_passes_the_audit(name: str) -> None:
    audit = run_passing(attacks_on_protocol(name, QUICK))
    found = {finding.attack: finding for finding in audit.findings}
    assert "likelihood ratios" in found
    # Devices that run at once are compared by their whole histories.
    (case, *_) = find_cases(name)
    if case.protocol.shuffling is None:
        devices = case.protocol.randomizer(case.law)
        devices.enroll(1, np.random.default_rng(1))
        alone = case.last_epoch == 1 or devices.due(1) is not None
        assert ("whole histories" in found["draws compared with the mechanism"].what) == alone


def test_quick_audit_enumerates_noisy_sums_from_the_shuffler() -> None:
    (summed,) = (
        case
        for case in find_cases("shuffled_counts")
        if case.protocol.stage_sum(case.law) is not None
    )
    enumerated = {
        attack.subject
        for attack in attacks_on_protocol("shuffled_counts", QUICK)
        if attack.name == "likelihood ratios"
    }
    assert str(summed) in enumerated


@pytest.mark.parametrize("attack", attacks_on_accounting(), ids=lambda attack: attack.name)
def test_installed_accounting_passes_the_audit(attack: Attack) -> None:
    run_passing([attack])


def run_passing(attacks: list[Attack]) -> Audit:
    audit = run_attacks(attacks)
    assert [finding for finding in audit.findings if finding.failed] == []
    assert audit.false_alarm <= FALSE_ALARM * (1 + 1e-9)
    return audit
