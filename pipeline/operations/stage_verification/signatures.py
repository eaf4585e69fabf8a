"""Whose word it is: every manifest and every window is signed, by who said what it runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pipeline.jobs.sealed import SHARERS, instance_name, shuffle_stage_name
from pipeline.operations.stage_verification.evidence import (
    Attempt,
    Evidence,
    ManifestRecord,
    PartRecord,
)
from pipeline.operations.stage_verification.findings import Finding, Violation, in_order
from topics.names import HOPS, SUMS, Role
from topics.signed import Decided, Released, Signed, Software, StageRecord

Kind = TypeVar("Kind", StageRecord, Decided, Released)

_NO_TOPIC = (
    "whose word it is: this deployment was made before stages signed what they do, and has no "
    "topic for it; deploy the job anew"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the verifier knows of a stage that is as it should be.

    Attributes:
        version: of the product; None: any.
        software: of a wheel that the verifier has; None: any.
    """

    version: str | None = None
    software: Software | None = None


def signatures(evidence: Evidence, pinned: Collection[bytes]) -> Finding:
    """Every manifest and window carries the word of a worker that has said who it is.

    Args:
        evidence: to look at.
        pinned: public keys that stages may sign with; empty: each worker's first one is believed.
    """
    promise = "every manifest and window is signed by a stage that said what it runs"
    if not evidence.signs:
        return Finding("signatures", promise, 0, missing=_NO_TOPIC)
    violations = [
        Violation(None, f"record {each.offset} of the stages' topic: {each.problem}")
        for each in evidence.statements
        if each.signed is None
    ]
    violations += _wrong_keys(evidence, pinned)
    violations += _unintroduced(evidence)
    violations += _unsigned_manifests(evidence)
    violations += _unsigned_windows(evidence)
    missing = ""
    if not pinned:
        missing = (
            "that these are the operators' own keys: the first key of every worker was believed; "
            "state shuffle.signers in the job file, or give --signer KEY"
        )
    return Finding(
        "signatures",
        promise,
        len(evidence.manifests) + sum(each.complete for each in evidence.attempts),
        "manifests and windows",
        in_order(violations),
        missing,
        tuple(f"{stage} signs with {key.hex()}" for stage, key in sorted(_keys(evidence))),
    )


def software(evidence: Evidence, expected: Expected) -> Finding:
    """Every worker says that it runs the build that the verifier expects."""
    promise = "every stage says that it runs the software that is expected"
    records = list(of_kind(evidence, StageRecord))
    builds = Counter(
        (record.software["dpstream"], record.python)
        for _, record in records
        if "dpstream" in record.software
    )
    notes = tuple(
        f"dpstream {product.version} ({product.form} {product.digest.hex()}) on Python {python}: "
        f"{count} started"
        for (product, python), count in builds.items()
    )
    missing = (
        "that a stage runs what it says: who alters its software can have it say another digest; "
        "see attestation"
    )
    if expected == Expected():
        missing = f"which build is the right one: give --wheel FILE or --expect-version; {missing}"
        return Finding("software", promise, 0, "starts", (), missing, notes)
    violations = []
    for signed, record in records:
        product = record.software.get("dpstream")
        who = f"{record.stage}/{record.worker} ({signed.signer.hex()[:8]})"
        if product is None:
            violations.append(Violation(None, f"{who} does not say which dpstream it runs"))
        elif expected.version not in (None, product.version):
            violations.append(
                Violation(None, f"{who} runs dpstream {product.version}, not {expected.version}")
            )
        elif expected.software is not None and expected.software != product:
            violations.append(
                Violation(
                    None,
                    f"{who} runs {product.form} {product.digest.hex()[:16]}, the wheel is "
                    f"{expected.software.digest.hex()[:16]}",
                )
            )
    return Finding(
        "software", promise, len(records), "starts", in_order(violations), missing, notes
    )


def noise_commitment(evidence: Evidence) -> Finding:
    """Every shuffle worker holds the noise key that the job was deployed with."""
    promise = "every shuffle worker holds the noise key that the job was deployed with"
    job = evidence.job
    if not job.needs_noise_key:
        return Finding("noise key", "the stage draws nothing at random: there is no noise key", 0)
    records = [
        (signed, record)
        for signed, record in of_kind(evidence, StageRecord)
        if record.stage == shuffle_stage_name(0)
    ]
    violations = [
        Violation(
            None,
            f"{record.stage}/{record.worker} ({signed.signer.hex()[:8]}) holds "
            f"{'none' if record.noise_key is None else record.noise_key.hex()[:8]}, the job's "
            f"begins with {'' if job.noise_key is None else job.noise_key.hex()[:8]}",
        )
        for signed, record in records
        if record.noise_key != job.noise_key
    ]
    missing = "" if evidence.signs else _NO_TOPIC
    return Finding("noise key", promise, len(records), "starts", in_order(violations), missing)


