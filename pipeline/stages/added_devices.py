"""Draw the reports of the devices that each later party in a sealed job adds to every window.

A stage that replaces reports can leave a single genuine device among its own reports. The noise of
the other devices is then lost. Every party after the first stage therefore adds reports of devices
with the initial value, one device for each honest user that the guarantee needs. Among these
reports, the genuine device is as safe as among the honest users that the guarantee assumes,
whatever any one stage or party replaces or suppresses. Estimators know the number and the value of
added devices.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Final

import numpy as np

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.randomness import keyed_generator
from dpstream.topics.messages import MessageArray, Messages
from dpstream.topics.names import Role
from dpstream.topics.sealed_messages import pack_reports, seal_rows

_PURPOSE: Final = b"dpstream added devices"
_EPOCH_BYTES: Final = 8
_SEALED_AT_ONCE: Final = 1 << 10


class AddedDevices:
    """Reports that a party adds, derived from its private key, the deployment and the epoch.

    Averaging two noisy versions of the same counts would reduce the noise. A window that is written
    again or replayed therefore receives the same added reports. `party` is one of
    `DeployedJob.later_parties`.
    """

    def __init__(self, job: DeployedJob, party: str, keys: KeyRing) -> None:
        self._job = job
        self._party = party
        self._keys = keys
        self._count = job.added_by_each(job.law)

    def words(self, epoch: int) -> Messages | None:
        """Return the reports to add to a window, or None if the party adds no reports.

        Raises `WrongKeyError` if the key for the epoch's key period was erased.
        """
        if not self._count:
            return None
        generator, domain = self._generator(epoch), self._job.domain
        devices = self._job.randomizer()
        devices.enroll(self._count, generator)
        nothing = np.full((self._count, *domain.shape), domain.initial, np.int64)
        drawn = devices.report(self._job.epochs.local(epoch), nothing, None, generator)
        if isinstance(drawn, CountedMessages):
            return Messages(drawn.values, drawn.counts)
        return Messages(drawn)

    def ciphertexts(self, epoch: int, role: Role) -> Iterator[MessageArray]:
        """Yield the added reports in blocks, encrypted for the parties that follow a topic.

        Cover traffic hides the number of reports. Raises `WrongKeyError` as `words` does.
        """
        words = self.words(epoch)
        if words is None:
            return
        job, form = self._job, self._job.message_format
        reports = words.values
        if words.counts is not None:
            reports = np.repeat(reports, words.counts.astype(np.int64), axis=0)
        shuffling = job.protocol_entry.shuffling
        assert shuffling is not None
        most = shuffling.capacity(job.law, job.epochs.local(epoch), self._count)
        packed = pack_reports(reports, most - len(reports), form)
        locks = job.locks.after(role, epoch)
        for start in range(0, most, _SEALED_AT_ONCE):
            yield seal_rows(packed[start : start + _SEALED_AT_ONCE], locks)

    def _generator(self, epoch: int) -> np.random.Generator:
        lock = self._job.locks.of(self._party, epoch)
        private_key = self._keys.find(lock.public_key)
        if private_key is None:
            raise WrongKeyError(
                f"epoch {epoch} of job {self._job.name}: {self._party} draws its added reports "
                f"with the private key for that epoch, which is no longer in {self._keys.source}"
            )
        about = _PURPOSE + self._job.window_deployment + epoch.to_bytes(_EPOCH_BYTES, "big")
        return keyed_generator(hmac.digest(private_key.private_bytes_raw(), about, "sha256"))
