"""Input to a replay from a recording; each file's checksum is verified before the file is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.replays import ReplayError
from dpstream.pipeline.recording.recording_index import RecordingFile, RecordKind
from dpstream.pipeline.recording.recordings import Recording, RecordingError
from dpstream.pipeline.recording.replay.sources import Stored, in_words
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.messages import Messages, pairs_are_smaller
from dpstream.topics.names import Role


class RecordingSource:
    """Raises `RecordingError` if the recording is damaged, `JobError` if its job is unreadable."""

    def __init__(self, recording: Recording) -> None:
        self.job = DeployedJob.from_bytes(recording.job_record)
        self.place = f"the recording {recording.path}"
        self._recording = recording
        index, form = recording.index, self.job.format_of(Role.SHUFFLED)
        if (self.job.deployment, self.job.fingerprint) != (index.deployment, index.fingerprint):
            raise RecordingError(
                f"{self.place} combines the index of one deployment with the job of another"
            )
        if (form.dtype.itemsize, form.width) != (index.word_bytes, index.word_width):
            raise RecordingError(
                f"{self.place}: got {index.word_width} integers of {index.word_bytes} bytes per "
                f"report; {self.job.protocol} expects {form}"
            )
        self._released = EpochSet()
        for manifest in self.manifests():
            if manifest.window_status is WindowStatus.RELEASED:
                self._released.add(manifest.epoch)
        self._windows = recording.windows()
        self._reached = 0

    def has_window(self, epoch: int) -> bool:
        return epoch in self._released and not self._recording.index.lacks(epoch)

    def stored(self, epochs: Sequence[int]) -> Stored:
        if not epochs:
            return Stored(0, 0)
        files = self._files(RecordKind.WINDOWS, epochs[0], epochs[-1])
        return Stored(sum(file.rows for file in files), sum(file.size for file in files))

    def check(self, first: int, windows_from: int, last: int) -> None:
        for kind, start, end in (
            (RecordKind.PARTIALS, first, min(windows_from - 1, last)),
            (RecordKind.WINDOWS, windows_from, last),
        ):
            for file in self._files(kind, start, end) if start <= end else ():
                self._recording.check_file(file)

    def has_partial(self, epoch: int) -> bool:
        return epoch in self._released

    def manifests(self) -> Iterator[Manifest]:
        return self._recording.manifests()

    def window(self, epoch: int) -> Messages:
        if epoch <= self._reached:
            self._windows = self._recording.windows(epoch)
        for found, words in self._windows:
            self._reached = found
            if found == epoch:
                return self._canonical(words)
            if found > epoch:
                break
        raise ReplayError(f"the window of {in_words([epoch])} is not in {self.place}")

    def payloads(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        if first > last:
            return
        for row in self._recording.partials(first):
            if row.epoch > last:
                return
            yield row.epoch, row.payload

    def _files(self, kind: RecordKind, first: int, last: int) -> list[RecordingFile]:
        files = self._recording.index.of_kind(kind)
        return [file for file in files if file.last_epoch >= first and file.first_epoch <= last]

    def _canonical(self, words: Messages) -> Messages:
        assert words.counts is not None
        form = self.job.format_of(Role.SHUFFLED)
        if form.distinct is not None and words.rows and int(words.values[-1, 0]) >= form.distinct:
            raise RecordingError(
                f"{self.place}: got message {int(words.values[-1, 0])}; {self.job.protocol} "
                f"expects messages below {form.distinct}"
            )
        if pairs_are_smaller(form.report_bytes, words.rows, words.messages):
            return words
        return Messages(np.repeat(words.values, words.counts.astype(np.intp), axis=0))
