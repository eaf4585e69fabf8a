"""The stage of a job that decides its windows: of what producers send, or devices themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.sealing_keys import NO_KEYS, KeyRing
from dpstream.pipeline.stages.deciding_stage import DecidingStage
from dpstream.pipeline.stages.device_stage import DeviceStage
from dpstream.pipeline.stages.finished_windows import WindowListener, ignore_window
from dpstream.pipeline.stages.scratch import Scratch, temporary_file
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage


def shuffling_stage(
    job: DeployedJob,
    *,
    identifiers: Callable[[], bytes],
    wall_clock: Callable[[], int],
    broker_time: Callable[[], int | None],
    generator: np.random.Generator,
    scratch: Scratch = temporary_file,
    noise_key: NoiseKey | None = None,
    keys: KeyRing = NO_KEYS,
    listener: WindowListener = ignore_window,
) -> DecidingStage[Any, Any]:
    """A `ShuffleStage`, or a `DeviceStage` where devices report for themselves: see there."""
    kind = ShuffleStage if job.devices is None else DeviceStage
    return kind(
        job,
        identifiers=identifiers,
        wall_clock=wall_clock,
        broker_time=broker_time,
        generator=generator,
        scratch=scratch,
        noise_key=noise_key,
        keys=keys,
        listener=listener,
    )
