"""How ``dpstream audit`` tells what it has found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dpstream.pipeline.audit.audits import FALSE_ALARM, Audit
from dpstream.pipeline.audit.findings import Finding, Verdict
from dpstream.pipeline.cli.output import plural, say, say_table

_ROWS_SHOWN = 40


def show_audit(found: Audit) -> None:
    """A table of all attacks, why anything was convicted, and what the verdicts rest on."""
    rows = found.findings
    if len(rows) > _ROWS_SHOWN:
        rows = tuple(_strongest(rows))
    say_table(
        ["subject", "attack", ">claimed", ">observed", "verdict", "looked at"],
        (_row(finding) for finding in rows),
    )
    say()
    for finding in found.findings:
        if finding.convicted:
            say(f"CONVICTED: {finding.subject}, {finding.attack}: {finding.reason}", "bold red")
    if not found.convicted:
        say(f"{plural(len(found.findings), 'attack')}: nothing speaks against what is claimed")
    if len(rows) < len(found.findings):
        say("shown is what comes nearest to the claim, by protocol and attack; --json has all")
    say(
        "claimed and observed: epsilon (delta). exact: all that can be seen was enumerated. "
        "consistent: observed is a lower bound, with confidence, from samples, and below the claim"
    )
    say(
        f"a correct program is convicted with a probability of at most {found.false_alarm:.2g}: "
        f"{FALSE_ALARM:g}, divided evenly among the {plural(found.drawn, 'finding')} that rest on "
        "draws, and by each among its comparisons"
    )


def _strongest(findings: Sequence[Finding]) -> Iterable[Finding]:
    found: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = finding.subject.rpartition("-")[0] or finding.subject, finding.attack
        if key not in found or _strength(finding) > _strength(found[key]):
            found[key] = finding
    return found.values()


def _strength(finding: Finding) -> tuple[bool, float]:
    if finding.claimed is None or finding.observed is None:
        return finding.convicted, 0.0
    return finding.convicted, finding.observed / max(finding.claimed, 1e-12)


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.subject,
        finding.attack,
        _epsilon(finding.claimed, finding.delta, exact=True),
        _epsilon(finding.observed, finding.delta, exact=finding.verdict is Verdict.EXACT),
        finding.verdict.value,
        finding.what,
    )


def _epsilon(epsilon: float | None, delta: float, *, exact: bool = True) -> str:
    if epsilon is None:
        return "-"
    size = "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"
    also = f" ({delta:g})" if delta else ""
    return f"{'' if exact else '>= '}{size}{also}"
