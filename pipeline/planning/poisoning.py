"""Poisoning bound: maximum effect of one malicious device on an estimate, whatever it sends.

At each epoch, the device sends one report with at most as many messages as an honest device can
send. In every protocol, the effect of a message is measured by adding the message to the reports of
honest devices. The effect of the device is at most the sum over all its messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator

HONEST: Final = 6_000
"""Number of honest devices in the measurement: enough for devices with every interval order."""
LONGEST: Final = 128
"""Maximum number of epochs examined; a longer job is assessed at this epoch."""
_WORDS_TRIED: Final = 24


def poisoning_bound(job: DeployedJob) -> float | None:
    """Return the maximum effect of one malicious device on an estimate, in users; None if unknown.

    The effect is measured with `HONEST` honest devices. The bound is valid for jobs whose devices
    report for themselves and whose number of users does not grow.
    """
    last = 1 if job.protocol_entry.per_epoch else min(job.epochs.count, LONGEST)
    if job.stage_sum is not None:
        # A single message is added to one sum, and represents everything that a device can report.
        return None
    reports = _honest_reports(job, last)
    participation = Participation.constant(job.epochs.count, HONEST)
    state = job.aggregator()
    for epoch, words in reports.items():
        state.add(epoch, words, None)
    held = state.to_bytes()
    honest = _values(job.aggregator_from_bytes(held), last, participation)
    if honest is None:
        return None
    total = 0.0
    rng = seeded_generator(7)
    for epoch, words in reports.items():
        distinct = np.unique(words, axis=0)
        if len(distinct) > _WORDS_TRIED:
            distinct = distinct[rng.integers(0, len(distinct), _WORDS_TRIED)]
        most = 0.0
        for word in distinct:
            lied = job.aggregator_from_bytes(held)
            lied.add(epoch, word[None, :], None)
            moved = _values(lied, last, participation)
            assert moved is not None
            most = max(most, float(np.abs(moved - honest).max()))
        total += most * job.content_format.slots
    return total


def _honest_reports(job: DeployedJob, last: int) -> Mapping[int, NDArray[Any]]:
    rng = seeded_generator(5)
    devices = job.randomizer()
    devices.enroll(HONEST, rng)
    reports = {}
    for epoch in range(1, last + 1):
        shape = (HONEST, *job.domain.shape)
        values = rng.integers(0, min(job.domain.size, 2), shape)
        reports[epoch] = written_out(devices.report(epoch, values, None, rng))
    return {epoch: words for epoch, words in reports.items() if len(words)}


def _values(
    state: Aggregator, epoch: int, participation: Participation
) -> NDArray[np.float64] | None:
    published = state.estimate(epoch, participation)
    if published is None or (published.single is None and published.listed() is None):
        return None
    values = published.intervals[0]
    return values if values.size else None
