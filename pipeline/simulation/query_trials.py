"""Answers of simulated jobs beside the truth: how far off they are, and how far off they say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.results.questions import Answer, Query
from dpstream.pipeline.simulation.simulate import Simulation


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of all answers, at all epochs of all trials, freezing bias included.

    Attributes:
        rmse: root mean squared error, in users; of quantiles, in values.
        predicted: the same as the published standard deviations have it; None for quantiles.
        coverage: share of the intervals that hold the truth.
    """

    rmse: float
    predicted: float | None
    coverage: float


def accuracy(query: Query, simulations: Sequence[Simulation]) -> Accuracy | None:
    """How accurate the answers are; None if there is not one."""
    answers = [answer for each in simulations for answer in _answers(query, each)]
    if not answers:
        return None
    truths = np.array([answer.truth for answer in answers], np.float64)
    values = np.array([answer.value for answer in answers])
    lows, highs = np.array([(answer.low, answer.high) for answer in answers]).T
    variances = [
        answer.standard_deviation**2 for answer in answers if answer.standard_deviation is not None
    ]
    return Accuracy(
        rmse=float(np.sqrt(np.square(values - truths).mean())),
        predicted=math.sqrt(math.fsum(variances) / len(variances)) if variances else None,
        coverage=float(((lows <= truths) & (truths <= highs)).mean()),
    )


def simulations_json(query: Query, simulations: Sequence[Simulation]) -> Mapping[str, Any]:
    """What ``dpstream simulate --json`` prints for a query: the epochs are those of trial 1."""
    first, found = simulations[0], accuracy(query, simulations)
    spans = EpochSpans(first.job)
    return {
        "job": first.job.name,
        "guarantee": first.job.guarantee,
        "trials": len(simulations),
        "rmse": None if found is None else found.rmse,
        "predicted_rmse": None if found is None else found.predicted,
        "coverage": None if found is None else found.coverage,
        "epochs": [
            spans.dated(query.to_json(record, first.truth[record.epoch]))
            for record in first.records
        ],
    }


def _answers(query: Query, simulation: Simulation) -> Iterator[Answer]:
    for record in simulation.records:
        yield from query.answers(record.estimate, simulation.truth[record.epoch])
