"""What raw reports say of windows, for whoever may read them while they are still there.

The stage deletes them as soon as a window is written. Where they are kept longer, or by a copy of
the topic, a window can be made again: which producers were complete before its cut, with how many
contributors, and which words they sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.operations.stage_verification.evidence import (
    Evidence,
    digest_in_order,
    pieces_in_order,
)
from pipeline.operations.stage_verification.findings import Finding, Violation, in_order
from pipeline.operations.stage_verification.noise import Sent, tested_words
from pipeline.stages.admission import Admission, Refusal
from pipeline.stages.multisets import WordMultiset
from pipeline.stages.stage_noise import StageNoise
from pipeline.stages.windows import PunctuationError, Window
from topics.batches import Batch, Punctuation
from topics.manifests import Fate, Manifest
from topics.words import Words


@dataclass(frozen=True, slots=True)
class Remade:
    """A window as raw reports say it is.

    Attributes:
        manifest: the decision.
        contributors: of the producers that the manifest says are in, those of them that are
            complete before the cut.
        missing: names of those of them that are not.
        excluded: names of others that are, and had been registered by then.
        sent: by those who are in, of what `tested` is about.
        contents: the digest of what the law releases of their words; None where nobody can tell.
    """

    manifest: Manifest
    contributors: int
    missing: tuple[str, ...]
    excluded: tuple[str, ...]
    sent: Sent
    contents: bytes | None


def remade_windows(evidence: Evidence, key: NoiseKey | None = None) -> dict[int, Remade]:
    """The windows whose raw reports are all there, from one look at the records.

    Words wait in scratch files where they are many: held at a time are those of windows that
    overlap, each as the stage holds it.

    Args:
        evidence: to look at.
        key: the job's noise key, of an auditor who was given it.

    Raises:
        NoiseKeyError: it is another one.
    """
    job = evidence.job
    if evidence.raw is None or why_not(job):
        return {}
    noise = None if job.needs_noise_key and key is None else StageNoise(job, key)
    tested = tested_words(evidence) if noise is None else None
    found: dict[int, Remade] = {}
    for partition in range(job.partitions):
        manifests = {
            epoch: decision.manifest
            for epoch, (decision, _) in evidence.decisions.items()
            if job.partition_of(epoch) == partition
            and decision.manifest.first_offset != decision.manifest.cut_offset
        }
        for window in _windows(evidence, partition, manifests):
            found[window.manifest.epoch] = window.remade(noise, tested)
    return {epoch: found[epoch] for epoch in evidence.decisions if epoch in found}


def _windows(
    evidence: Evidence, partition: int, manifests: dict[int, Manifest]
) -> Iterator[_Window]:
    """The windows of a partition of which no raw report is gone, each when all of it is read."""
    assert evidence.raw is not None
    admission, begun, whole = Admission(evidence.job), dict[int, _Window](), False
    for record in evidence.raw(partition):
        if not whole:
            whole = True
            for epoch, manifest in manifests.items():
                if record.offset <= manifest.first_offset:
                    begun[epoch] = _Window(evidence, manifest)
        for epoch, window in list(begun.items()):
            if window.manifest.cut_offset <= record.offset:
                yield begun.pop(epoch)
        for value in admission.records(partition, record.value):
            admitted = admission.admit(partition, value)
            if not isinstance(admitted, Refusal) and admitted.epoch in begun:
                begun[admitted.epoch].add(record.offset, admitted)
    yield from begun.values()


class _Window:
    """A window that is being made again."""

    def __init__(self, evidence: Evidence, manifest: Manifest) -> None:
        self.manifest = manifest
        self._job = evidence.job
        self._inside = list(zip(evidence.roster, manifest.producers, strict=False))
        self._enrolments = {producer.enrolment for producer, inside in self._inside if inside}
        form = evidence.job.word_form
        self._window = Window(manifest.epoch, 0.0, lambda: WordMultiset(form))
        self._everybody = Window(manifest.epoch, 0.0, lambda: WordMultiset(form))
        self._everybody.drop_words()

    def add(self, offset: int, record: Batch | Punctuation) -> None:
        """Take in a record of the epoch, if it came in time."""
        if not self.manifest.first_offset <= offset < self.manifest.cut_offset:
            return
        with suppress(PunctuationError):
            self._everybody.add(record)
        if record.enrolment in self._enrolments:
            with suppress(PunctuationError):
                self._window.add(record)

    def remade(self, noise: StageNoise | None, tested: Words | None) -> Remade:
        """What came of it; its words are gone then."""
        missing, excluded = [], []
        for producer, included in self._inside:
            complete = self._everybody.complete(producer.enrolment) is not None
            if included and not complete:
                missing.append(producer.name)
            if complete and not included and producer.last_epoch is None:
                excluded.append(producer.name)
        words, contributors = self._window.words, self._window.contributors
        pieces = () if tested is None else pieces_in_order(self._job, words)
        sent = Sent.of(words.messages, pieces, tested)
        contents = None
        if noise is not None and self.manifest.fate is Fate.RELEASED:
            contents = released_contents(self._job, noise, self.manifest.epoch, words)
        self._window.close()
        self._everybody.close()
        return Remade(self.manifest, contributors, tuple(missing), tuple(excluded), sent, contents)


def why_not(job: DeployedJob) -> str:
    """Why windows of a job cannot be made again from raw reports; empty: they can."""
    if job.sealed is not None:
        return "raw reports are sealed: without the stage's private keys nobody can read them"
    if job.devices is not None:
        return "reports of single devices are told apart by the collectors' key alone"
    if job.instances > 1:
        return "each shuffle instance has raw reports of its own"
    if job.lanes > 1:
        return "raw reports of an epoch lie in several lanes"
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
    violations = [
        Violation(epoch, "its words are not those of its producers and the noise of its epoch")
        for epoch, window in held.items()
        if window.contents != released[epoch, 1].multiset
    ]
    return Finding("raw contents", promise, len(held), violations=in_order(violations))


def released_contents(
    job: DeployedJob, drawn: StageNoise, epoch: int, words: WordMultiset
) -> bytes:
    """The digest of what the law releases of the words that were sent; dummies are added to them.

    Sums, and what is left of crowds, are made of all words at once, as the stage makes them.
    """
    dummies = drawn.dummies(epoch)
    if dummies is not None:
        words.add(dummies)
    if not drawn.sums and not drawn.deletes:
        return digest_in_order(job, words)
    make = drawn.sum if drawn.sums else drawn.left
    made = WordMultiset(job.form_of(job.decided_role))
    made.add(make(epoch, words.sorted()))
    digest = digest_in_order(job, made)
    made.close()
    return digest


def _missing(evidence: Evidence) -> str:
    why = why_not(evidence.job)
    if why:
        return why
    return (
        "raw reports: they are deleted when a window is written; where they are kept longer, give "
        "--raw, with the right to read them"
    )