def of_kind(evidence: Evidence, kind: type[Kind]) -> Iterator[tuple[Signed, Kind]]:
    """The statements of a kind, each with its signer, in the order of the log."""
    for each in evidence.statements:
        if each.signed is not None and isinstance(each.signed.statement, kind):
            yield each.signed, each.signed.statement


def _signed(evidence: Evidence) -> Iterator[Signed]:
    for each in evidence.statements:
        if each.signed is not None:
            yield each.signed


def _keys(evidence: Evidence) -> set[tuple[str, bytes]]:
    return {(each.statement.stage, each.signer) for each in _signed(evidence)}


def _wrong_keys(evidence: Evidence, pinned: Collection[bytes]) -> Iterator[Violation]:
    first: dict[tuple[str, str], bytes] = {}
    for signed in _signed(evidence):
        said = signed.statement
        who = f"{said.stage}/{said.worker}"
        epoch = said.epoch if isinstance(said, Decided | Released) else None
        if pinned and signed.signer not in pinned:
            why = f"{who} signs with {signed.signer.hex()}, which is none of the keys to expect"
            yield Violation(epoch, why)
        known = first.setdefault((said.stage, said.worker), signed.signer)
        if not pinned and known != signed.signer:
            why = f"{who} signs with {signed.signer.hex()}, and did with {known.hex()} before"
            yield Violation(epoch, why)


def _unintroduced(evidence: Evidence) -> Iterator[Violation]:
    """Who signs without having said before what it runs."""
    introduced: set[tuple[str, str, bytes]] = set()
    for signed in _signed(evidence):
        said = signed.statement
        who = said.stage, said.worker, signed.signer
        if isinstance(said, StageRecord):
            introduced.add(who)
        elif who not in introduced:
            why = f"{said.stage}/{said.worker} signs, and has not said what software it runs"
            yield Violation(said.epoch if isinstance(said, Decided | Released) else None, why)


def _unsigned_manifests(evidence: Evidence) -> Iterator[Violation]:
    said: defaultdict[bytes, set[tuple[str, int, int]]] = defaultdict(set)
    for _, decided in of_kind(evidence, Decided):
        said[decided.manifest].add((decided.stage, decided.epoch, decided.instance))
    written: list[ManifestRecord | PartRecord] = [*evidence.manifests, *evidence.parts]
    for each in written:
        manifest = each.manifest if isinstance(each, ManifestRecord) else each.part
        wanted = _decider(evidence, manifest.instance), manifest.epoch, manifest.instance
        if wanted not in said[each.digest]:
            why = f"no {wanted[0]} stage has signed the manifest at offset {each.offset}"
            yield Violation(manifest.epoch, why)


def _unsigned_windows(evidence: Evidence) -> Iterator[Violation]:
    said: Mapping[tuple[str, bytes], list[Released]] = defaultdict(list)
    for _, released in of_kind(evidence, Released):
        said[released.role, released.attempt].append(released)
    writings: defaultdict[tuple[Role, int, int], list[Attempt]] = defaultdict(list)
    for attempt in evidence.attempts:
        writings[attempt.role, attempt.epoch, attempt.instance].append(attempt)
    for (role, epoch, instance), attempts in writings.items():
        for attempt in attempts:
            name = f"{role.value} attempt {attempt.attempt.hex()[:8]}"
            words = said[role.value, attempt.attempt]
            for word in words:
                wanted = _writer(evidence, role, instance)
                if word.stage != wanted:
                    yield Violation(epoch, f"{name} is signed by {word.stage}, not by {wanted}")
                if not attempt.complete:
                    continue
                if word.contents != attempt.contents or word.chunks != attempt.total:
                    yield Violation(epoch, f"{name} holds other words than its writer has signed")
                if word.manifest_offset != attempt.manifest_offset or word.epoch != epoch:
                    yield Violation(epoch, f"{name} names another manifest than its writer")
            if not words:
                yield Violation(epoch, f"no stage has signed {name}")


def _decider(evidence: Evidence, part: int) -> str:
    """The stage that says what a part of a window is: lanes are all of the first one."""
    return instance_name(1 if evidence.job.lanes > 1 else part)


def _writer(evidence: Evidence, role: Role, instance: int) -> str:
    """The stage that writes a topic."""
    if role in SUMS:
        return SHARERS[SUMS.index(role)]
    if role is evidence.job.decided_role:
        return _decider(evidence, instance)
    hops = evidence.job.hops
    return shuffle_stage_name(len(hops) if role is Role.SHUFFLED else HOPS.index(role))
