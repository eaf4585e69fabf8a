"""What vouches for a stage beside its own word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.operations.stage_verification.evidence import Evidence
from pipeline.operations.stage_verification.findings import Finding, Violation, in_order
from pipeline.printable import error_line
from topics.signed import Attested, Signed, StageRecord, binding_of


@dataclass(frozen=True, slots=True)
class Scheme:
    """By which documents are verified.

    Attributes:
        name: as stages state it.
        verify: from a document and what it has to be about, what it shows; raises where it is not
            to be believed.
    """

    name: str
    verify: Callable[[bytes, bytes], str]


def attestation(evidence: Evidence, scheme: Scheme | None) -> Finding:
    """Every start of a stage is vouched for, with its key and the software that it states.

    Args:
        evidence: to look at.
        scheme: None: documents are not looked at.
    """
    promise = "something else than its word vouches for every start of a stage: key and software"
    if scheme is None:
        missing = (
            "what vouches for a stage beside its own word: where stages run with --attestation "
            "NAME, give the same with a package that knows their machines"
        )
        return Finding("attestation", promise, 0, missing=missing)
    violations, shown, checked = [], Counter[str](), 0
    for signed, record, documents in _starts(evidence):
        checked += 1
        who = f"{record.stage}/{record.worker} ({signed.signer.hex()[:8]})"
        binding = binding_of(record, signed.signer)
        own = [each.document for each in documents if each.scheme == scheme.name]
        if not own:
            violations.append(Violation(None, f"nothing vouches for a start of {who}"))
            continue
        try:
            shown[scheme.verify(own[0], binding)] += 1
        except Exception as error:
            violations.append(
                Violation(None, f"{scheme.name} does not vouch for {who}: {error_line(error)}")
            )
    return Finding(
        "attestation",
        promise,
        checked,
        "starts",
        in_order(violations),
        f"what {scheme.name} does not measure; that whoever makes its machines can be trusted, and "
        "that nobody has broken one; that what was started keeps nothing and tells nobody",
        tuple(f"{what}: {count} started" for what, count in shown.items()),
    )


def _starts(evidence: Evidence) -> Iterator[tuple[Signed, StageRecord, list[Attested]]]:
    """Every start, with what the same key said to vouch for it, before the next start."""
    open_: dict[tuple[str, str, bytes], tuple[Signed, StageRecord, list[Attested]]] = {}
    found = []
    for each in evidence.statements:
        if each.signed is None:
            continue
        said = each.signed.statement
        who = said.stage, said.worker, each.signed.signer
        if isinstance(said, StageRecord):
            open_[who] = each.signed, said, []
            found.append(open_[who])
        elif isinstance(said, Attested) and who in open_:
            open_[who][2].append(said)
    yield from found
