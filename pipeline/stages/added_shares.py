"""Aggregate one party's shares into that party's partial for every window.

A party decrypts the ciphertexts addressed to it and sums their shares modulo 2^32, together with a
table of the devices it adds (`added_devices`). To anyone without the other party's shares, these
shares and the sum in the partial are pseudorandom. If the shares of a window state fewer devices
than the job requires, a party suppresses the sum. A shuffler that forwards only the shares of a few
devices therefore learns nothing about these devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.ciphertexts_of_windows import Decryptor, IncreasingCiphertexts
from dpstream.pipeline.stages.partial_log import append_partial
from dpstream.pipeline.stages.window_transform import WindowTransform
from dpstream.topics.chunks import Chunk
from dpstream.topics.manifests import Manifest
from dpstream.topics.messages import Messages
from dpstream.topics.names import SUMS
from dpstream.topics.partials import corrupt_payload
from dpstream.topics.shares import (
    MOST_ALIKE,
    PartialSum,
    ShareSum,
    ciphertexts_of,
    joined_sums,
    table_of,
)


@dataclass(slots=True)
class OpenedShares:
    sum: ShareSum
    order: IncreasingCiphertexts = field(default_factory=IncreasingCiphertexts)


class AddedShares(WindowTransform[OpenedShares]):
    """Turn the chunks in ``<job>.shuffled`` into ``<job>.partials-a`` or ``-b``.

    Party 0, which receives seeds, is ``aggregate-a``; party 1 is ``aggregate-b``.
    """

    def __init__(self, job: DeployedJob, party: int, keys: KeyRing) -> None:
        super().__init__()
        self.partials = SUMS[party]
        self._job = job
        self._party = party
        self._opener = Decryptor(job, SHARERS[party], keys)
        self._added = AddedDevices(job, SHARERS[party], keys)

    def begin(self) -> OpenedShares:
        return OpenedShares(ShareSum.empty(self._job.table_format, self._party))

    def add(self, content: OpenedShares, chunk: Chunk) -> None:
        content.order.add(chunk.index, chunk.words, self._job.format_of(self.role))
        before = content.sum.closed
        add_shares(content.sum, self._opener, chunk.epoch, chunk.words)
        closed = content.sum.closed - before
        self.counts["shares"] += chunk.words.rows - closed
        self.counts["shares that do not open"] += closed

    def write(self, chunk: Chunk, partial_windows: Sequence[OpenedShares]) -> Steps[None]:
        # Shares pass through one shuffle stage, which opens nothing.
        (content,) = partial_windows
        payload = partial_of(self._job, content.sum, self._added.words(chunk.epoch))
        yield from append_partial(
            self._job, self.partials, chunk.epoch, chunk.manifest_offset, chunk.attempt, payload
        )
        self.counts["partials"] += 1


def add_shares(total: ShareSum, opener: Decryptor, epoch: int, words: Messages) -> None:
    total.add(opener.open_all(epoch, ciphertexts_of(words.values, total.party)))


def partial_of(job: DeployedJob, total: ShareSum, added: Messages | None) -> bytes:
    """Return a party's partial for a window, without the sum if it covers too few devices."""
    suppressed = total.of_fewer_than(job.shuffle.minimum)
    if added is not None and not suppressed:
        table = table_of(added.values, added.counts, job.table_format.cells)
        total = total.with_table(table)
    return total.to_bytes(suppressed=suppressed)


def window_payload(job: DeployedJob, manifest: Manifest, sums: tuple[bytes, bytes]) -> bytes:
    """Combine the partials from aggregate-a and aggregate-b, or state why the counts are unknown.

    The counts are known only if both parties added shares from the same producers, and all devices
    counted when the window was finalized belong to these producers.
    """
    form = job.table_format
    first, second = (PartialSum.from_bytes(form, each) for each in sums)
    problem = _problem(job, manifest, first, second)
    if problem is not None:
        return corrupt_payload(problem)
    aggregator = job.aggregator()
    try:
        table = joined_sums(first, second, form)
        present = table.nonzero()[0]
        words = present.astype(job.message_format.dtype)[:, None]
        aggregator.add(job.epochs.local(manifest.epoch), words, table[present])
    except ValueError as error:
        return corrupt_payload(f"the sums of the shares are not valid counts of this job: {error}")
    return aggregator.to_bytes()


def _problem(
    job: DeployedJob, manifest: Manifest, first: PartialSum, second: PartialSum
) -> str | None:
    if first.digest != second.digest:
        opened = " and ".join(
            f"{name} opened {each.shares:,} shares and failed to open {each.closed:,}"
            for name, each in zip(SHARERS, (first, second), strict=True)
        )
        return f"the two aggregators did not open the same shares: {opened}"
    if set(first.contributors) != {manifest.contributors}:
        return (
            f"opened shares are from {min(first.contributors):,} to "
            f"{max(first.contributors):,} devices, but the window has {manifest.contributors:,}"
        )
    if first.chunks is None or second.chunks is None:
        return f"shares are from fewer than the required {job.shuffle.minimum:,} devices"
    most = _most_alike(job, manifest)
    if most > MOST_ALIKE:
        return (
            f"up to {most:,} reports of these devices can be identical, but shares support at most "
            f"{MOST_ALIKE:,} identical reports: split the users among several jobs"
        )
    return None


def _most_alike(job: DeployedJob, manifest: Manifest) -> int:
    """Return the maximum number of identical reports in a window if all its devices report."""
    law, epoch = job.law, job.epochs.local(manifest.epoch)
    senders = Counter(manifest.populations)
    senders[job.added_by_each(job.law)] += len(job.later_parties)
    return sum(
        times * job.protocol_entry.most_alike(law, epoch, devices)
        for devices, times in senders.items()
    )


def share_aggregator(
    job: DeployedJob, keys: KeyRing
) -> Callable[[Manifest, Iterable[Messages]], bytes]:
    openers = [Decryptor(job, party, keys) for party in SHARERS]
    added = [AddedDevices(job, party, keys) for party in SHARERS]

    def add(manifest: Manifest, chunks: Iterable[Messages]) -> bytes:
        sums = [ShareSum.empty(job.table_format, party) for party in range(len(SHARERS))]
        for words in chunks:
            for total, opener in zip(sums, openers, strict=True):
                add_shares(total, opener, manifest.epoch, words)
        first, second = (
            partial_of(job, total, own.words(manifest.epoch))
            for total, own in zip(sums, added, strict=True)
        )
        return window_payload(job, manifest, (first, second))

    return add
