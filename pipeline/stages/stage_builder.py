"""Builds the stages of a job: here alone it is chosen what a stage does of all that jobs may ask.

Whatever a job asks for (sealed reports, stages in series or side by side, shares, devices that
report for themselves) is a strategy given to a stage, and no stage asks for it along the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealed import AGGREGATE, SHARERS
from dpstream.pipeline.jobs.sealing_keys import KeyRing
from dpstream.pipeline.stages.added_boxes import AddedBoxes, added_to
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.added_reports import AddedReports
from dpstream.pipeline.stages.added_shares import (
    AddedShares,
    add_shares,
    partial_of,
    window_payload,
)
from dpstream.pipeline.stages.boxes_of_windows import BoxOpener, ReportReader
from dpstream.pipeline.stages.chunk_stage import ChunkStage
from dpstream.pipeline.stages.device_source import DeviceSource
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.estimate_records import EstimateListener
from dpstream.pipeline.stages.instance_stage import InstanceStage
from dpstream.pipeline.stages.opened_layers import OpenedLayers
from dpstream.pipeline.stages.producer_source import ProducerSource
from dpstream.pipeline.stages.publish_stage import PublishStage
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.sum_stage import SumStage
from dpstream.topics.manifests import Manifest
from dpstream.topics.shares import ShareSum
from dpstream.topics.words import Words


def build_stage(
    job: DeployedJob,
    name: str,
    environment: Environment,
    watcher: EstimateListener | None = None,
) -> Stage:
    """Build one stage of a job.

    Args:
        job: the deployed job.
        name: one of `DeployedJob.stages`.
        environment: what the stage is given from outside.
        watcher: is shown every estimate, where the stage publishes them.

    Raises:
        KeyError: the job has no such stage.
        WrongKeyError: the stage adds noise, and the noise key is not the job's; or it opens
            reports, and its private keys are not there.
    """
    listener = environment.listener
    role = job.stages[name]
    if name == "shuffle":
        return shuffle_stage(job, environment)
    if role in job.report_roles:
        return InstanceStage(job, 1 + job.report_roles.index(role), environment)
    if role in job.hops:
        return ChunkStage(job, OpenedLayers(job, 1 + job.hops.index(role), environment), listener)
    if name in SHARERS:
        shares = AddedShares(job, SHARERS.index(name), environment.keys)
        return ChunkStage(job, shares, listener)
    if name == "publish":
        return PublishStage(job, listener=listener, watcher=watcher)
    if job.shared:
        return SumStage(job, listener=listener)
    if job.sealed is None:
        return ChunkStage(job, AddedReports(job), listener)
    return ChunkStage(job, AddedBoxes(job, environment.keys, environment.scratch), listener)


def stages_after_release(job: DeployedJob) -> list[str]:
    """Names of the stages that turn released windows into estimates, in the order of the data."""
    return [name for name in job.stages if name == "publish" or name.startswith("aggregate")]


def shuffle_stage(job: DeployedJob, environment: Environment) -> ShuffleStage[Any, Any]:
    """Build the stage that decides the windows of a job; raises as `build_stage` does."""
    if job.devices is None:
        return ShuffleStage(job, ProducerSource(job, environment.keys), environment)
    devices = DeviceSource(job, environment.keys, environment.scratch)
    return ShuffleStage(job, devices, environment)


def adder(job: DeployedJob, keys: KeyRing) -> Callable[[Manifest, Iterable[Words]], bytes]:
    """What the stages make of a window, for who looks at it again: the payload of its partial.

    Its words raise `ValueError` if the protocol has no such ones.

    Raises:
        WrongKeyError: reports are sealed, and the private keys of who adds up are not there.
    """
    if job.sealed is None:

        def add(manifest: Manifest, pieces: Iterable[Words]) -> bytes:
            aggregator, epoch = job.aggregator(), job.local_epoch(manifest.epoch)
            for piece in pieces:
                aggregator.add(epoch, piece.values, piece.counts)
            return aggregator.to_bytes()

        return add
    if not job.shared:
        reader = ReportReader(job, keys)
        added = AddedDevices(job, AGGREGATE, keys)

        def add_boxes(manifest: Manifest, pieces: Iterable[Words]) -> bytes:
            aggregator = job.aggregator()
            for piece in pieces:
                reader.add(aggregator, manifest.epoch, piece)
            own = added.words(manifest.epoch)
            if own is not None:
                aggregator = added_to(job, aggregator, manifest.epoch, own)
            return aggregator.to_bytes()

        return add_boxes
    openers = [BoxOpener(job, party, keys) for party in SHARERS]
    shares_added = [AddedDevices(job, party, keys) for party in SHARERS]

    def add_shared(manifest: Manifest, pieces: Iterable[Words]) -> bytes:
        sums = [ShareSum.empty(job.table_form, party) for party in range(len(SHARERS))]
        for piece in pieces:
            for total, opener in zip(sums, openers, strict=True):
                add_shares(total, opener, manifest.epoch, piece)
        first, second = (
            partial_of(job, total, own.words(manifest.epoch))
            for total, own in zip(sums, shares_added, strict=True)
        )
        return window_payload(job, manifest, (first, second))

    return add_shared
