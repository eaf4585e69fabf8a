"""Check that a recording is unaltered, bit by bit, and consistent.

Checksums detect any alteration, truncation or loss. They cannot detect false data that was
recorded. Tables are therefore compared with each other and, on request, windows with the partials
that the aggregator computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.recording.recording_tables import published_estimate
from dpstream.pipeline.recording.recordings import (
    Recording,
    RecordingError,
    RecordingIndex,
    RecordKind,
)
from dpstream.pipeline.stages.stage_builder import window_aggregator
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.messages import split_messages
from dpstream.topics.names import Role

Tell = Callable[[str], None]


@dataclass(slots=True)
class Verification:
    """Result of a check; without `problems`, the recording is intact."""

    index: RecordingIndex | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reports: int = 0
    shared: bool = False
    deep: bool = False

    def to_json(self) -> dict[str, Any]:
        index = self.index
        return {
            "intact": not self.problems,
            "problems": self.problems,
            "notes": self.notes,
            "job": None if index is None else index.job,
            "deployment": None if index is None else index.deployment.hex(),
            "first_epoch": None if index is None else index.first_epoch,
            "last_epoch": None if index is None else index.last_epoch,
            "missing": [] if index is None else [str(gap) for gap in index.missing],
            "files": 0 if index is None else len(index.files),
            "bytes": 0 if index is None else sum(file.size for file in index.files),
            "chunks" if self.shared else "reports": self.reports,
            "deep": self.deep,
        }


def verify(
    path: Path,
    *,
    deep: bool = False,
    keys: Callable[[DeployedJob], KeyRing] = lambda job: NO_KEYS,
    tell: Tell = lambda text: None,
) -> Verification:
    """Check a recording; `tell` is called with each file or epoch being checked.

    With `deep`, every window is aggregated again and compared with its partial. If reports are
    sealed, this requires the aggregator's `keys`, and raises `WrongKeyError` if they are missing.
    """
    verification = Verification(deep=deep)
    try:
        recording = Recording.open(path)
    except RecordingError as error:
        verification.problems.append(str(error))
        return verification
    verification.index = recording.index
    for file in recording.index.files:
        tell(file.path)
        try:
            recording.check_file(file)
        except (RecordingError, OSError) as error:
            verification.problems.append(str(error))
    verification.notes += _left_over(path, recording.index)
    if not verification.problems:
        try:
            for problem in _contradictions(recording, verification, keys, tell):
                verification.problems.append(f"{path}: {problem}")
        except (RecordingError, JobError, CodecError) as error:
            verification.problems.append(str(error))
    return verification


def _left_over(path: Path, index: RecordingIndex) -> Iterator[str]:
    listed = {file.path for file in index.files}
    for file in sorted(path.glob("*.parquet")):
        if file.name not in listed:
            yield f"{file.name} is not in the index: an interrupted recorder left it"


def _contradictions(
    recording: Recording,
    verification: Verification,
    keys: Callable[[DeployedJob], KeyRing],
    tell: Tell,
) -> Iterator[str]:
    index = recording.index
    job = DeployedJob.from_bytes(recording.job_record)
    verification.shared = job.shared
    form = job.format_of(Role.SHUFFLED)
    says = (index.job, index.deployment, index.fingerprint, index.word_bytes, index.word_width)
    if says != (job.name, job.deployment, job.fingerprint, form.dtype.itemsize, form.width):
        yield "the recorded job differs from the job named in the index"
        return
    yield from _epochs(recording)
    yield from _file_bounds(recording)
    yield from _estimates(recording, job)
    yield from _windows(recording, job, verification, keys(job), tell)


def _epochs(recording: Recording) -> Iterator[str]:
    epochs = (row.epoch for row in recording.manifests())
    for epoch, other in zip_longest(recording.epochs, epochs):
        if epoch != other:
            yield f"expected the manifest of epoch {epoch}; got epoch {other}"
            return
    released = (row.epoch for row in _released(recording))
    partials = (row.epoch for row in recording.partials())
    for epoch, other in zip_longest(released, partials):
        if epoch != other:
            yield f"expected the partial of epoch {epoch}; got epoch {other}"
            return


def _file_bounds(recording: Recording) -> Iterator[str]:
    """Check that files of the same kind cover disjoint epochs, which lookups by epoch assume."""
    for kind in RecordKind:
        files = recording.index.of_kind(kind)
        for file, following in pairwise(files):
            if file.last_epoch >= following.first_epoch:
                yield f"{file.path} and {following.path} contain the same epochs"


def _estimates(recording: Recording, job: DeployedJob) -> Iterator[str]:
    rows = recording.estimates()
    for row, manifest in zip_longest(rows, recording.manifests()):
        if row is None or manifest is None or row.epoch != manifest.epoch:
            yield "estimates and manifests are not for the same epochs"
            return
        published = published_estimate(row, job.deployment)
        # A released window can turn out to be corrupt during aggregation.
        window_status = (
            WindowStatus.RELEASED
            if published.window_status is WindowStatus.CORRUPT
            else published.window_status
        )
        if published.reason is not None and published.window_status is not WindowStatus.CORRUPT:
            yield (
                f"the estimate of epoch {row.epoch} has a reason for corruption, but its status "
                "is not corrupt"
            )
        says = (window_status, published.contributors, published.population, published.closed_at)
        decided = (
            manifest.window_status,
            manifest.contributors,
            manifest.population,
            manifest.timestamp,
        )
        if says != decided:
            yield f"the estimate and the manifest of epoch {row.epoch} contradict each other"


def _windows(
    recording: Recording, job: DeployedJob, verification: Verification, keys: KeyRing, tell: Tell
) -> Iterator[str]:
    add_up = window_aggregator(job, keys) if verification.deep else None
    partials = recording.partials() if verification.deep else iter(())
    manifests = _released(recording)
    for epoch, words in recording.windows():
        verification.reports += words.messages
        if add_up is None:
            continue
        tell(f"epoch {epoch}")
        payload = next((row.payload for row in partials if row.epoch == epoch), None)
        manifest = next(each for each in manifests if each.epoch == epoch)
        try:
            added = add_up(manifest, split_messages(words))
        except ValueError as error:
            yield f"window of epoch {epoch}: {error}"
            continue
        if added != payload:
            yield f"the window of epoch {epoch} does not match its partial"


def _released(recording: Recording) -> Iterator[Manifest]:
    return (row for row in recording.manifests() if row.window_status is WindowStatus.RELEASED)
