"""The stages that turn released windows into partials, of any job."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealed import SHARERS
from dpstream.pipeline.jobs.sealing_keys import KeyRing
from dpstream.pipeline.stages.aggregate_stage import AggregateStage
from dpstream.pipeline.stages.boxes_of_windows import BoxOpener, ReportReader
from dpstream.pipeline.stages.finished_windows import WindowListener, ignore_window
from dpstream.pipeline.stages.scratch import Scratch, temporary_file
from dpstream.pipeline.stages.share_stage import ShareStage, add_shares, partial_of, window_payload
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.sum_stage import SumStage
from dpstream.topics.manifests import Manifest
from dpstream.topics.shares import ShareSum
from dpstream.topics.words import Words


def adding_stage(
    job: DeployedJob,
    name: str,
    keys: KeyRing,
    listener: WindowListener = ignore_window,
    scratch: Scratch = temporary_file,
) -> Stage:
    """One of them by its name: aggregate, or of shares aggregate-a and aggregate-b, too.

    Raises:
        WrongKeyError: it opens reports, and the private keys are not there.
    """
    if name in SHARERS:
        return ShareStage(job, SHARERS.index(name), keys, listener=listener)
    if job.shared:
        return SumStage(job, listener=listener)
    return AggregateStage(job, keys, scratch=scratch, listener=listener)


def adding_stages(
    job: DeployedJob,
    keys: KeyRing,
    listeners: Callable[[str], WindowListener] = lambda stage: ignore_window,
) -> list[Stage]:
    """All of them, in the order of the data flow; `listeners` are by the names of stages."""
    return [
        adding_stage(job, name, keys, listeners(name))
        for name in job.stages
        if name.startswith("aggregate")
    ]


def adder(job: DeployedJob, keys: KeyRing) -> Callable[[Manifest, Iterable[Words]], bytes]:
    """What the stages make of a window, for who looks at it again: the payload of its partial.

    Its words raise `ValueError` if the protocol has no such ones.

    Raises:
        WrongKeyError: reports are sealed, and the private keys of who adds up are not there.
    """
    if not job.shared:
        reader = ReportReader(job, keys)

        def add(manifest: Manifest, pieces: Iterable[Words]) -> bytes:
            aggregator = job.aggregator()
            for piece in pieces:
                reader.add(aggregator, manifest.epoch, piece)
            return aggregator.to_bytes()

        return add
    openers = [BoxOpener(job, party, keys) for party in SHARERS]

    def add_shared(manifest: Manifest, pieces: Iterable[Words]) -> bytes:
        sums = [ShareSum.empty(job.table_form, party) for party in range(len(SHARERS))]
        for piece in pieces:
            for total, opener in zip(sums, openers, strict=True):
                add_shares(total, opener, manifest.epoch, piece)
        first, second = (partial_of(job, total) for total in sums)
        return window_payload(job, manifest, (first, second))

    return add_shared
