"""Build the stages of a job, with the strategies for its options.

Modules for options that a job does not use are not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.stages.admission import Admission
from dpstream.pipeline.stages.chunk_stage import ChunkStage
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.estimate_records import EstimateListener
from dpstream.pipeline.stages.producer_source import ProducerSource
from dpstream.pipeline.stages.publish_stage import PublishStage
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.window_transform import AddedReports, WindowTransform
from dpstream.pipeline.stages.window_writer import WindowRelease
from dpstream.topics.manifests import Manifest
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role

if TYPE_CHECKING:
    from dpstream.pipeline.stages.device_admission import DeviceAdmission


def build_stage(
    job: DeployedJob,
    name: str,
    environment: Environment,
    watcher: EstimateListener | None = None,
) -> Stage:
    """Build a stage of `Route.stages`; raise `WrongKeyError` if a key is missing or wrong."""
    role = job.route.stages[name]
    if name == "shuffle":
        return shuffle_stage(job, environment)
    if role in job.route.reports:
        return _instance_stage(job, role, environment)
    if name == "publish":
        return PublishStage(job, listener=environment.listener, watcher=watcher)
    if name == "aggregate" and job.shared:
        from dpstream.pipeline.stages.sum_stage import SumStage

        return SumStage(job, listener=environment.listener)
    return ChunkStage(job, _transform(job, name, role, environment), environment.listener)


def stages_after_release(job: DeployedJob) -> list[str]:
    return [name for name in job.route.stages if name == "publish" or name.startswith("aggregate")]


def shuffle_stage(job: DeployedJob, environment: Environment) -> ShuffleStage[Any, Any]:
    release = _release(job, environment)
    if job.devices is None:
        _check_keys(job, Role.REPORTS, environment.keys)
        source = ProducerSource(job, producer_admission(job, environment.keys))
        return ShuffleStage(job, source, release, environment)
    from dpstream.pipeline.stages.device_source import DeviceSource

    devices = DeviceSource(job, environment.keys, environment.open_spill_file)
    return ShuffleStage(job, devices, release, environment)


def producer_admission(
    job: DeployedJob, keys: KeyRing = NO_KEYS, role: Role = Role.REPORTS
) -> Admission:
    if job.sealed is None:
        return Admission(job, role)
    from dpstream.pipeline.stages.sealed_admission import SealedAdmission

    return SealedAdmission(job, keys, role)


def admission_of(job: DeployedJob, role: Role = Role.REPORTS) -> Admission | DeviceAdmission:
    if job.devices is None:
        return producer_admission(job, role=role)
    from dpstream.pipeline.stages.device_admission import DeviceAdmission

    return DeviceAdmission(job)


def window_aggregator(
    job: DeployedJob, keys: KeyRing
) -> Callable[[Manifest, Iterable[Messages]], bytes]:
    """Return a function that computes, for verification, the payload of a window's partial."""
    if job.shared:
        from dpstream.pipeline.stages.added_shares import share_aggregator

        return share_aggregator(job, keys)
    if job.sealed is not None:
        from dpstream.pipeline.stages.added_ciphertexts import ciphertext_aggregator

        return ciphertext_aggregator(job, keys)

    def add(manifest: Manifest, chunks: Iterable[Messages]) -> bytes:
        aggregator, epoch = job.aggregator(), job.epochs.local(manifest.epoch)
        for chunk in chunks:
            aggregator.add(epoch, chunk.values, chunk.counts)
        return aggregator.to_bytes()

    return add


def _transform(
    job: DeployedJob, name: str, role: Role, environment: Environment
) -> WindowTransform[Any]:
    if job.sealed is None:
        return AddedReports(job)
    if role in job.route.hops:
        from dpstream.pipeline.stages.opened_layers import OpenedLayers

        return OpenedLayers(job, 1 + job.route.hops.index(role), environment)
    if job.shared:
        from dpstream.pipeline.jobs.routes import SHARERS
        from dpstream.pipeline.stages.added_shares import AddedShares

        return AddedShares(job, SHARERS.index(name), environment.keys)
    from dpstream.pipeline.stages.added_ciphertexts import AddedCiphertexts

    return AddedCiphertexts(job, environment.keys, environment.open_spill_file)


def _release(job: DeployedJob, environment: Environment) -> WindowRelease:
    if job.sealed is not None:
        from dpstream.pipeline.stages.ciphertexts_of_windows import SealedRelease

        return SealedRelease()
    if job.shuffle.order == "sorted" and not job.needs_noise_key:
        return WindowRelease()
    from dpstream.pipeline.stages.stage_noise import NoisyRelease, RandomOrder

    randomly = job.shuffle.order == "random"
    order = RandomOrder(environment.generator) if randomly else WindowRelease()
    return NoisyRelease(job, environment, order) if job.needs_noise_key else order


def _instance_stage(job: DeployedJob, role: Role, environment: Environment) -> Stage:
    from dpstream.pipeline.stages.instance_stage import InstanceStage

    _check_keys(job, role, environment.keys)
    admission = producer_admission(job, environment.keys, role)
    instance = 1 + job.route.reports.index(role)
    return InstanceStage(job, instance, admission, _release(job, environment), environment)


def _check_keys(job: DeployedJob, role: Role, keys: KeyRing) -> None:
    if job.seals_batches:
        from dpstream.pipeline.jobs.routes import stage_party
        from dpstream.pipeline.stages.ciphertexts_of_windows import check_keys

        check_keys(job, stage_party(job.route.reports.index(role)), keys)
