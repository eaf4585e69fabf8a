"""What released windows hold: in which order, how much, and the same however often written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.operations.stage_verification.evidence import Attempt, Evidence
from pipeline.operations.stage_verification.findings import Finding, Violation, in_order
from pipeline.operations.stage_verification.signatures import of_kind
from pipeline.stages.signed_stage import WINDOW_ROLES
from topics.manifests import Fate
from topics.names import Role
from topics.signed import Released


def order(evidence: Evidence) -> Finding:
    """Words stand in canonical order, which says nothing but which words there are."""
    promise = "words of a window stand in canonical order, which says nothing of who sent which"
    windows = [each for each in _windows(evidence) if each.complete]
    if evidence.job.shuffle.order == "random":
        missing = (
            "order: random was asked for, and nobody can tell a random order from one that says "
            "something: order: sorted can be verified"
        )
        wrong = [each for each in windows if each.disorder.startswith("its words are none")]
        checked = 0
    else:
        missing, wrong, checked = "", [each for each in windows if each.disorder], len(windows)
    return Finding(
        "order",
        promise,
        checked,
        violations=in_order(_of(each, each.disorder) for each in wrong),
        missing=missing,
    )


def amount(evidence: Evidence) -> Finding:
    """A window holds no more words than its contributors and the law allow for."""
    job = evidence.job
    violations, checked = list[Violation](), 0
    for epoch, parts in _by_epoch(evidence, job.decided_role).items():
        held = evidence.decisions.get(epoch)
        if held is None or len(parts) < job.window_parts:
            continue
        limits = _limits(job, epoch, held[0].manifest.contributors)
        if limits is None:
            continue
        checked += 1
        messages = sum(each.messages for each in parts)
        if not limits[0] <= messages <= limits[1]:
            violations.append(
                Violation(
                    epoch,
                    f"{messages:,} words of {held[0].manifest.contributors:,} contributors, the "
                    f"law has {_between(*limits)}",
                )
            )
    passed = list(_passed_on(evidence))
    violations += [each for each in passed if each is not None]
    return Finding(
        "amount",
        "a window holds as many words as its contributors and the law allow for",
        checked + len(passed),
        violations=in_order(violations),
        missing="" if checked + len(passed) else _missing_amount(job),
    )


def attempts(evidence: Evidence) -> Finding:
    """However often a window was written, it is the same."""
    found: defaultdict[tuple[str, int, int], dict[bytes, bytes]] = defaultdict(dict)
    for attempt in evidence.attempts:
        if attempt.complete:
            place = attempt.role.value, attempt.epoch, attempt.instance
            found[place][attempt.attempt] = attempt.multiset
    if evidence.job.shuffle.order == "sorted":
        # Of what was deleted, what was signed is still there.
        for _, released in of_kind(evidence, Released):
            place = released.role, released.epoch, released.instance
            found[place].setdefault(released.attempt, released.contents)
    violations = (
        Violation(epoch, f"{role}: {len(held)} writings, and {len(set(held.values()))} contents")
        for (role, epoch, _), held in found.items()
        if len(set(held.values())) > 1
    )
    return Finding(
        "attempts",
        "a window that was written more than once is the same every time: its noise too",
        len(found),
        violations=in_order(violations),
    )


def _windows(evidence: Evidence) -> Iterator[Attempt]:
    return (each for each in evidence.attempts if each.role in WINDOW_ROLES)


def _of(attempt: Attempt, why: str) -> Violation:
    return Violation(attempt.epoch, f"{attempt.role.value}: {why}")


def _by_epoch(evidence: Evidence, role: Role) -> dict[int, list[Attempt]]:
    found: defaultdict[int, list[Attempt]] = defaultdict(list)
    for (epoch, _), attempt in evidence.released(role).items():
        found[epoch].append(attempt)
    return found


def _limits(job: DeployedJob, epoch: int, contributors: int) -> tuple[int, int] | None:
    """The fewest and the most words of a window before noise of the stage; None: not known."""
    protocol, law = job.protocol_entry, job.law()
    if job.stage_sum is not None:
        return 1, 1
    if job.sealed is not None or job.stage_dummies is not None:
        # Boxes may be padding; of words that the stage adds to, `noise` says more.
        return None
    most = most_words(job, epoch, contributors)
    if most is None:
        return None
    # Of a device that reports for itself, what the protocol does not have is left out.
    exactly = (
        protocol.one_message is not None and protocol.crowds(law) is None and job.devices is None
    )
    return (contributors if exactly else 0), most


def most_words(job: DeployedJob, epoch: int, contributors: int) -> int | None:
    """The most words that so many devices send together; None where that is not known."""
    protocol = job.protocol_entry
    if job.devices is not None:
        return contributors * job.content_form.slots
    if protocol.capacity is not None:
        return protocol.capacity(job.law(), job.local_epoch(epoch), contributors)
    return contributors if protocol.one_message is not None else None


def _passed_on(evidence: Evidence) -> Iterator[Violation | None]:
    """Stages in series that pass on more boxes than they were given; None: this one does not."""
    job = evidence.job
    roles = [*job.hops, Role.SHUFFLED]
    for given, passed in pairwise(roles):
        before = evidence.released(given)
        for place, after in evidence.released(passed).items():
            if place in before:
                rows = before[place].rows
                why = f"{passed.value} holds {after.rows:,} boxes, {given.value} {rows:,}"
                yield Violation(after.epoch, why) if after.rows > rows else None


def _between(fewest: int, most: int) -> str:
    return f"exactly {most:,}" if fewest == most else f"{fewest:,} to {most:,}"


def _missing_amount(job: DeployedJob) -> str:
    if job.sealed is not None:
        return "how many reports there are: boxes may be padding, which the aggregate stage drops"
    if job.stage_dummies is not None:
        return "how many words there are beside the stage's noise: see noise"
    return "how many words there have to be: that follows from what devices drew at enrolment"


def undecided(evidence: Evidence) -> int:
    """Released epochs of which no words are there: not written yet, or deleted."""
    held = {attempt.epoch for attempt in evidence.attempts if attempt.complete}
    return sum(
        decision.manifest.fate is Fate.RELEASED and epoch not in held
        for epoch, (decision, _) in evidence.decisions.items()
    )
