"""Which windows there are: under which decision, how large, and when they were decided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.actions import LogRecord
from pipeline.jobs.epoch_times import TOLERANCE_MS, EpochTimes, times_of
from pipeline.operations.stage_verification.evidence import Evidence, ManifestRecord
from pipeline.operations.stage_verification.findings import Finding, Violation, in_order
from pipeline.operations.stage_verification.signatures import of_kind
from pipeline.stages.decision_log import DecisionLog
from topics.manifests import Fate, Manifest, encode_manifest
from topics.names import SUMS
from topics.signed import Released


def membership(evidence: Evidence) -> Finding:
    """All that is written of a window is written under the first manifest of its epoch."""
    violations = [
        *_other_manifests(evidence),
        *_other_parts(evidence),
        *_without_manifest(evidence),
    ]
    return Finding(
        "membership",
        "a window is released under the first manifest of its epoch, and under no other",
        len({(each.role, each.epoch) for each in evidence.attempts}),
        violations=in_order(violations),
    )


def minimum(evidence: Evidence) -> Finding:
    """No window with too few contributors is released, and none is withheld that has enough."""
    least = evidence.job.shuffle.minimum
    violations = []
    for epoch, (decision, _) in evidence.decisions.items():
        manifest = decision.manifest
        enough = manifest.contributors >= least
        if enough != (manifest.fate is Fate.RELEASED):
            why = f"{manifest.contributors} contributors, {manifest.fate}: the minimum is {least}"
            violations.append(Violation(epoch, why))
    for attempt in evidence.attempts:
        held = evidence.decisions.get(attempt.epoch)
        if held is not None and held[0].manifest.fate is not Fate.RELEASED:
            why = f"it is {held[0].manifest.fate}, and {attempt.role.value} holds words of it"
            violations.append(Violation(attempt.epoch, why))
    return Finding(
        "minimum",
        f"windows are released with {least:,} contributors or more, and with fewer withheld",
        len(evidence.decisions),
        violations=in_order(violations),
        missing="that contributors are as many people: who invents devices is counted",
    )


def timing(evidence: Evidence) -> Finding:
    """No epoch is decided before its time, by the broker's clock."""
    promise = "no epoch is decided before its time, without those who are still to report"
    times = times_of(evidence.job)
    if times is None:
        missing = "when an epoch's time had come: the job file states no epochs.start and length"
        return Finding("timing", promise, 0, missing=missing)
    violations = list(_too_early(evidence, times))
    missing = ""
    if evidence.job.devices is not None:
        missing = (
            "whether collectors that were still to send were waited for: their last words lie "
            "among raw reports"
        )
    return Finding(
        "timing", promise, len(evidence.decisions), violations=in_order(violations), missing=missing
    )


def _other_manifests(evidence: Evidence) -> Iterator[Violation]:
    for attempt in evidence.attempts:
        held = evidence.decisions.get(attempt.epoch)
        if held is not None and attempt.manifest_offset != held[0].offset:
            yield Violation(
                attempt.epoch,
                f"{attempt.role.value} attempt {attempt.attempt.hex()[:8]} is under the manifest "
                f"at offset {attempt.manifest_offset}, the first one is at {held[0].offset}",
            )
    # What stages have signed is there when what they wrote has been deleted.
    for _, released in of_kind(evidence, Released):
        held = evidence.decisions.get(released.epoch)
        if held is not None and released.manifest_offset != held[0].offset:
            yield Violation(
                released.epoch,
                f"{released.stage} has signed a window under the manifest at offset "
                f"{released.manifest_offset}, the first one is at {held[0].offset}",
            )


def _other_parts(evidence: Evidence) -> Iterator[Violation]:
    """Instances that go on under another decision than the first instance's."""
    first: dict[tuple[int, int], Manifest] = {}
    for each in evidence.manifests:
        if each.manifest.instance > 1:
            first.setdefault((each.manifest.epoch, each.manifest.instance), each.manifest)
    for (epoch, instance), part in first.items():
        held = evidence.decisions.get(epoch)
        if held is None:
            yield Violation(epoch, f"instance {instance} has a part of a window nobody decided")
            continue
        decision = held[0].manifest
        own = replace(
            decision,
            instance=instance,
            first_offset=part.first_offset,
            cut_offset=part.cut_offset,
            timestamp=part.timestamp,
        )
        if own != part:
            yield Violation(epoch, f"the part of instance {instance} names other contributors")
    named: dict[tuple[int, int], int] = {}
    for record in evidence.parts:
        named.setdefault((record.part.epoch, record.part.instance), record.part.decision)
    for (epoch, instance), offset in named.items():
        held = evidence.decisions.get(epoch)
        if held is None:
            yield Violation(epoch, f"instance {instance} has a part of a window nobody decided")
        elif offset != held[0].offset:
            yield Violation(
                epoch,
                f"the part of instance {instance} is under the manifest at offset {offset}, the "
                f"first one is at {held[0].offset}",
            )


def _without_manifest(evidence: Evidence) -> Iterator[Violation]:
    for attempt in evidence.attempts:
        if attempt.role not in SUMS and attempt.epoch not in evidence.decisions:
            yield Violation(attempt.epoch, f"{attempt.role.value} holds words, and no manifest")


def _too_early(evidence: Evidence, times: EpochTimes) -> Iterator[Violation]:
    job = evidence.job
    # Who was missing for long is not waited for: as of then, or as of now, since a worker may have
    # known of fewer decisions than there were.
    logs = DecisionLog(job), DecisionLog(job)
    for record in evidence.manifests:
        logs[1].apply(_as_written(record))
    for record in evidence.manifests:
        epoch = record.manifest.epoch
        decided = evidence.decisions.get(epoch)
        if decided is not None and decided[1] is record and not _is_drained(evidence, record):
            early = times.refusal(epoch, record.timestamp)
            absent = _absent(evidence, record.manifest, logs)
            if early is not None:
                yield Violation(epoch, f"decided before it began: {early}")
            elif absent and not _was_over(evidence, times, record):
                yield Violation(epoch, f"decided without {absent}, and before its time was over")
        logs[0].apply(_as_written(record))


def _as_written(record: ManifestRecord) -> LogRecord:
    return LogRecord(record.offset, encode_manifest(record.manifest), record.timestamp)


def _is_drained(evidence: Evidence, record: ManifestRecord) -> bool:
    """Whether an operator had said before that what is there is to be decided."""
    drained = evidence.drains.get(evidence.job.partition_of(record.manifest.epoch))
    return drained is not None and drained <= record.timestamp


def _was_over(evidence: Evidence, times: EpochTimes, record: ManifestRecord) -> bool:
    """Whether an epoch had ended, and its grace was over; clocks may differ by a minute."""
    grace = 0 if evidence.job.devices is not None else int(1000 * evidence.job.shuffle.grace)
    return times.has_ended(record.manifest.epoch, record.timestamp - grace + TOLERANCE_MS)


def _absent(evidence: Evidence, manifest: Manifest, logs: tuple[DecisionLog, DecisionLog]) -> str:
    """Whom a decision did not wait for, in words; empty if for everybody who was expected."""
    job, epoch = evidence.job, manifest.epoch
    if job.devices is not None:
        return "waiting for devices"
    unregistered = job.shuffle.producers - len(manifest.producers)
    if unregistered > 0:
        return f"{unregistered} producers that had not registered"
    for producer, included in zip(evidence.roster, manifest.producers, strict=False):
        if (
            not included
            and producer.reports_at(epoch)
            and not any(log.missed(producer.index, producer.first_epoch, epoch) for log in logs)
        ):
            return f"producer {producer.name}"
    return ""
