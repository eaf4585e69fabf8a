"""One trial: a case run with one seed, and what its estimates were off by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.deployed_job import DeployedJob
from pipeline.evaluation.columns import COLUMNS, Series
from pipeline.evaluation.data import Source
from pipeline.evaluation.experiment import Case
from pipeline.input.change_log import ChangeLog
from pipeline.simulate import simulate
from topics.manifests import Fate


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far one kind of estimate was from the truth, over all epochs (and items) of a trial.

    Attributes:
        rmse: root mean squared error, in users.
        predicted_rmse: what was said beforehand, None if nothing was.
        mean_abs_error: in users.
        max_error: the largest absolute error, in users.
        bias: mean error, noise included: of the estimator only on average over many seeds.
        coverage: share of the 95 % intervals that hold the truth; None if there are none.
    """

    rmse: float
    predicted_rmse: float | None
    mean_abs_error: float
    max_error: float
    bias: float
    coverage: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial found; `accuracies` are by the name of the column.

    Attributes:
        users: in the input.
        frozen: share of them that had to leave out a change.
        withheld: epochs whose window was too small to be released.
        epsilon_stream: exact loss of a user's whole stream; None where only single values have a
            guarantee.
        delta: of that guarantee.
        accuracies: empty if no estimate was published.
    """

    users: int
    frozen: float
    withheld: int
    epsilon_stream: float | None
    delta: float
    accuracies: Mapping[str, Accuracy]

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            AttributeError, KeyError, TypeError: it is something else.
        """
        accuracies = {name: Accuracy(**one) for name, one in body["accuracies"].items()}
        return cls(**{**body, "accuracies": accuracies})


def case_key(case: Case) -> str:
    """A digest of all that a trial's result depends on, apart from the seed and the software.

    Constants count with the fingerprint, so a law that is calibrated anew is tried anew.
    """
    job = case.job
    meaning = {
        "source": case.source.identity(),
        "protocol": job.protocol,
        "parameters": case.parameters,
        "fingerprint": job.fingerprint.hex(),
        "epochs": job.epochs.model_dump(mode="json"),
        "shuffle": job.shuffle.model_dump(mode="json"),
        "columns": list(COLUMNS),
    }
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_trial(job: bytes, source: Source, seed: int) -> Trial:
    """Run a case, given by its `DeployedJob.to_bytes`, with one seed.

    `dpstream simulate --seed` with the same job and input gives the same estimates.

    Raises:
        InputError: the input cannot be read, or has bad rows.
    """
    inputs = _inputs(job, source)
    simulation = simulate(inputs.job, inputs.change_log, seed, smooth=True)
    accuracies = {}
    for name, column in COLUMNS.items():
        series = column.series(simulation)
        if not np.isnan(series.values).all():
            accuracies[name] = accuracy(series, simulation.truth, inputs.predicted[name])
    users = len(inputs.change_log.users)
    guarantee = inputs.job.guarantee()
    return Trial(
        users=users,
        frozen=simulation.frozen / users,
        withheld=sum(record.fate is not Fate.RELEASED for record in simulation.records),
        epsilon_stream=(
            guarantee.epsilon if guarantee.unit == "stream" else guarantee.stream_epsilon
        ),
        delta=guarantee.delta,
        accuracies=accuracies,
    )


def accuracy(series: Series, truth: NDArray[np.int64], predicted: float | None) -> Accuracy:
    """Compare estimates with the truth, shape (epochs + 1,) or (epochs + 1, items)."""
    errors = series.values - truth[1:]
    known = ~np.isnan(series.low)
    covered = (series.low <= truth[1:]) & (truth[1:] <= series.high)
    return Accuracy(
        rmse=float(np.sqrt(np.nanmean(np.square(errors)))),
        predicted_rmse=predicted,
        mean_abs_error=float(np.nanmean(np.abs(errors))),
        max_error=float(np.nanmax(np.abs(errors))),
        bias=float(np.nanmean(errors)),
        coverage=float(covered[known].mean()) if known.any() else None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Inputs:
    """What all seeds of a case share."""

    job: DeployedJob
    change_log: ChangeLog
    predicted: Mapping[str, float | None]


@lru_cache(maxsize=1)
def _inputs(job: bytes, source: Source) -> _Inputs:
    deployed = DeployedJob.from_bytes(job)
    change_log = source.load(deployed)
    users = len(change_log.users)
    predicted = {name: column.predicted(deployed, users) for name, column in COLUMNS.items()}
    return _Inputs(deployed, change_log, predicted)
