"""How ``dpstream audit`` tells what it has found."""

from __future__ import annotations

import math

from pipeline.audit.audits import FALSE_ALARM, Audit
from pipeline.audit.findings import Finding
from pipeline.cli.output import plural, say, say_table


def show_audit(found: Audit) -> None:
    """A table of all attacks, why anything was convicted, and what the verdicts rest on."""
    say_table(
        ["subject", "attack", ">claimed", ">observed", "verdict", "looked at"],
        (_row(finding) for finding in found.findings),
    )
    say()
    for finding in found.findings:
        if finding.convicted:
            say(f"CONVICTED: {finding.subject}, {finding.attack}: {finding.reason}", "bold red")
    if not found.convicted:
        say(f"{plural(len(found.findings), 'attack')}: nothing speaks against what is claimed")
    say(
        f"exact: all that can be seen was enumerated. A correct program is convicted with a "
        f"probability of at most {found.false_alarm:.2g} in all: {FALSE_ALARM:g} is divided evenly "
        f"among the {plural(found.drawn, 'attack')} that draw, and by each among its comparisons"
    )


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.subject,
        finding.attack,
        _epsilon(finding.claimed, finding.delta),
        _epsilon(finding.observed, finding.delta),
        finding.verdict.value,
        finding.what,
    )


def _epsilon(epsilon: float | None, delta: float) -> str:
    if epsilon is None:
        return "-"
    size = "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"
    return f"{size} ({delta:g})" if delta else size
