"""What raw reports say of windows, for whoever may read them while they are still there.

The stage deletes them as soon as a window is written. Where they are kept longer, or by a copy of
the topic, a window can be made again: which producers were complete before its cut, with how many
contributors, and which words they sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.operations.stage_verification.evidence import Evidence
from pipeline.operations.stage_verification.findings import Finding, Violation, in_order
from pipeline.stages.admission import Admission, Refusal
from pipeline.stages.multisets import WordMultiset
from pipeline.stages.stage_noise import StageNoise
from pipeline.stages.windows import PunctuationError, Window
from topics.manifests import Fate, Manifest
from topics.signed import digest_of
from topics.words import Words, split_words


@dataclass(frozen=True, slots=True)
class Remade:
    """A window as raw reports say it is.

    Attributes:
        manifest: the decision.
        words: of the producers that the manifest says are in, in canonical order.
        contributors: of those of them that are complete before the cut.
        missing: names of those of them that are not.
        excluded: names of others that are, and had been registered by then.
    """

    manifest: Manifest
    words: Words
    contributors: int
    missing: tuple[str, ...]
    excluded: tuple[str, ...]


def remade_windows(evidence: Evidence) -> dict[int, Remade]:
    """The windows whose raw reports are all there."""
    job = evidence.job
    if not evidence.raw or why_not(job):
        return {}
    admission = Admission(job)
    found = {}
    for epoch, (decision, _) in evidence.decisions.items():
        manifest = decision.manifest
        records = evidence.raw.get(job.partition_of(epoch), ())
        empty = manifest.first_offset == manifest.cut_offset
        if not empty and records and records[0].offset <= manifest.first_offset:
            found[epoch] = _remade(evidence, manifest, admission)
    return found


def why_not(job: DeployedJob) -> str:
    """Why windows of a job cannot be made again from raw reports; empty: they can."""
    if job.sealed is not None:
        return "raw reports are sealed: without the stage's private keys nobody can read them"
    if job.devices is not None:
        return "reports of single devices are told apart by the collectors' key alone"
    if job.instances > 1:
        return "each shuffle instance has raw reports of its own"
    return ""


def cut(evidence: Evidence, windows: Mapping[int, Remade]) -> Finding:
    """Manifests say who was in by the cut, and how many devices that is."""
    violations = []
    for epoch, window in windows.items():
        manifest = window.manifest
        if window.missing:
            names = ", ".join(window.missing)
            violations.append(
                Violation(epoch, f"{names} is in, and was not complete before the cut")
            )
        if window.excluded:
            names = ", ".join(window.excluded)
            violations.append(Violation(epoch, f"{names} was complete before the cut, and is out"))
        if window.contributors != manifest.contributors:
            violations.append(
                Violation(
                    epoch,
                    f"{manifest.contributors:,} contributors, punctuations say "
                    f"{window.contributors:,}",
                )
            )
    return Finding(
        "cut",
        "who was complete before the cut is in, with as many contributors as its punctuations say, "
        "and what came later is out",
        len(windows),
        violations=in_order(violations),
        missing="" if windows else _missing(evidence),
    )


def raw_contents(
    evidence: Evidence, windows: Mapping[int, Remade], key: NoiseKey | None
) -> Finding:
    """Released windows hold the words of their producers, no fewer and no others."""
    promise = "a window holds what its producers sent, with the noise of the noise key, and no more"
    job = evidence.job
    released = evidence.released(job.decided_role)
    held = {
        epoch: window
        for epoch, window in windows.items()
        if (epoch, 1) in released and window.manifest.fate is Fate.RELEASED
    }
    if not held:
        return Finding("raw contents", promise, 0, missing=_missing(evidence))
    if job.needs_noise_key and key is None:
        missing = "which noise was added to the words: give --noise-key FILE"
        return Finding("raw contents", promise, 0, missing=missing)
    drawn = StageNoise(job, key)
    violations = [
        Violation(epoch, "its words are not those of its producers and the noise of its epoch")
        for epoch, window in held.items()
        if _multiset(job, released_words(job, drawn, epoch, window.words))
        != released[epoch, 1].multiset
    ]
    return Finding("raw contents", promise, len(held), violations=in_order(violations))


def released_words(job: DeployedJob, drawn: StageNoise, epoch: int, sent: Words) -> list[Words]:
    """What the law releases of the words that were sent."""
    dummies = drawn.dummies(epoch)
    if drawn.sums:
        return [drawn.sum(epoch, sent)]
    if drawn.deletes:
        return [drawn.left(epoch, sent)]
    return [sent] if dummies is None else [sent, dummies]


def _multiset(job: DeployedJob, parts: list[Words]) -> bytes:
    multiset = WordMultiset(job.form_of(job.decided_role))
    for part in parts:
        multiset.add(part)
    ordered = multiset.sorted()
    multiset.close()
    return digest_of(split_words(ordered))


def _missing(evidence: Evidence) -> str:
    why = why_not(evidence.job)
    if why:
        return why
    return (
        "raw reports: they are deleted when a window is written; where they are kept longer, give "
        "--raw, with the right to read them"
    )


def _remade(evidence: Evidence, manifest: Manifest, admission: Admission) -> Remade:
    job, partition = evidence.job, evidence.job.partition_of(manifest.epoch)
    window = Window(manifest.epoch, 0.0, lambda: WordMultiset(job.word_form))
    everybody = Window(manifest.epoch, 0.0, lambda: WordMultiset(job.word_form))
    inside = list(zip(evidence.roster, manifest.producers, strict=False))
    enrolments = {producer.enrolment for producer, included in inside if included}
    for record in evidence.raw[partition]:
        if not manifest.first_offset <= record.offset < manifest.cut_offset:
            continue
        for value in admission.records(record.value):
            admitted = admission.admit(partition, value)
            if isinstance(admitted, Refusal) or admitted.epoch != manifest.epoch:
                continue
            with suppress(PunctuationError):
                everybody.add(admitted)
            if admitted.enrolment in enrolments:
                with suppress(PunctuationError):
                    window.add(admitted)
    missing, excluded = [], []
    for producer, included in inside:
        complete = everybody.complete(producer.enrolment) is not None
        if included and not complete:
            missing.append(producer.name)
        if complete and not included and producer.last_epoch is None:
            excluded.append(producer.name)
    words = window.words.sorted()
    contributors = window.contributors
    window.close()
    everybody.close()
    return Remade(manifest, words, contributors, tuple(missing), tuple(excluded))
