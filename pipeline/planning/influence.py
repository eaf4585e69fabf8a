"""How far one device that lies can move an estimate, by whatever words it sends.

Each epoch it has one report, with as many words as honest ones have room for. What a word does to
an estimate is found by adding it to reports of honest devices, so that nothing need be known of
the protocol; what a liar can do is at most the sum over all its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Attendance
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.randomizers.counted_words import written_out
from dpstream.randomizers.randomness import seeded_generator

HONEST: Final = 6_000
"""Devices that words are added to: enough for every order of intervals to be there."""
LONGEST: Final = 128
"""Epochs that are looked at: a liar of more of them is told of as at this one."""
_WORDS_TRIED: Final = 24


def influence_of_one(job: DeployedJob) -> float | None:
    """By how many users, at most, one lying device can move an estimate; None where none is told.

    As far as `HONEST` devices show it, and for jobs in which users do not become more.

    Args:
        job: whose devices report for themselves.
    """
    last = 1 if job.protocol_entry.per_epoch else min(job.epochs.count, LONGEST)
    if job.stage_sum is not None:
        # One word is added up to one sum, and stands for all that a device may say.
        return None
    reports = _honest_reports(job, last)
    attendance = Attendance.constant(job.epochs.count, HONEST)
    state = job.aggregator()
    for epoch, words in reports.items():
        state.add(epoch, words, None)
    held = state.to_bytes()
    honest = _values(job.aggregator_from_bytes(held), last, attendance)
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
            moved = _values(lied, last, attendance)
            assert moved is not None
            most = max(most, float(np.abs(moved - honest).max()))
        total += most * job.content_form.slots
    return total


def _honest_reports(job: DeployedJob, last: int) -> Mapping[int, NDArray[Any]]:
    rng = seeded_generator(5)
    devices = job.randomizer()
    devices.enrol(HONEST, rng)
    reports = {}
    for epoch in range(1, last + 1):
        shape = (HONEST, *job.domain.shape)
        values = rng.integers(0, min(job.domain.size, 2), shape)
        reports[epoch] = written_out(devices.report(epoch, values, None, rng))
    return {epoch: words for epoch, words in reports.items() if len(words)}


def _values(state: Aggregator, epoch: int, attendance: Attendance) -> NDArray[np.float64] | None:
    """The estimates of an epoch: one, or one of each item."""
    published = state.estimate(epoch, attendance)
    if published is None or (published.single is None and published.listed() is None):
        return None
    values = published.intervals[0]
    return values if values.size else None
