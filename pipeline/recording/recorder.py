"""Record every published epoch of a job, and resume from the last commit after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version

from dpstream.pipeline.actions import Run, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.recording.recording_tables import recorded_estimate
from dpstream.pipeline.recording.recordings import (
    INDEX_FILE,
    LogPosition,
    Missing,
    RecordedEpoch,
    Recording,
    RecordingError,
    RecordingFolder,
    RecordingIndex,
    RecordingWriter,
)
from dpstream.pipeline.results.released_windows import WindowIndex
from dpstream.pipeline.stages.epoch_log import DecidedEpoch, EpochLog
from dpstream.pipeline.state import LOCK_FILE
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role

_COMMIT_SECONDS = 10.0
_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Recorded:
    epoch: int
    reports: int | None
    missing: tuple[Missing, ...] = ()


def open_recording(
    folder: RecordingFolder, job: DeployedJob, *, from_epoch: int | None
) -> RecordingIndex:
    """Return the index of the recording of this deployment in a folder, or a new index.

    The caller has locked `folder`. `from_epoch` is the first epoch to record; None continues the
    recording, or starts a new one with the first available epoch. Raises `RecordingError` if the
    folder has other content, or a recording with other options.
    """
    path = folder.path
    if INDEX_FILE not in folder.sizes():
        _check_free(folder)
        form = job.format_of(Role.SHUFFLED)
        return RecordingIndex(
            software=version("dpstream"),
            job=job.name,
            deployment=job.deployment,
            fingerprint=job.fingerprint,
            job_record=job.to_bytes().decode(),
            word_bytes=form.dtype.itemsize,
            word_width=form.width,
            from_epoch=from_epoch or 1,
        )
    index = Recording.open(path).index
    if index.job != job.name or index.deployment != job.deployment:
        raise RecordingError(
            f"{path} is a recording of job {index.job}, deployment {index.deployment.hex()[:8]}; "
            f"expected {job.name}, deployment {job.deployment.hex()[:8]}. Choose another folder"
        )
    if from_epoch is not None and from_epoch != index.from_epoch:
        raise RecordingError(
            f"{path} was started with --from-epoch {index.from_epoch}: continue without this "
            "option, or choose another folder"
        )
    # Descriptions, and values of spare cells, can have been named since.
    return replace(index, job_record=job.to_bytes().decode())


class Recorder:
    """Bring a recording up to date, one round at a time.

    The caller has locked `folder`. Raises `RecordingError` if the recording was altered, or cannot
    be written; committed data stays intact.
    """

    def __init__(
        self,
        job: DeployedJob,
        folder: RecordingFolder,
        index: RecordingIndex,
        run: Run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._path = folder.path
        self._run = run
        self._clock = clock
        self._committed = clock()
        floors = {place.partition: place.offset for place in index.places}
        self._whole = True
        self._next_epoch: DecidedEpoch | None = None
        with self._writing():
            self._writer = RecordingWriter(folder, index)
            first = self._writer.next_epoch or index.from_epoch
            self._epochs = EpochLog(job, first, published=True)
            self._windows = WindowIndex(job, first, floors)
            self._note_places()
            if INDEX_FILE not in folder.sizes():
                self._commit()

    @property
    def index(self) -> RecordingIndex:
        return self._writer.index

    @property
    def complete(self) -> bool:
        last, following = self._job.last_epoch, self._writer.next_epoch
        return last is not None and following is not None and following > last

    def round(self) -> Iterator[Recorded]:
        """Record newly published epochs; after a KafkaError, call it again: no data is lost."""
        # The order matters, because windows are written before the results computed from them.
        self._run(self._epochs.find_end())
        self._run(self._windows.find_end())
        while (epoch := self._run(self._next())) is not None:
            with self._writing():
                missing = tuple(self._missing(epoch))
                self._writer.add(epoch)
                for gap in missing:
                    self._writer.add_missing(gap)
                self._note_places()
                self._commit_in_time()
            window = epoch.window
            yield Recorded(epoch.epoch, None if window is None else window.messages, missing)
        with self._writing():
            self._commit_in_time()

    def stop(self) -> None:
        if self._whole:
            with self._writing():
                if self._writer.uncommitted:
                    self._commit()
        if not self._whole:
            self._writer.abandon()

    def _next(self) -> Steps[RecordedEpoch | None]:
        """Return the next published epoch, or None before it is published.

        A missing window was deleted, because it was complete when it was aggregated. If reading
        fails, the next call reads the same epoch again.
        """
        if self._next_epoch is None:
            self._next_epoch = yield from self._epochs.next()
        decided = self._next_epoch
        if decided is None or (published := decided.estimate) is None:
            return None
        window = None
        if decided.manifest.window_status is WindowStatus.RELEASED:
            window = yield from self._window(decided.epoch)
        self._windows.pass_over(decided.epoch)
        self._next_epoch = None
        return RecordedEpoch(
            decided.manifest, window, decided.payload, recorded_estimate(published)
        )

    def _window(self, epoch: int) -> Steps[Messages | None]:
        if not (yield from self._windows.find(epoch)):
            return None
        return (yield from self._windows.read(epoch))

    def _missing(self, epoch: RecordedEpoch) -> Iterator[Missing]:
        number, job = epoch.epoch, self._job
        if epoch.window is None and epoch.partial is not None:
            yield Missing(
                number,
                number,
                f"deleted from {job.topic(Role.SHUFFLED)}, by retention or manually",
            )

    def _commit_in_time(self) -> None:
        waited = self._clock() - self._committed
        if self._writer.full or (self._writer.uncommitted and waited >= _COMMIT_SECONDS):
            self._commit()

    def _note_places(self) -> None:
        floors = sorted(self._windows.floors.items())
        self._places = [LogPosition(*at) for at in floors]

    def _commit(self) -> None:
        self._writer.commit(self._places)
        self._committed = self._clock()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._whole = False
        try:
            yield
        except OSError as error:
            raise RecordingError(
                f"{self._path} cannot be written: {error.strerror or error}. Data recorded "
                "earlier is intact: free some space, then run the same command again to continue"
            ) from error
        self._whole = True


def _check_free(folder: RecordingFolder) -> None:
    """Raise `RecordingError` unless a folder is empty, except for a killed recorder's remains.

    These remains are a lock file, and an index that was never renamed into place.
    """
    other = sorted(folder.sizes().keys() - {LOCK_FILE, f"{INDEX_FILE}.new"})
    if other:
        raise RecordingError(
            f"{folder.path} contains {other[0]} but no recording: choose a new or empty folder"
        )


class DeploymentCheck:
    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._job = job
        self._next = time.monotonic() + _LOOK_SECONDS

    def ended(self) -> str | None:
        """Describe how the deployment has ended; None if it has not ended, or no check is due."""
        if time.monotonic() < self._next:
            return None
        jobs, name = read_jobs(self._cluster), self._job.name
        self._next = time.monotonic() + _LOOK_SECONDS
        if name in jobs.unreadable:
            return None
        if name not in jobs.jobs:
            return f"job {name} was undeployed"
        if jobs.jobs[name].deployment != self._job.deployment:
            return f"job {name} was replaced by a new deployment"
        return None
