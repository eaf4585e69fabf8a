"""Windows in device jobs: only the first report with each tag in the log counts.

Copies of a sealed report under other tags do not count, either. Otherwise, a party that forwards
reports it cannot read could send copies of one report under the tags of nonexistent devices, and
observe how much the estimate changes. Of several copies, the one with the lowest tag counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import LogRecord, Steps, end_offset, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.device_admission import (
    AdmittedReports,
    DeviceAdmission,
    used_messages,
)
from dpstream.pipeline.stages.environment import OpenSpillFile
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.tagged_contents import TaggedContents
from dpstream.pipeline.stages.windows import OpenWindow
from dpstream.topics.envelopes import ContentFormat
from dpstream.topics.manifests import Manifest
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role

_CIPHERTEXT = np.dtype("<u8")


class DeviceWindow(OpenWindow):
    """Reports for one epoch, as received from collectors.

    `watermarks` are the IDs of collectors that accept no more reports for the epoch.
    `contradicting` counts reports that differ from the first with their tag; `devices` sets it.
    """

    def __init__(
        self,
        epoch: int,
        opened_at: float,
        form: ContentFormat,
        multiset: Callable[[], MessageMultiset],
        open_spill_file: OpenSpillFile,
        *,
        sealed: bool = False,
        sampled: bool = False,
    ) -> None:
        super().__init__(epoch, opened_at)
        self.watermarks: set[bytes] = set()
        self.contradicting = 0
        self._form = form
        self._open_spill_file = open_spill_file
        self._sealed = sealed
        self._contributors_of: Callable[[NDArray[np.uint16]], int] = (
            np.count_nonzero if sampled else len
        )
        self._contents = TaggedContents(form.size + sealed * _CIPHERTEXT.itemsize, open_spill_file)
        self._multiset = multiset
        self._counted: tuple[int, MessageMultiset] | None = None

    def add(self, reports: AdmittedReports) -> None:
        self._uncount()
        contents = reports.contents
        if self._sealed:
            assert reports.ciphertexts is not None
            ciphertexts = reports.ciphertexts.astype(_CIPHERTEXT)[:, None].view(np.uint8)
            contents = np.concatenate([ciphertexts, contents], axis=1)
        self._contents.add(reports.tags, contents)

    @property
    def buffered_bytes(self) -> int:
        return self._contents.buffered_bytes

    @property
    def messages(self) -> int:
        return len(self._contents)

    @property
    def contributors(self) -> int:
        """Number of reports received; every device sends one per epoch, even without messages."""
        return len(self._contents)

    @property
    def version(self) -> int:
        return len(self.watermarks)

    @property
    def words(self) -> MessageMultiset:
        return self._count()[1]

    @property
    def devices(self) -> int:
        """Number of contributors; if only some devices are asked, only those with a message."""
        return self._count()[0]

    def drop_messages(self) -> None:
        self._contents.spill()

    def take_messages(self) -> MessageMultiset:
        """Return the messages, which the caller then owns, and close the window."""
        _, words = self._count()
        self._counted = None
        self.close()
        return words

    def close(self) -> None:
        self._uncount()
        self._contents.close()

    def _count(self) -> tuple[int, MessageMultiset]:
        if self._counted is None:
            devices, words = 0, self._multiset()
            for contents in self._one_of_each():
                slots, counts, _ = self._form.unpack(contents)
                words.add(Messages(used_messages(slots, counts)))
                devices += self._contributors_of(counts)
            self._counted = devices, words
            self.contradicting = self._contents.contradicting
        return self._counted

    def _one_of_each(self) -> Iterator[NDArray[np.uint8]]:
        if not self._sealed:
            yield from self._contents.first_of_each()
            return
        by_ciphertext = TaggedContents(self._form.size, self._open_spill_file)
        try:
            for rows in self._contents.first_of_each():
                ciphertexts = np.ascontiguousarray(rows[:, : _CIPHERTEXT.itemsize]).view(
                    _CIPHERTEXT
                )[:, 0]
                by_ciphertext.add(ciphertexts, rows[:, _CIPHERTEXT.itemsize :])
            yield from by_ciphertext.first_of_each()
        finally:
            by_ciphertext.close()

    def _uncount(self) -> None:
        if self._counted is not None:
            self._counted[1].close()
            self._counted = None


class DeviceWindows:
    def __init__(
        self,
        job: DeployedJob,
        admission: DeviceAdmission,
        new_window: Callable[[int, float], DeviceWindow],
    ) -> None:
        self._job = job
        self._admission = admission
        self._new_window = new_window

    def read(self, manifest: Manifest) -> Steps[MessageMultiset]:
        partition = self._job.topics.partition_of(manifest.epoch)
        window = self._new_window(manifest.epoch, 0.0)

        def collect(record: LogRecord) -> None:
            admitted = self._admission.admit(partition, record.value)
            if isinstance(admitted, AdmittedReports) and admitted.epoch == manifest.epoch:
                window.add(admitted)

        end = yield from end_offset(Role.REPORTS, partition)
        stop = min(manifest.cut_offset, end)
        yield from scan(Role.REPORTS, partition, manifest.first_offset, stop, collect)
        return window.take_messages()
